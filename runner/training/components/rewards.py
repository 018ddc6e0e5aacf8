"""Rewards and metrics, under the names that the config gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeAlias

from runner.config.build import asked_for, build, locate, serve
from runner.errors import ConfigError, Fault
from runner.schema import upstream
from runner.schema.text import Config, Node, named

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase, TrainingArguments

    from runner.metric.ask import Metric
    from runner.reward.panel import RewardTracker

    Reward: TypeAlias = Callable[..., object] | nn.Module


def build_rewards(
    node: Node | None, *, per_step: bool = False, random_head: bool = False
) -> tuple[list[Reward], list[float] | None, RewardTracker | None]:
    """The rewards as TRL takes them, each checked and under its own name, their weights unless all are 1, and the
    panel that they make.
    """
    if not node:
        return [], None, None
    from runner.reward.panel import TIMEOUT, RewardTracker, to_scorer

    panel, rewards, entries = RewardTracker(), [], named(node, "reward")
    for name, entry in entries.items():
        call, timeout = build_scorer(entry, random_head=random_head), entry.get("timeout", TIMEOUT)
        rewards.append(to_scorer(name, call, timeout=timeout, per_step=per_step, tracker=panel))
    weights = [float(entry.get("weight", 1.0)) for entry in entries.values()]
    return rewards, weights if set(weights) != {1.0} else None, panel


def rewards_of(cfg: Config, args: TrainingArguments) -> tuple[list[Reward], RewardTracker | None]:
    """The rewards of a run, with the panel that those of the group make; their weights are put into ``args``.

    The reward model that the trainer's arguments name is loaded as those of the group are.
    """
    random_head = bool((cfg.get("tolerate") or {}).get("random_head"))
    # Only a trainer that knows where steps end can use a reward for each.
    per_step = hasattr(args, "step_separator")
    rewards, weights, panel = build_rewards(cfg["reward"], per_step=per_step, random_head=random_head)
    if path := getattr(args, upstream.REWARD_MODEL_PATH, None):
        from runner.reward.outcome import load_reward_model

        args.reward_model_path = None  # the trainer is given the model
        rewards.append(
            load_reward_model(path, random_head=random_head, where=f"trainer.args.{upstream.REWARD_MODEL_PATH}")
        )
        weights = weights and [*weights, 1.0]
    if weights:
        args.reward_weights = weights
    return rewards, panel


def build_scorer(node: Node, own: Collection[str] = ("weight", "timeout"), *, random_head: bool = False) -> Reward:
    """A function of completions, or of answers that were read, with its arguments bound but for the columns.

    A loader or a class is called first, and what comes back scores. The keys in ``own`` are not the target's.
    """
    from runner.metric.ask import READ, SAMPLED

    arguments = {key: value for key, value in node.items() if key not in own}
    target = locate(node["_target_"])
    if inspect.isfunction(target) and {*SAMPLED, *READ} & asked_for(node["_target_"]):
        return build(arguments | {"_partial_": True})
    return serve(arguments, random_head=True) if random_head else build(arguments)


def build_metrics(node: Node | None, tokenizer: PreTrainedTokenizerBase) -> list[Metric]:
    """The configured metrics, each ready to measure held-out rows."""
    from torch import nn

    from runner.metric.ask import OWN, SAMPLES, Metric, kind_of
    from runner.reward.panel import Scorer

    metrics = []
    for name, entry in named(node or {}, "metric").items():
        call = build_scorer(entry, own=OWN)
        if isinstance(call, nn.Module):
            fix = f"metric.{name}._target_=runner.reward.outcome.Classifier"
            raise ConfigError(Fault(f"metric.{name}", "a model, which cannot be called as it is", "a function", fix))
        own = {key: entry[key] for key in OWN if key in entry and key not in ("better", "preprocess")}
        arguments = inspect.signature(call).parameters
        own.setdefault("limit", SAMPLES if kind_of(arguments) == "sampled" else None)
        preprocess = entry.get("preprocess")
        preprocess = serve(dict(preprocess) | {"_partial_": True}, tokenizer=tokenizer) if preprocess else None
        scorer = Scorer(name, call, timeout=None, group="metric")
        metrics.append(Metric(name, scorer.ask, kind_of(arguments), preprocess, "logits" in arguments, **own))
    return metrics
