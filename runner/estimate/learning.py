"""The forecast of learning of real runs: what their start models earn on their first prompts.

Only here the real model is asked, as far as its weights are on this machine and are few enough for
its processor. Nothing is downloaded and nothing is trained.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from runner.config.experiment import Experiment
from runner.estimate.apart import ask_apart
from runner.estimate.case import Case, model_of
from runner.estimate.model_weights import LOADERS, source_of
from runner.io.files import JsonObject
from runner.io.hub import is_cached
from runner.io.visible import to_visible
from runner.model.clone import Source, count_weights
from runner.schema.text import Config, nodes, scalars
from runner.schema.upstream import config_fields
from runner.training.first_rollouts import FirstRewards

MAX_FORECASTS = 3
MAX_WEIGHTS_ON_CPU = 200_000_000
REMOTE = "runner.reward.remote."

Sample: TypeAlias = Callable[[Experiment], FirstRewards]


def forecast_learning(cases: Sequence[Case], sample: Sample, folder: Path) -> list[str]:
    """A line for each of the first cases whose trainer rewards groups of completions.

    ``sample`` has the start model of an experiment answer its first prompts.
    """
    later_models = set()
    for case in cases:
        later_models |= {model_of(composed) for composed in case.runs.values()}
    lines: list[str] = []
    for case in cases:
        experiment = case.composed.experiment
        is_rewarded = experiment.rewards or experiment.environment
        has_groups = "num_generations" in config_fields(experiment.trainer.args)
        if not is_rewarded or not has_groups or len(lines) == MAX_FORECASTS:
            continue
        reason = _find_reason(case.composed.cfg, later_models)
        if reason:
            text = f"not forecast, because {reason}; the training notes it after its first rollouts"
        else:
            text = _sample_apart(case, sample, folder)
        lines.append(to_visible(f"learning  {case.name}: {text}"))
    return lines


def _find_reason(cfg: Config, later_models: Collection[str]) -> str:
    """The reason why the real model cannot be asked on this machine; empty where it can."""
    if any(value in later_models for _, value in scalars(cfg)):
        return "an earlier stage has yet to train its model"
    experiment = Experiment.read(cfg)
    if experiment.trainer.node.get("rollout_func"):
        return "a function of yours samples"
    source = source_of(experiment)
    sources = [source]
    for _, node in nodes(cfg.get("reward")):
        if node["_target_"].startswith(REMOTE):
            return "another server rewards the completions"
        if node["_target_"] in LOADERS:
            sources.append(Source(str(node.get("path"))))
    for needed in sources:
        if not _is_here(needed):
            return f"the weights of {needed.path} are not on this machine"
    weights = count_weights(source.config(), source.trust)
    if weights > MAX_WEIGHTS_ON_CPU and not torch.cuda.is_available():
        return f"{weights / 1e6:.0f} M weights are many for this CPU"
    return ""


def _is_here(source: Source) -> bool:
    """True for a model that can be loaded without a download."""
    if source.architecture is not None or source.path.startswith("runner://"):
        return True
    return Path(source.path).exists() or is_cached(source.path, "models", "*/*.safetensors")


def _sample_apart(case: Case, sample: Sample, folder: Path) -> str:
    """The forecast of a case by completions that are sampled in a process of its own."""

    def sample_here() -> JsonObject:
        # The rows of this configuration are the first ones, which the smoke run has stored.
        rewards = sample(Experiment.read(case.small.unreduced))
        return {"groups": rewards.groups, "has_answers": rewards.has_answers}

    result = ask_apart(sample_here, folder, "learning")
    if "why" in result:
        return f"unknown: {result['why']}"
    rewards = FirstRewards(result["groups"], result["has_answers"])
    return rewards.describe(case.composed.command, case.composed.choices)
