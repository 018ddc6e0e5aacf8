"""Functions of answers, as rewards and metrics are, with their arguments bound."""

import inspect
from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import nn
from transformers import PreTrainedTokenizerBase

from runner.config.build import asked_for, build, locate, serve
from runner.config.experiment import MetricPart, RewardPart
from runner.errors import ConfigError, Fault
from runner.metric.ask import LIVE, READ, SAMPLED, SAMPLES, Metric, kind_of
from runner.reward.panel import Scorer

Reward: TypeAlias = Callable[..., object] | nn.Module


def build_scorer(part: RewardPart | MetricPart, *, random_head: bool = False) -> Reward:
    """A function of completions, or of answers that were read, with its settings bound.

    A loader or a class is called first, and what comes back scores.
    """
    settings = part.arguments
    target = locate(part.target)
    scorer: Reward
    if inspect.isfunction(target) and asked_for(part.target) & {*SAMPLED, *READ, *LIVE}:
        scorer = build({**settings, "_partial_": True})
    elif random_head:
        scorer = serve(settings, random_head=True)
    else:
        scorer = build(settings)
    return scorer


def build_metrics(
    parts: Mapping[str, MetricPart], tokenizer: PreTrainedTokenizerBase
) -> list[Metric]:
    """The configured metrics, each ready to measure held-out rows."""
    metrics = []
    for name, part in parts.items():
        call = build_scorer(part)
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
        if part.preprocess:
            partial = {**part.preprocess, "_partial_": True}
            preprocess = serve(partial, tokenizer=tokenizer)
        limit = part.limit
        if kind == "sampled" and "limit" not in part.node:
            limit = SAMPLES
        scorer = Scorer(name, call, timeout=None, group="metric")
        metrics.append(
            Metric(
                name,
                scorer.ask,
                kind,
                preprocess,
                takes_logits="logits" in arguments,
                on=part.on,
                limit=limit,
                max_new_tokens=part.max_new_tokens,
                answers=part.answers,
            )
        )
    return metrics
