"""Checks of an adapter before the trainer puts it on, and writing it afterwards; ``conf/peft`` lists peft's."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from peft import LoraConfig, PeftConfig, PeftModel, PeftType
from peft.utils.other import TrainableTokensWrapper
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from runner.errors import ConfigError, fault
from runner.io.temporary import temporarily
from runner.model.check import (
    find_pattern_faults,
    find_rank_faults,
    find_selection_faults,
    find_target_faults,
)

Model: TypeAlias = PreTrainedModel | PeftModel

# Initialisations that move weights of the base into the adapter: with that switched off, it is another model.
BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
RANDOM = (PeftType.C3A, PeftType.VBLORA)  # these start from noise
OWN = ("full",)  # keys of the group that are not the adapter's


def changes_base(peft_config: PeftConfig | None) -> bool:
    """True where switching this adapter off leaves something else than the model it was put on."""
    how = getattr(peft_config, "init_lora_weights", None)
    return isinstance(how, str) and how.lower().startswith(BASE_CHANGING)


def moves_start(peft_config: PeftConfig | None) -> bool:
    """True where this adapter answers unlike the base before the first step, whose margin or KL then is not zero."""
    if peft_config is None:
        return False
    how = getattr(peft_config, "init_weights", getattr(peft_config, "init_lora_weights", True))
    return peft_config.is_prompt_learning or how is False or peft_config.peft_type in RANDOM


def loaded_config(model: nn.Module) -> PeftConfig | None:
    """The config of the adapter that the model came with, or None where it is a whole model."""
    return model.peft_config["default"] if isinstance(model, PeftModel) else None


def is_quantized(model: nn.Module) -> bool:
    """True where the weights are held in 4 or 8 bits."""
    return getattr(model.config, "quantization_config", None) is not None


def check_adapter(model: Model, peft_config: PeftConfig | None) -> None:
    """Raise ConfigError with everything that keeps this adapter from being put on this model."""
    faults = []
    if peft_config is not None and loaded_config(model) is not None:
        faults.append(fault("model.second_adapter"))
    if is_quantized(model):
        adapter = peft_config or loaded_config(model)
        if adapter is None:
            faults.append(fault("model.rounded_without_adapter"))
        elif changes_base(adapter):
            faults.append(fault("model.rounded_and_rewritten", start=adapter.init_lora_weights))
    if getattr(peft_config, "peft_type", None) == PeftType.ADALORA:
        faults.append(fault("model.adalora"))
    how = str(getattr(peft_config, "init_lora_weights", ""))
    if how.startswith("pissa_niter"):
        faults.append(fault("model.random_start", start=how))
    if targets := getattr(peft_config, "target_modules", None):
        parts = dict(model.named_modules())
        kinds = {name: "Linear" if isinstance(part, nn.Linear) else type(part).__name__ for name, part in parts.items()}
        linear = {name.rpartition(".")[2] for name, kind in kinds.items() if kind in ("Linear", "Conv1D")}
        faults += find_target_faults(targets, parts, linear)
        faults += find_selection_faults(vars(peft_config), parts)
    if isinstance(peft_config, LoraConfig):
        head = model.get_output_embeddings()
        linear_layers = [part for part in model.modules() if isinstance(part, nn.Linear) and part is not head]
        sizes = [size for layer in linear_layers for size in (layer.in_features, layer.out_features)]
        faults += find_rank_faults(peft_config.r, peft_config.rank_pattern, sizes)
    weights = {f".{name}": weight for name, weight in model.named_parameters()}
    for target in getattr(peft_config, "target_parameters", None) or ():  # of which peft passes over what is not there
        if not any(name.endswith(f".{target}") for name in weights):
            experts = {".".join(name.split(".")[-3:]) for name, weight in weights.items() if weight.ndim == 3}
            there = ",".join(name.lstrip(".") for name in sorted(experts or weights)[:3])
            faults.append(fault("model.no_such_parameter", target=target, there=there))
    ConfigError.refuse(faults)


def leave_out_routers(model: nn.Module, peft_config: PeftConfig) -> None:
    """Have an adapter of all linear layers leave out those that are more than linear, such as routers of experts."""
    # They are of classes that are made otherwise than a linear layer; Falcon's only multiplies otherwise.
    linear = [(name, type(part)) for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    own = [(name, kind) for name, kind in linear if kind.__module__.startswith("transformers.models.")]
    routers = {name.rpartition(".")[2] for name, kind in own if "__init__" in vars(kind)}
    if routers and getattr(peft_config, "target_modules", None) == "all-linear" and not peft_config.exclude_modules:
        peft_config.exclude_modules = routers


def train_beside(model: PreTrainedModel, peft_config: PeftConfig, patterns: Sequence[str]) -> None:
    """Have an adapter train some layers whole: those in the names of whose weights a pattern is found.

    They are saved with the adapter, and any peft loads them. A head that shares its weights with the embeddings stands
    for those. Raises ConfigError for what fits nothing, or cannot be trained whole.
    """
    if peft_config.is_prompt_learning or not hasattr(peft_config, "modules_to_save"):
        raise ConfigError(fault("model.no_whole_layers", adapter=type(peft_config).__name__))
    layers, weights = set(), dict(model.named_parameters(remove_duplicate=False))
    faults = list(find_pattern_faults("peft.full", patterns, [*weights], _embeddings(model)))
    for pattern in patterns:
        fitting = [name for name in weights if re.search(pattern, name)]
        if rounded := [name for name in fitting if not weights[name].is_floating_point()]:
            faults.append(fault("model.whole_and_rounded", layer=rounded[0], examples=", ".join(_embeddings(model))))
        layers |= {name.rpartition(".")[0] for name in fitting}
    ConfigError.refuse(faults)
    # One that lies inside of another is trained with it.
    layers = {each for each in layers if not any(each.startswith(f"{other}.") for other in layers)}
    source, *shared = _embeddings(model) if model.config.get_text_config().tie_word_embeddings else [""]
    if layers & {source, *shared}:
        layers = layers - set(shared) | {source}
        if shared and hasattr(peft_config, "ensure_weight_tying"):
            peft_config.ensure_weight_tying = True
    peft_config.modules_to_save = sorted({*(peft_config.modules_to_save or ()), *layers})


def train_tokens(model: Model, peft_config: PeftConfig | None, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have an adapter train the rows of new tokens; raises ConfigError where they would stay as they began."""
    new = {*getattr(tokenizer, "new_tokens", ())} - {tokenizer.pad_token}  # which nobody learns to write
    parts, tied = dict(model.named_modules()), model.config.get_text_config().tie_word_embeddings
    layers = _embeddings(model)[: 1 if tied else None] if new else []
    complete_heads(model)
    if peft_config is None:
        trained = {layer for layer in layers if any(weight.requires_grad for weight in parts[layer].parameters())}
    else:
        targets, saved = (getattr(peft_config, name, None) or () for name in ("target_modules", "modules_to_save"))
        trained = {*saved, *(() if isinstance(targets, str) else targets)}
    layers = [layer for layer in layers if not {layer, layer.rpartition(".")[2]} & trained]
    if layers and not isinstance(peft_config, LoraConfig):
        kind = type(peft_config).__name__ if peft_config else "this part"
        raise ConfigError(fault("model.untrained_tokens", kind=kind))
    if layers and not getattr(peft_config, rows := "trainable_token_indices"):
        ids = sorted(tokenizer.convert_tokens_to_ids([*new]))
        setattr(peft_config, rows, {layer.rpartition(".")[2]: ids for layer in layers})


