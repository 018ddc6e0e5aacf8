"""Rewards that a model gives to a whole answer. Rules are in ``rule``."""

from __future__ import annotations

from typing import Any

import torch
from peft import AutoPeftModelForSequenceClassification
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import find_adapter_config_file

from runner.errors import ConfigError, Fault
from runner.files import shipped


def load_reward_model(
    path: str, *, revision: str | None = None, dtype: str = "float32", trust_remote_code: bool = False
) -> PreTrainedModel:
    """A sequence classification model with one score, as ``trainer=reward`` leaves it in ``model/``; frozen.

    An adapter is merged into its base. The trainer reads the tokenizer from the same place, by
    ``config._name_or_path``. Only safetensors are loaded, and weights that are missing are a fault, because a score
    head that was never trained would reward at random.
    """
    home = shipped(path)
    how = {"revision": revision, "dtype": getattr(torch, dtype), "trust_remote_code": trust_remote_code}
    try:
        adapted = find_adapter_config_file(home, revision=revision) is not None
        model = _load_adapter(home, how) if adapted else _load_whole(home, how)
    except OSError as error:
        raise _unfit(path, str(error).splitlines()[0], "a folder, or org/name on the hub") from error
    if model.config.num_labels != 1:
        raise _unfit(path, f"it gives {model.config.num_labels} scores", "a model with one score per text")
    return model.eval().requires_grad_(False)


def _load_whole(home: str, how: dict[str, Any]) -> PreTrainedModel:
    model, report = AutoModelForSequenceClassification.from_pretrained(
        home, use_safetensors=True, output_loading_info=True, **how
    )
    if missing := sorted(report["missing_keys"]):
        raise _unfit(home, f"it has no weights for {', '.join(missing)}", "a trained reward model")
    return model


def _load_adapter(home: str, how: dict[str, Any]) -> PreTrainedModel:
    """The base with the adapter merged in, under the adapter's name, because its tokenizer is there."""
    model = AutoPeftModelForSequenceClassification.from_pretrained(home, num_labels=1, **how).merge_and_unload()
    model.config._name_or_path = home
    return model


def _unfit(path: str, found: str, expected: str) -> ConfigError:
    cure = "python -m runner trainer=reward, then reward.model.path=<its model folder>"
    return ConfigError(Fault("reward.model.path", f"{path}: {found}", expected, cure))
