"""The weights that a model computes with now, its adapter merged, for another program to load."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import torch
from huggingface_hub import save_torch_state_dict
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

Model: TypeAlias = PreTrainedModel | PeftModel


def current_weights(model: Model, adapter: str | None = None) -> Iterator[tuple[str, Tensor]]:
    """The name and the value of each weight, as in the files of the model without an adapter.

    With an adapter the weights are those of its base with ``adapter`` merged, or with the active
    one. The model itself stays as it is to the bit: each layer is merged for a moment and given
    back its weights, because subtracting an adapter again would leave a rounding error behind.
    Weights that are shared come once. What FSDP2 has sharded has to be gathered before.
    """
    base: nn.Module = model
    if isinstance(model, PeftModel):
        base = model.get_base_model()
    weights = dict(_weights_in_memory(base, adapter))
    # Of some architectures transformers 5 has weights in memory under other names than in files, or
    # those of several experts as one.
    yield from revert_weight_conversion(base, weights).items()


def _weights_in_memory(base: nn.Module, adapter: str | None) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model under its own names, those of adapted layers merged."""
    adapted = []
    for prefix, layer in base.named_modules():
        if isinstance(layer, BaseTunerLayer | AuxiliaryTrainingWrapper):
            adapted.append(f"{prefix}.")
        if isinstance(layer, BaseTunerLayer):
            for name, weight in _merged_weights(layer, adapter):
                yield f"{prefix}.{name}", weight
        elif isinstance(layer, AuxiliaryTrainingWrapper):
            for name, weight in _trained_copy(layer, adapter).named_parameters():
                yield f"{prefix}.{name}", weight.detach()
    for name, weight in base.named_parameters():
        if not name.startswith(tuple(adapted)):
            yield name, weight.detach()


def _merged_weights(layer: BaseTunerLayer, adapter: str | None) -> Iterator[tuple[str, Tensor]]:
    """The weights of one layer with its adapter merged; the layer is as before afterwards.

    Only one layer at a time has copies of its weights, so that no second model is in memory.
    """
    base = layer.get_base_layer()
    before = {name: weight.detach().clone() for name, weight in base.named_parameters()}
    adapters = None  # for peft those that are active
    if adapter is not None:
        adapters = [adapter]
    layer.merge(adapter_names=adapters)
    merged = {name: weight.detach().clone() for name, weight in base.named_parameters()}
    if layer.merged:
        layer.unmerge()
    with torch.no_grad():
        for name, weight in base.named_parameters():
            weight.copy_(before[name])
    yield from merged.items()


def _trained_copy(layer: AuxiliaryTrainingWrapper, adapter: str | None) -> nn.Module:
    """The copy of a layer that peft trains whole, for an adapter or for the active one."""
    copies: nn.ModuleDict = layer.modules_to_save
    name = adapter or layer.active_adapter
    return copies[name]


def shares_adapted_embeddings(model: Model) -> bool:
    """True where an adapter changes one of two layers that share their weights.

    Merged, they would no longer be alike, which a model that ties them cannot say.
    """
    if not isinstance(model, PeftModel):
        return False
    base = model.get_base_model()
    embeddings = base.get_input_embeddings()
    output = base.get_output_embeddings()
    adapted = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    is_adapted = isinstance(embeddings, adapted) or isinstance(output, adapted)
    is_tied = bool(getattr(model.config, "tie_word_embeddings", False))
    return is_adapted and is_tied


def write_current_weights(model: Model, folder: Path, adapter: str | None = None) -> None:
    """Write config and weights of :func:`current_weights` into an empty folder, as safetensors."""
    model.config.save_pretrained(folder)
    weights = dict(current_weights(model, adapter))
    save_torch_state_dict(weights, folder)
