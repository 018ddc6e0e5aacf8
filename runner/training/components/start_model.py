"""Parts of the configuration that concern the model of a training; nothing is loaded here."""

from typing import Any

from runner.config.adapter_rate import FACTOR
from runner.config.build import build
from runner.config.experiment import AdapterPart, Experiment
from runner.model.node import overrides_answers
from runner.schema.source import has_method


def build_quantization(experiment: Experiment) -> object:
    """The configured quantization; None without one."""
    return build(experiment.quant.node) if experiment.quant else None


def own_tuner(peft: AdapterPart | None) -> Any:
    """A tuner with methods of its own; None for any other.

    They are ``prepare_model(model)``, ``save_pretrained(model, folder)`` and
    ``from_pretrained(model, folder)``; the first and the last give the model.
    """
    if peft and has_method(peft.target, "prepare_model"):
        node = dict(peft.node)
        node.pop(FACTOR, None)
        return build(node)
    return None


def path_of(experiment: Experiment) -> dict[str, str]:
    """The ``path`` of the policy's weights, if any; PPO's own argument for it comes first."""
    path = experiment.trainer.args.get("sft_model_path") or experiment.model.path
    return {"path": path} if path else {}


def has_base(experiment: Experiment) -> bool:
    """True where the model below an adapter is on disk, so that the adapter can be saved alone."""
    model = experiment.model.node
    return bool(path_of(experiment)) and not model.get("merge") and not overrides_answers(model)
