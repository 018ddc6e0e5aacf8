"""Weights that a training left -> on the model that it began with. Which weights those are is not decided here."""

from __future__ import annotations

from pathlib import Path

from peft import PeftConfig, PeftModel, load_peft_weights, set_peft_model_state_dict
from transformers import PreTrainedModel

from runner.errors import Fault, FolderError


def load_adapter_weights(model: PreTrainedModel | PeftModel, folder: Path) -> PeftModel:
    """The model with the adapter of this folder on it; where it came with one, with that adapter's weights replaced.

    The base is the one that the training loaded, whatever the folder says of it: a merged base is nowhere on disk.
    """
    if not isinstance(model, PeftModel):
        return PeftModel.from_pretrained(model, folder, config=PeftConfig.from_pretrained(folder), is_trainable=False)
    loaded = set_peft_model_state_dict(model, load_peft_weights(str(folder), device=str(model.device)))
    if loaded.unexpected_keys:
        found = f"an adapter with {loaded.unexpected_keys[0]}, which the run's own has not"
        raise FolderError(Fault(str(folder), found, "the adapter that the run trains"))
    return model
