"""Adapters in memory: checked before the trainer puts one on, and written afterwards.

The methods are those of peft; ``conf/peft`` lists them.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from peft import LoraConfig, PeftConfig, PeftModel, PeftType
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from runner.errors import ConfigError, Fault
from runner.io.temporary import temporarily
from runner.model.check_tuning import (
    find_pattern_faults,
    find_rank_faults,
    find_selection_faults,
    find_target_faults,
)
from runner.model.faults import second_adapter, untrained_tokens

Model: TypeAlias = PreTrainedModel | PeftModel

# Initialisations that move weights of the base into the adapter: with that switched off, it is
# another model.
BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
RANDOM = (PeftType.C3A, PeftType.VBLORA)  # these start from noise
TOKEN_ROWS = "trainable_token_indices"  # peft's name for the rows of tokens that LoRA trains


def changes_base(peft_config: PeftConfig | None) -> bool:
    """True where switching this adapter off leaves something else than the model it was put on."""
    initialisation = getattr(peft_config, "init_lora_weights", None)
    return isinstance(initialisation, str) and initialisation.lower().startswith(BASE_CHANGING)


def moves_start(peft_config: PeftConfig | None) -> bool:
    """True where this adapter answers unlike the base before the first step.

    The margin of a preference, or the KL, is then not zero at the start.
    """
    if peft_config is None:
        return False
    if peft_config.is_prompt_learning or peft_config.peft_type in RANDOM:
        return True
    lora_initialisation = getattr(peft_config, "init_lora_weights", True)
    return getattr(peft_config, "init_weights", lora_initialisation) is False


def loaded_config(model: nn.Module) -> PeftConfig | None:
    """The config of the adapter that the model came with, or None where it is a whole model."""
    return model.peft_config["default"] if isinstance(model, PeftModel) else None


def is_quantized(model: nn.Module) -> bool:
    """True where the weights are held in 4 or 8 bits."""
    return getattr(model.config, "quantization_config", None) is not None


# --- Before it is put on ------------------------------------------------------------------------


def check_adapter(model: Model, peft_config: PeftConfig | None) -> None:
    """Raise ConfigError with everything that keeps this adapter from being put on this model."""
    faults = []
    if peft_config is not None and loaded_config(model) is not None:
        faults.append(second_adapter())
    if is_quantized(model):
        adapter = peft_config or loaded_config(model)
        if adapter is None:
            fault = Fault(
                where="peft",
                found="weights of 4 or 8 bits cannot be trained",
                expected="an adapter on top of them",
                fix="peft=lora, or quant=none",
            )
            faults.append(fault)
        elif changes_base(adapter):
            initialisation = adapter.init_lora_weights
            fault = Fault(
                where="peft",
                found=f"{initialisation} rewrites the base, whose weights are rounded here",
                expected="an adapter that does not change the base",
                fix="=lora",
            )
            faults.append(fault)
    if peft_config is not None:
        faults += _find_method_faults(peft_config)
        faults += _find_module_faults(model, peft_config)
        faults += _find_parameter_faults(model, peft_config)
    ConfigError.refuse(faults)


def _find_method_faults(peft_config: PeftConfig) -> Iterator[Fault]:
    """Faults of methods that could not be resumed, or not be loaded as they were."""
    if peft_config.peft_type == PeftType.ADALORA:
        yield Fault(
            where="peft",
            found="AdaLoRA, whose ranks would never change, and whose checkpoints could not be "
            "resumed",
            expected="an adapter whose shape stays",
            fix="=lora",
        )
    initialisation = str(getattr(peft_config, "init_lora_weights", ""))
    if initialisation.startswith("pissa_niter"):
        found = f"{initialisation} draws at random, and again when the adapter is loaded"
        yield Fault(
            where="peft.init_lora_weights",
            found=f"{found}: another model",
            expected="an exact start",
            fix="=pissa",
        )


def _find_module_faults(model: nn.Module, peft_config: PeftConfig) -> Iterator[Fault]:
    """Faults of the layers that an adapter names, and of its rank, given the layers of a model."""
    targets = getattr(peft_config, "target_modules", None)
    if targets:
        modules = dict(model.named_modules())
        linear = set()
        for name, module in modules.items():
            # Conv1D is a linear layer of GPT-2.
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
                linear.add(name.rpartition(".")[2])
        yield from find_target_faults(targets, modules, linear)
        yield from find_selection_faults(vars(peft_config), modules)
    if isinstance(peft_config, LoraConfig):
        head = model.get_output_embeddings()
        largest = 0
        for module in model.modules():
            if isinstance(module, nn.Linear) and module is not head:
                largest = max(largest, module.in_features, module.out_features)
        yield from find_rank_faults(peft_config.r, peft_config.rank_pattern, largest)


def _find_parameter_faults(model: nn.Module, peft_config: PeftConfig) -> Iterator[Fault]:
    """A fault for each parameter that an adapter names and the model lacks; peft passes over it."""
    targets = getattr(peft_config, "target_parameters", None)
    if not targets:
        return
    weights = {f".{name}": weight for name, weight in model.named_parameters()}
    # What such adapters are made for: the weights of all experts of a layer in one tensor.
    experts = set()
    for name, weight in weights.items():
        if weight.ndim == 3:
            experts.add(".".join(name.split(".")[-3:]))
    for target in targets:
        if not any(name.endswith(f".{target}") for name in weights):
            candidates = sorted(experts or weights)[:3]
            examples = ",".join(name.lstrip(".") for name in candidates)
            yield Fault(
                where="peft.target_parameters",
                found=f"no weight of the model is called {target}",
                expected=f"such as {examples}",
                fix=f"=[{examples}]",
            )


def leave_out_routers(model: nn.Module, peft_config: PeftConfig) -> None:
    """Have an adapter of all linear layers leave out those that are more than linear.

    Such are the routers of experts, which peft cannot replace.
    """
    is_chosen = bool(getattr(peft_config, "exclude_modules", None))
    if getattr(peft_config, "target_modules", None) != "all-linear" or is_chosen:
        return
    routers = set()
    for name, module in model.named_modules():
        kind = type(module)
        is_own_class = kind.__module__.startswith("transformers.models.")
        # A class that is made otherwise than a linear layer; Falcon's only multiplies otherwise.
        if isinstance(module, nn.Linear) and is_own_class and "__init__" in vars(kind):
            routers.add(name.rpartition(".")[2])
    if routers:
        peft_config.exclude_modules = routers


# --- Layers and tokens beside it ----------------------------------------------------------------


def train_beside(model: PreTrainedModel, peft_config: PeftConfig, patterns: Sequence[str]) -> None:
    """Have an adapter train whole those layers in whose weights' names a pattern is found.

    They are saved with the adapter, and any peft loads them. A head that shares its weights with
    the embeddings stands for those. Raises ConfigError for what fits nothing, or cannot be trained
    whole.
    """
    if peft_config.is_prompt_learning or not hasattr(peft_config, "modules_to_save"):
        raise ConfigError(
            Fault(
                where="peft.full",
                found=f"{type(peft_config).__name__} trains no layer in full",
                expected="an adapter inside the layers",
                fix="peft=lora",
            )
        )
    weights = dict(model.named_parameters(remove_duplicate=False))
    embeddings = _embeddings(model)
    faults = list(find_pattern_faults("peft.full", patterns, list(weights), embeddings))
    layers: set[str] = set()
    for pattern in patterns:
        names = [name for name in weights if re.search(pattern, name)]
        rounded = [name for name in names if not weights[name].is_floating_point()]
        if rounded:
            faults.append(
                Fault(
                    where="peft.full",
                    found=f"{rounded[0]} is quantised",
                    expected=f"such as {', '.join(embeddings)}",
                )
            )
        layers |= {name.rpartition(".")[0] for name in names}
    ConfigError.refuse(faults)
    layers = _outermost(layers)
    if model.config.get_text_config().tie_word_embeddings and layers & set(embeddings):
        # The embeddings are trained, and what shares their weights follows.
        layers = layers - set(embeddings) | {embeddings[0]}
        if len(embeddings) > 1 and hasattr(peft_config, "ensure_weight_tying"):
            peft_config.ensure_weight_tying = True
    peft_config.modules_to_save = sorted({*(peft_config.modules_to_save or ()), *layers})


def _outermost(layers: set[str]) -> set[str]:
    """The layers that lie inside of no other, which they would be trained with."""
    outermost = set()
    for layer in layers:
        if not any(layer.startswith(f"{outer}.") for outer in layers):
            outermost.add(layer)
    return outermost


def train_tokens(
    model: Model, peft_config: PeftConfig | None, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Have an adapter train the rows of new tokens.

    Raises ConfigError where they would stay as they began.
    """
    complete_heads(model)
    new = set(getattr(tokenizer, "new_tokens", ()))
    new.discard(tokenizer.pad_token)  # which nobody learns to write
    if not new:
        return
    layers = _embeddings(model)
    if model.config.get_text_config().tie_word_embeddings:
        layers = layers[:1]
    trained = _trained_layers(model, peft_config, layers)
    untrained = []
    for layer in layers:
        _, _, last_name = layer.rpartition(".")
        if layer not in trained and last_name not in trained:
            untrained.append(layer)
    layers = untrained
    if not layers:
        return
    if not isinstance(peft_config, LoraConfig):
        kind = type(peft_config).__name__ if peft_config else "this part"
        raise ConfigError(untrained_tokens(kind=kind))
    if not getattr(peft_config, TOKEN_ROWS):
        ids = sorted(tokenizer.convert_tokens_to_ids(list(new)))
        rows = {layer.rpartition(".")[2]: ids for layer in layers}
        setattr(peft_config, TOKEN_ROWS, rows)


