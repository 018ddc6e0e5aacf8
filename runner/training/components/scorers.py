"""Functions of answers, as rewards and metrics are: with their arguments bound, and named as the config does."""

import inspect
from collections.abc import Callable, Collection
from typing import TypeAlias

from torch import nn
from transformers import PreTrainedTokenizerBase

from runner.config.build import asked_for, build, locate, serve
from runner.errors import ConfigError, fault
from runner.metric.ask import OWN, READ, SAMPLED, SAMPLES, Metric, kind_of
from runner.reward.panel import Scorer
from runner.schema.text import Node, named

Reward: TypeAlias = Callable[..., object] | nn.Module


def build_scorer(node: Node, own: Collection[str] = ("weight", "timeout"), *, random_head: bool = False) -> Reward:
    """A function of completions, or of answers that were read, with its arguments bound but for the columns.

    A loader or a class is called first, and what comes back scores. The keys in ``own`` are not the target's.
    """
    arguments = {key: value for key, value in node.items() if key not in own}
    target = locate(node["_target_"])
    if inspect.isfunction(target) and {*SAMPLED, *READ} & asked_for(node["_target_"]):
        return build(arguments | {"_partial_": True})
    return serve(arguments, random_head=True) if random_head else build(arguments)


def build_metrics(node: Node | None, tokenizer: PreTrainedTokenizerBase) -> list[Metric]:
    """The configured metrics, each ready to measure held-out rows."""
    metrics = []
    for name, entry in named(node or {}, "metric").items():
        call = build_scorer(entry, own=OWN)
        if isinstance(call, nn.Module):
            raise ConfigError(fault("training.model_as_metric", name=name))
        own = {key: entry[key] for key in OWN if key in entry and key not in ("better", "preprocess")}
        arguments = inspect.signature(call).parameters
        own.setdefault("limit", SAMPLES if kind_of(arguments) == "sampled" else None)
        preprocess = entry.get("preprocess")
        preprocess = serve(dict(preprocess) | {"_partial_": True}, tokenizer=tokenizer) if preprocess else None
        scorer = Scorer(name, call, timeout=None, group="metric")
        metrics.append(Metric(name, scorer.ask, kind_of(arguments), preprocess, "logits" in arguments, **own))
    return metrics
