"""Functions of answers, as rewards and metrics are, with their arguments bound."""

import inspect
from collections.abc import Callable, Collection
from typing import TypeAlias

from torch import nn
from transformers import PreTrainedTokenizerBase

from runner.config.build import asked_for, build, locate, serve
from runner.config.experiment import MetricPart, RewardPart, key_names
from runner.errors import ConfigError, Fault
from runner.metric.ask import READ, SAMPLED, SAMPLES, Metric, kind_of
from runner.reward.panel import Scorer
from runner.schema.text import Node, named

Reward: TypeAlias = Callable[..., object] | nn.Module
METRIC_KEYS = key_names(MetricPart)
REWARD_KEYS = key_names(RewardPart)


def build_scorer(
    node: Node, own: Collection[str] = REWARD_KEYS, *, random_head: bool = False
) -> Reward:
    """A function of completions, or of answers that were read, with its settings bound.

    A loader or a class is called first, and what comes back scores. The keys in ``own`` are not the
    target's.
    """
    settings = {key: value for key, value in node.items() if key not in own}
    target = locate(node["_target_"])
    scorer: Reward
    if inspect.isfunction(target) and asked_for(node["_target_"]) & {*SAMPLED, *READ}:
        scorer = build({**settings, "_partial_": True})
    elif random_head:
        scorer = serve(settings, random_head=True)
    else:
        scorer = build(settings)
    return scorer


def build_metrics(node: Node | None, tokenizer: PreTrainedTokenizerBase) -> list[Metric]:
    """The configured metrics, each ready to measure held-out rows."""
    metrics = []
    for name, metric_node in named(node or {}, "metric").items():
        call = build_scorer(metric_node, own=METRIC_KEYS)
        if isinstance(call, nn.Module):
            raise ConfigError(
                Fault(
                    where=f"metric.{name}",
                    found="a model, which cannot be called as it is",
                    expected="a function",
                    fix=f"metric.{name}._target_=runner.reward.outcome.Classifier",
                )
            )
        arguments = inspect.signature(call).parameters
        kind = kind_of(arguments)
        preprocess = None
        if metric_node.get("preprocess"):
            partial = {**metric_node["preprocess"], "_partial_": True}
            preprocess = serve(partial, tokenizer=tokenizer)
        # Keys of ours that are fields of a Metric under the same names.
        settings = {}
        for key in METRIC_KEYS:
            if key in metric_node and key not in ("better", "preprocess"):
                settings[key] = metric_node[key]
        settings.setdefault("limit", SAMPLES if kind == "sampled" else None)
        scorer = Scorer(name, call, timeout=None, group="metric")
        reads_logits = "logits" in arguments
        metrics.append(Metric(name, scorer.ask, kind, preprocess, reads_logits, **settings))
    return metrics
