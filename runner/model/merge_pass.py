"""LoRA merged into its base layer by layer, in one forward pass that compares both models.

Weights of 16 bits stay so in memory: each layer is put into float32 while the pass is in it, where
the sum of base and adapter is taken, and rounded once behind it. So merging needs the memory of the
merged weights and of one layer, and each weight is widened once.

Letters at the end of a tensor's name are its shape: B texts, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel, PeftType
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from runner.model.adapter import merge_adapter, part_tied_layers
from runner.model.model_files import ModelFolder

HALF = (torch.bfloat16, torch.float16)
ROWS = 4096  # of an output layer that are in float32 at a time
STORED_TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # names of safetensors


def can_merge_in_pass(adapter: ModelFolder, base: ModelFolder, dtype: str) -> bool:
    """True for LoRA on a base that is stored in this type, for which a pass can merge it.

    The layers of such an architecture are called once each, on whole batches.
    """
    config = adapter.adapter or {}
    is_lora = config.get("peft_type") == PeftType.LORA.value
    return is_lora and base.is_plain and base.dtypes == {STORED_TYPES[dtype]}


@dataclass(frozen=True)
class MergedModel:
    """A model with its adapter merged into it, in the type of its base."""

    model: PreTrainedModel
    # In float32, before the weights were rounded.
    trained_logits: Tensor
    merged_logits: Tensor


def merge_in_pass(model: PeftModel, probe_BT: Tensor) -> MergedModel:
    """Merge the adapter of a model into it, and compare their logits of some texts."""
    base = model.get_base_model()
    part_tied_layers(base)
    layers = [layer for layer in base.modules() if isinstance(layer, BaseTunerLayer)]
    output = base.get_output_embeddings()
    adds_products = all(_is_product(layer) and layer is not output for layer in layers)
    merging = MergingPass(len(probe_BT), adds_products=adds_products)
    adapted: set[nn.Module] = set()
    for module in base.modules():
        if isinstance(module, BaseTunerLayer):
            merging.watch_adapted(module)
            adapted.add(module.get_base_layer())
        elif module not in adapted:
            merging.watch(module)
    try:
        both_BT = torch.cat([probe_BT, probe_BT])
        with torch.no_grad():
            logits = model(input_ids=both_BT, attention_mask=torch.ones_like(both_BT)).logits
    finally:
        for handle in merging.handles:
            handle.remove()
    trained, merged = logits.float().chunk(2)
    if not adds_products:
        return MergedModel(merge_adapter(model), trained, merged)
    for layer in layers:
        if layer not in merging.merged:
            merging.add_product(layer)
    return MergedModel(model.unload(), trained, merged)


def _is_product(layer: BaseTunerLayer) -> bool:
    """True where an adapter adds a product of two matrices to a linear layer, and nothing else."""
    if type(layer) is not Linear or type(layer.get_base_layer()) is not nn.Linear:
        return False
    is_more = layer.lora_variant or any(layer.lora_bias.values()) or layer.fan_in_fan_out
    return not is_more and len(layer.active_adapters) == 1


class MergingPass:
    """The hooks of a pass whose first rows go through the adapter, and the others through sums."""

    def __init__(self, rows: int, *, adds_products: bool):
        self.rows = rows  # of the probe
        self.adds_products = adds_products  # else peft merges the layers
        self.merged: set[nn.Module] = set()
        self.handles: list[Any] = []
        # The 16 bits of weights that are in float32 now.
        self.narrow: dict[nn.Parameter, Tensor] = {}

    def watch(self, module: nn.Module) -> None:
        """Have a module without an adapter compute in float32."""
        if isinstance(module, nn.Embedding):
            # Its rows are picked, and no sum is taken.
            self.handles.append(module.register_forward_hook(_widen_output))
            return
        if not any(weight.dtype in HALF for weight in module.parameters(False)):
            return
        if type(module) is nn.Linear:
            self.handles.append(module.register_forward_pre_hook(self._take_a_row))
            self.handles.append(module.register_forward_hook(self._compute_in_parts))
        else:
            self.handles.append(module.register_forward_pre_hook(self._widen))
            self.handles.append(module.register_forward_hook(self._restore))

    def watch_adapted(self, layer: BaseTunerLayer) -> None:
        """Have a layer with an adapter merge it, and go on with both outputs."""
        inner = layer.get_base_layer()

        def widen(layer: nn.Module, args: object) -> None:
            self._widen(inner, args)

        def merge(
            layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
        ) -> Tensor:
            inputs, *others = args
            if self.adds_products:
                self._add_product(layer)
                merged_output = inner.forward(inputs[self.rows :])
            else:
                layer.merge()
                merged_output = layer.forward(inputs[self.rows :], *others, **kwargs)
            self.merged.add(layer)
            self._round(inner)
            return torch.cat([output[: self.rows], merged_output])

        self.handles.append(layer.register_forward_pre_hook(widen))
        self.handles.append(layer.register_forward_hook(merge, with_kwargs=True))

    def add_product(self, layer: BaseTunerLayer) -> None:
        """Merge a layer outside of the pass."""
        inner = layer.get_base_layer()
        self._widen(inner, ())
        self._add_product(layer)
        self._round(inner)

    def _add_product(self, layer: BaseTunerLayer) -> None:
        """Add the product of an adapter to the weights at once, without a matrix of their size."""
        (name,) = layer.active_adapters
        first = layer.lora_A[name].weight.data.float()
        second = layer.lora_B[name].weight.data.float()
        layer.get_base_layer().weight.data.addmm_(second, first, alpha=layer.scaling[name])

    def _round(self, module: nn.Module) -> None:
        """Round widened weights in their place.

        So the pages of the file of the base become those of the merged weights.
        """
        for weight in module.parameters(False):
            if weight in self.narrow:
                rounded = self.narrow.pop(weight)
                weight.data = rounded.copy_(weight.data)

    def _widen(self, module: nn.Module, args: object) -> None:
        for weight in module.parameters(False):
            if weight.dtype in HALF:
                self.narrow[weight] = weight.data
                weight.data = weight.data.float()

    def _restore(self, module: nn.Module, args: object, output: object) -> None:
        for weight in module.parameters(False):
            if weight in self.narrow:
                weight.data = self.narrow.pop(weight)

    def _take_a_row(self, module: nn.Linear, args: object) -> None:
        """Leave one row for the module's own product, whose output is not taken."""
        for weight in module.parameters(False):
            self.narrow[weight] = weight.data
            weight.data = weight.data[:1].float()

    def _compute_in_parts(
        self, module: nn.Linear, args: tuple[Tensor, ...], output: object
    ) -> Tensor:
        """The product in float32, a few rows of the weights at a time: an output layer is large."""
        self._restore(module, args, output)
        outputs = [
            nn.functional.linear(args[0], rows.float()) for rows in module.weight.split(ROWS)
        ]
        result = torch.cat(outputs, -1)
        if module.bias is not None:
            result += module.bias.float()
        return result


def _widen_output(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return output.float()
