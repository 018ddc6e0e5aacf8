"""A configuration -> its models without data: how many weights there are, which of them are trained, and their bytes.

What a pass through them costs is in ``simulation``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runner.forecast.simulation import Stage

# Bytes of a quantised weight beside its bits: one scale of 4 bytes for 64 weights, or with double quantisation one of
# 1 byte, and another of 4 for 256 of those.
SCALE, SCALE_OF_SCALES = 4 / 64, 1 / 64 + 4 / (64 * 256)


@dataclass(frozen=True)
class Source:
    """Where a model comes from: a path, or keys of an architecture; ``head`` is lm or score."""

    path: str = ""
    revision: str | None = None
    trust: bool = False
    head: str = "lm"
    architecture: Mapping[str, Any] | None = None


@dataclass
class Structure:
    """A model without data, in the precision it is loaded in, perhaps with an adapter.

    ``weights`` are bytes in memory, ``trained`` the numbers and bytes of the weights that are trained, ``largest`` the
    bytes of the largest weight that is dequantised, 0 where none is.
    """

    model: nn.Module
    count: int
    weights: int
    trained: int
    trained_bytes: int
    largest: int = 0

    @property
    def text(self) -> Any:
        return self.model.config.get_text_config()


def read_source(source: Source) -> Any:
    """The config of a model; only the small file of it is read."""
    from transformers import AutoConfig

    from runner.model.clone import read_config

    if source.architecture is not None:
        own = dict(source.architecture)
        return AutoConfig.for_model(own.pop("model_type"), **own)
    return read_config(source.path, source.revision, source.trust)


def build_structure(
    source: Source,
    *,
    dtype: str = "float32",
    attention: str | None = None,
    peft: Mapping[str, Any] | None = None,
    quant: Mapping[str, Any] | None = None,
    trained: bool = True,
) -> Structure:
    """The model of a source as a run would load it, with the adapter of a ``peft`` node; frozen unless ``trained``."""
    from runner.model.load import HEADS, read_adapter

    config = copy.deepcopy(read_source(source))
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if source.head == "score":
        config.num_labels = 1
    kind = (getattr(config, "dtype", None) or torch.float32) if dtype == "auto" else getattr(torch, dtype)
    how = {"attn_implementation": attention} if attention in ("eager", "sdpa") else {}
    with torch.device("meta"):
        made = HEADS[source.head].from_config(config, dtype=kind, trust_remote_code=source.trust, **how)
        model = made.requires_grad_(trained)
        adapter = read_adapter(source.path, source.revision) if source.path and peft is None else None
        if trained and (peft or adapter or quant):
            model = _adapted(model, peft, adapter, source.head)
    bits = _bits(quant)
    weights = {id(each): each for each in model.parameters()}.values()
    small = {id(part.weight) for name, part in made.named_modules() if bits and _is_quantised(name, part)}
    sizes = [each.numel() * (bits / 8 if id(each) in small else each.element_size()) for each in weights]
    learnt = [each for each in weights if each.requires_grad]
    return Structure(
        model,
        sum(each.numel() for each in weights),
        int(sum(sizes)),
        sum(each.numel() for each in learnt),
        sum(each.numel() * each.element_size() for each in learnt),
        max((each.numel() * each.element_size() for each in weights if id(each) in small), default=0),
    )


def _adapted(model: Any, peft: Mapping[str, Any] | None, adapter: Any, head: str) -> Any:
    """The model with the adapter on it that is configured, or that it came with; or with a part of it frozen."""
    from peft import get_peft_model

    from runner.tray.model import build_tuner

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
    return base and name.rpartition(".")[2] not in ("lm_head", "embed_out", "score")


def load_adapter_weights(stage: Stage, model: nn.Module, kind: torch.dtype | None = None) -> None:
    """Give the weights of a model that has none a place on a stage, shared ones one; all of one ``kind`` if given."""
    places: dict[int, torch.Tensor] = {}
    before = [each for part in model.modules() for each in (*part._parameters.values(), *part._buffers.values())]
    with stage.open():
        for part in model.modules():
            for held, make in ((part._parameters, nn.Parameter), (part._buffers, None)):
                for name, old in held.items():
                    if old is not None:
                        new = places.get(id(old))
                        if new is None:
                            dtype = kind if kind and old.is_floating_point() else old.dtype
                            new = torch.empty(old.shape, dtype=dtype)
                            new = make(new, requires_grad=old.requires_grad) if make else new
                            places[id(old)] = new
                        held[name] = new
    before.clear()  # until here they keep their numbers to themselves