def _trained_layers(
    model: nn.Module, peft_config: PeftConfig | None, layers: Sequence[str]
) -> set[str]:
    """The layers that are trained anyway.

    These are those that an adapter names, or without an adapter those that are not frozen.
    """
    if peft_config is None:
        trained = set()
        for layer in layers:
            weights = model.get_submodule(layer).parameters()
            if any(weight.requires_grad for weight in weights):
                trained.add(layer)
        return trained
    names = set(getattr(peft_config, "modules_to_save", None) or ())
    targets = getattr(peft_config, "target_modules", None)
    if targets and not isinstance(targets, str):
        names |= set(targets)
    return names


def order_modules(model: nn.Module) -> None:
    """Have adapters list their modules in order.

    peft holds them in sets, which each process would write in another order.
    """
    for part in model.modules():
        if not isinstance(part, PeftModel):
            continue
        for adapter in part.peft_config.values():
            for name, value in vars(adapter).items():
                if isinstance(value, set):
                    setattr(adapter, name, sorted(value))


def complete_heads(model: nn.Module) -> None:
    """Give an output layer in which an adapter trains some rows a bias of None.

    TRL asks the layer for its bias, and the wrapper of peft has no such attribute.
    """
    for part in model.modules():
        if not isinstance(part, TrainableTokensWrapper):
            continue
        if getattr(part.original_module, "bias", None) is None:
            part.register_parameter("bias", None)


