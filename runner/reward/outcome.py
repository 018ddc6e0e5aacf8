"""Rewards that a model gives to a whole answer."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForSequenceClassification

from runner.files import shipped


def load_reward_model(path: str, *, revision: str | None = None, dtype: str = "float32") -> Any:
    """A sequence classification model with one score, as ``trainer=reward`` leaves it in ``model/``.

    The trainer reads its tokenizer from the same place. Only safetensors are loaded.
    """
    return AutoModelForSequenceClassification.from_pretrained(
        shipped(path), revision=revision, dtype=dtype, num_labels=1, use_safetensors=True
    )
