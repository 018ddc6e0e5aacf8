"""A configuration -> its models without data: how many weights there are, which are trained, their bytes and shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from runner.model.clone import Source, auto_class_of

# Bytes of a quantised weight beside its bits: one scale of 4 bytes for 64 weights, or with double quantisation one of
# 1 byte, and another of 4 for 256 of those.
SCALE, SCALE_OF_SCALES = 4 / 64, 1 / 64 + 4 / (64 * 256)
NOT_QUANTISED = ("lm_head", "embed_out", "score")


@dataclass(frozen=True)
class Shape:
    """Sizes by which the cost of a pass grows: ``width`` is that of all that enters and leaves the matrices of a layer.

    ``weights`` are those that a token is multiplied with, without embeddings and head.
    """

    layers: int
    hidden: int
    heads: int
    width: float
    weights: float

    @staticmethod
    def of(model: PreTrainedModel) -> Shape:
        text = model.config.get_text_config()
        chosen = getattr(text, "num_experts_per_tok", None)
        width = weights = 0.0
        for part in next(trunks_of(model)).modules():
            matrices = [each for each in part.parameters(recurse=False) if each.dim() > 1]
            for each in matrices if not isinstance(part, nn.Embedding) else ():
                experts = min(chosen or len(each), len(each)) if each.dim() == 3 else 1
                width += experts * sum(each.shape[-2:])
                weights += experts * each.shape[-1] * each.shape[-2]
        layers = max(1, getattr(text, "num_hidden_layers", 1))
        heads = getattr(text, "num_attention_heads", None) or 1
        return Shape(layers, text.hidden_size, heads, width / layers, weights)

    @staticmethod
    def of_source(source: Source) -> Shape:
        with torch.device("meta"):
            config = source.config()
            return Shape.of(auto_class_of(config).from_config(config, trust_remote_code=source.trust))


def trunks_of(model: nn.Module) -> Iterator[PreTrainedModel]:
    """The models inside a model that hold its layers and no further model."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and sum(isinstance(each, PreTrainedModel) for each in part.modules()) == 1:
            yield part


class Weights:
    """The weights of a source as a run loads it, with the adapter of a ``peft`` node; frozen unless ``trained``.

    ``bytes`` are those in memory, ``trained`` the numbers and bytes of the weights that are trained, ``largest`` the
    bytes of the largest weight that is dequantised, 0 where none is. ``head_bytes`` are those of a vocabulary's head.
    """

    def __init__(
        self,
        source: Source,
        *,
        dtype: str = "float32",
        peft: Mapping[str, Any] | None = None,
        quant: Mapping[str, Any] | None = None,
        trained: bool = True,
    ):
        from runner.model.load import HEADS, read_adapter

        config = copy.deepcopy(source.config())
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        if source.head == "score":
            config.num_labels = 1
        kind = (getattr(config, "dtype", None) or torch.float32) if dtype == "auto" else getattr(torch, dtype)
        with torch.device("meta"):
            made = HEADS[source.head].from_config(config, dtype=kind, trust_remote_code=source.trust)
            self.model, self.shape = made.requires_grad_(trained), Shape.of(made)
            adapter = read_adapter(source.path, source.revision) if source.path and peft is None else None
            if trained and (peft or adapter or quant):
                self.model = _adapted(made, peft, adapter, source.head)
        bits, head = _bits(quant), made.get_output_embeddings()
        weights = {id(each): each for each in self.model.parameters()}.values()
        small = {id(part.weight) for name, part in made.named_modules() if bits and _is_quantised(name, part)}
        learnt = [each for each in weights if each.requires_grad]
        self.count = sum(each.numel() for each in weights)
        self.bytes = int(sum(each.numel() * bits / 8 if id(each) in small else each.nbytes for each in weights))
        self.largest = max((each.nbytes for each in weights if id(each) in small), default=0)
        self.trained, self.trained_bytes = sum(each.numel() for each in learnt), sum(each.nbytes for each in learnt)
        self.trained_sizes = [each.shape for each in learnt]
        self.text, self.is_adapted = config.get_text_config(), hasattr(self.model, "peft_config")
        self.head_bytes = 0 if head is None else head.weight.nbytes
        self.head_is_trained = head is not None and any(each.requires_grad for each in head.parameters())
        self.is_tied = head is not None and head.weight is made.get_input_embeddings().weight
        self.dtype = kind


def _adapted(model: Any, peft: Mapping[str, Any] | None, adapter: Any, head: str) -> Any:
    """The model with the adapter on it that is configured, or that it came with; or with a part of it frozen."""
    from peft import get_peft_model

    from runner.training.build.model import build_tuner

    changed, config = build_tuner(peft, model, head)
    config = config or copy.deepcopy(adapter)
    if config is None:
        return changed
    config.inference_mode = False
    if isinstance(getattr(config, "init_lora_weights", None), str):
        config.init_lora_weights = True  # of the same size, without taking weights apart that are not there
    return get_peft_model(changed, config)


def _bits(quant: Mapping[str, Any] | None) -> float:
    """Bits that a quantised weight takes with its scales; 0 where none is."""
    if not quant:
        return 0
    if quant.get("load_in_8bit"):
        return 8
    return 4 + 8 * (SCALE_OF_SCALES if quant.get("bnb_4bit_use_double_quant") else SCALE)


def _is_quantised(name: str, part: nn.Module) -> bool:
    base = isinstance(part, nn.Linear) and "lora_" not in name and "modules_to_save" not in name
    return base and name.rpartition(".")[2] not in NOT_QUANTISED