# --- Afterwards ---------------------------------------------------------------------------------


def merge_adapter(model: PeftModel) -> PreTrainedModel:
    """The base model with its adapter added to its weights.

    Sums are in float32, whatever the weights are in: peft would round what it adds before it adds
    it.
    """
    base = model.get_base_model()
    part_tied_layers(base)
    for layer in base.modules():
        if getattr(layer, "merged", False):
            continue
        inner = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer
        dtype = getattr(getattr(inner, "weight", None), "dtype", None)
        if inner is not layer and dtype in (torch.bfloat16, torch.float16):
            inner.float()
            layer.merge(safe_merge=True)
            inner.to(dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All adapters are already merged")
        return model.merge_and_unload(safe_merge=True)


def part_tied_layers(base: PreTrainedModel) -> None:
    """Give an output layer that shares its weights with the embeddings its own, if need be.

    That is where an adapter changes either: merged into shared weights, the change of one would be
    a change of both. peft notes in the config that they differ.
    """
    embeddings = base.get_input_embeddings()
    output = base.get_output_embeddings()
    are_adapted = isinstance(embeddings, BaseTunerLayer) or isinstance(output, BaseTunerLayer)
    if embeddings is not None and output is not None and are_adapted:
        output = _without_adapter(output)
        if _without_adapter(embeddings).weight is output.weight:
            output.weight = nn.Parameter(output.weight.detach().clone())


def quantise(
    model: PreTrainedModel, quantization_config: object, device_map: object
) -> PreTrainedModel:
    """The same model with quantised weights, as if it were loaded from a folder."""
    name = model.name_or_path
    quantised: PreTrainedModel = type(model).from_pretrained(
        None,
        config=model.config,
        state_dict=model.state_dict(),
        dtype=model.dtype,
        device_map=device_map,
        quantization_config=quantization_config,
    )
    quantised.name_or_path = name
    quantised.config._name_or_path = name
    if hasattr(model, "generation_config"):  # a score head generates nothing
        quantised.generation_config = model.generation_config
    return quantised


def _without_adapter(layer: nn.Module) -> nn.Module:
    return layer.base_layer if isinstance(layer, BaseTunerLayer) else layer


def write_adapter(
    model: PeftModel,
    folder: Path,
    *,
    base: str | None = None,
    revision: str | None = None,
    state_dict: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the adapter alone, as one of ``base``.

    ``state_dict`` has the weights where the model holds only a share of them.

    Left out are the reference "ref" of DPO, KTO and GRPO, and embeddings, about which peft would
    ask the hub.
    """
    base_fields = {}
    if base is not None:
        base_fields = {"base_model_name_or_path": base, "revision": revision}
    with temporarily(model.peft_config["default"], **base_fields):
        model.save_pretrained(
            str(folder),
            selected_adapters=["default"],
            save_embedding_layers=False,
            state_dict=state_dict,
        )


def _embeddings(model: PreTrainedModel) -> list[str]:
    """The names of the embedding layer and of the output layer, as far as there are any."""
    names = {id(module): name for name, module in model.named_modules()}
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    return [names[id(layer)] for layer in layers if layer is not None]