def order_modules(model: nn.Module) -> None:
    """Have adapters list their modules in order: peft holds sets, which each process would write in another one."""
    for part in model.modules():
        for adapter in part.peft_config.values() if isinstance(part, PeftModel) else ():
            for name, value in vars(adapter).items():
                if isinstance(value, set):
                    setattr(adapter, name, sorted(value))


def complete_heads(model: nn.Module) -> None:
    """Give an output layer in which an adapter trains some rows the bias that it has none of, which TRL asks it for."""
    for part in model.modules():
        if isinstance(part, TrainableTokensWrapper) and getattr(part.original_module, "bias", None) is None:
            part.register_parameter("bias", None)


def write_adapter(
    model: PeftModel, folder: Path, *, base: str | None = None, revision: str | None = None, state_dict: Any = None
) -> None:
    """Write the adapter alone, as one of ``base``; ``state_dict`` has weights of which the model holds only a share.

    Left out are the reference "ref" of DPO, KTO and GRPO, and embeddings, about which peft would ask the hub.
    """
    named = {} if base is None else {"base_model_name_or_path": base, "revision": revision}
    how = {"selected_adapters": ["default"], "save_embedding_layers": False, "state_dict": state_dict}
    with temporarily(model.peft_config["default"], **named):
        model.save_pretrained(str(folder), **how)


def _embeddings(model: PreTrainedModel) -> list[str]:
    parts = filter(None, (model.get_input_embeddings(), model.get_output_embeddings()))
    names = {id(part): name for name, part in model.named_modules()}
    return [names[id(part)] for part in parts]
