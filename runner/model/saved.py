"""A saved model and the one in memory.

Every weight must load again from its folder, and adapters are loaded onto a model.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.constants import FSDP_MODEL_NAME
from peft import (
    PeftConfig,
    PeftModel,
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from runner.errors import ConfigError, Fault, FolderError
from runner.model.model_files import ADAPTER, read_shapes

PROMPT_ENCODER = "prompt_encoder.safetensors"
# The files of weights in a checkpoint of a model that is not sharded.
WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors", PROMPT_ENCODER)
# The parts of weights' names that come from wrappers of layers.
OF_WRAPPERS = ("modules_to_save", "token_adapter", "_checkpoint_wrapped_module", "_orig_mod")


# --- Saved weights that are missing -------------------------------------------------------------


def find_missing(
    model: nn.Module, folder: Path, weights: Mapping[str, Tensor] | None = None
) -> list[str]:
    """The names of the weights that the files of a folder lack.

    Where it cannot be loaded at all, the reason is the only item.

    A whole model is loaded without its values, so that it is transformers that knows which weights
    are tied to others and which go by another name in a file. Of a backbone with a head beside it,
    the backbone is looked at. ``weights`` are all of the model where this process holds only a
    share.
    """
    try:
        if not isinstance(model, PreTrainedModel | PeftModel):
            model = model.base_model
        if isinstance(model, PeftModel):
            was_merged = (folder / "config.json").exists()
            if not was_merged:
                names = get_peft_model_state_dict(
                    model, weights, adapter_name="default", save_embedding_layers=False
                ).keys()
                shapes = read_shapes(folder / ADAPTER)
                saved = {name for name, shape in shapes.items() if all(shape)}
                return sorted(names - saved)
            model = model.get_base_model()
        # FSDP2 has made a subclass of the model's class in its place.
        kinds: list[Any] = [
            kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule)
        ]
        _, report = kinds[0].from_pretrained(folder, device_map="meta", output_loading_info=True)
        names = {name for name, _ in model.named_parameters()}
        return sorted(names.intersection(report["missing_keys"]))
    except (OSError, RuntimeError, ConfigError) as error:
        return [str(error).splitlines()[0]]


def find_unsaved(model: nn.Module, optimizer: Optimizer, checkpoint: Path) -> list[str]:
    """The names of the weights that an optimizer moves and that a checkpoint lacks.

    Only names are read.

    Where the optimizer has weights of its own in place of the model's, as DeepSpeed's has, these
    are all that are trained. Empty, too, for a checkpoint whose weights lie in files of DeepSpeed
    alone, which must be loaded for names.
    """
    saved = _saved_names(model, checkpoint)
    if not saved:
        return []
    adapters: set[str] = set()
    if isinstance(model, PeftModel):
        adapters = set(model.peft_config)
    plain_names = {_plain_name(name, adapters) for name in saved}
    moved: set[int] = set()
    for group in optimizer.param_groups:
        moved.update(map(id, group["params"]))
    weights = dict(model.named_parameters())
    trained = [name for name, weight in weights.items() if id(weight) in moved]
    if not trained:
        trained = [name for name, weight in weights.items() if weight.requires_grad]
    missing = [name for name in trained if _plain_name(name, adapters) not in plain_names]
    if missing and isinstance(model, PreTrainedModel):
        # transformers writes some weights under other names.
        unloaded = set(find_missing(model, checkpoint))
        missing = [name for name in missing if name in unloaded]
    return missing


def _saved_names(model: nn.Module, checkpoint: Path) -> set[str]:
    """The names of the weights in those files of a checkpoint from which a resume loads them."""
    sharded = checkpoint / f"{FSDP_MODEL_NAME}_0"
    if sharded.is_dir():
        names = FileSystemReader(sharded).read_metadata().state_dict_metadata
        # accelerate saves all of them below one key.
        return {name.removeprefix("model.") for name in names}
    whole = checkpoint / f"{FSDP_MODEL_NAME}.bin"
    if whole.is_file():
        return set(torch.load(whole, weights_only=True, mmap=True))  # no value is read
    folders = [checkpoint]
    folders += [checkpoint / adapter for adapter in getattr(model, "peft_config", ())]
    saved: set[str] = set()
    for folder in folders:
        for pattern in WEIGHTS:
            for file in folder.glob(pattern):
                saved.update(read_shapes(file))
    return saved


def _plain_name(name: str, adapters: Collection[str]) -> str:
    """The name of a weight without what peft and wrappers of layers put into it."""
    parts = [part for part in name.split(".") if part not in adapters and part not in OF_WRAPPERS]
    return ".".join(parts).replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


# --- Weights in shares --------------------------------------------------------------------------


def is_partitioned(model: PreTrainedModel | PeftModel) -> bool:
    """True for a model of which ZeRO-3 holds a share in each process."""
    return _are_partitioned(model.parameters())


def _are_partitioned(weights: Iterable[Tensor]) -> bool:
    return any(hasattr(weight, "ds_id") for weight in weights)


def whole_weights(*weights: Tensor) -> AbstractContextManager[None]:
    """Inside, weights that ZeRO-3 has in shares are whole in each process.

    What the first process changes is kept.
    """
    if not _are_partitioned(weights):
        return nullcontext()
    import deepspeed

    gathered: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
        weights, modifier_rank=0
    )
    return gathered


def gather_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor] | None:
    """All weights of a model on the CPU, for the process that keeps them.

    None where nothing has sharded them.

    All processes call it together, since each holds a share. Of what ZeRO-3 has in shares these are
    the trained ones.
    """
    if is_partitioned(model):
        trained = {}
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                trained[name] = weight
        with whole_weights(*trained.values()):
            copies = {}
            for name, weight in trained.items():
                copies[name] = weight.detach().cpu().clone()
            return copies
    weights = nn.Module.state_dict(model)  # all of them, whatever a class of its own would save
    if not any(isinstance(weight, DTensor) for weight in weights.values()):
        return None
    gathered = {}
    for name, weight in weights.items():
        # One at a time, because all of them together may not fit the memory of a device.
        if isinstance(weight, DTensor):
            weight = weight.full_tensor()
        if keep:
            gathered[name] = weight.cpu()
    return gathered


def hold_places(model: PreTrainedModel | PeftModel) -> None:
    """Give each weight on ``meta`` one zero that stands for all of its numbers.

    The process that has read the weights hands them out later.

    accelerate knows the weights of an optimizer by their addresses, which those on ``meta`` do not
    have.
    """
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.is_meta:
                zeros = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
                setattr(module, name, torch.nn.Parameter(zeros, weight.requires_grad))
    model.tie_weights()


# --- Saved weights onto a model -----------------------------------------------------------------


def load_adapter_weights(model: PreTrainedModel | PeftModel, folder: Path) -> PeftModel:
    """The model with the adapter of this folder on it.

    Where the model came with an adapter, that adapter's weights are replaced.

    The base is the one that the training loaded, whatever the folder says of it: a merged base is
    nowhere on disk.
    """
    if not isinstance(model, PeftModel):
        config = PeftConfig.from_pretrained(folder)
        return PeftModel.from_pretrained(model, folder, config=config, is_trainable=False)
    weights = load_peft_weights(str(folder), device=str(model.device))
    report = set_peft_model_state_dict(model, weights)
    if report.unexpected_keys:
        raise FolderError(
            Fault(
                where=str(folder),
                found=f"an adapter with {report.unexpected_keys[0]}, which the run's own adapter "
                "does not have",
                expected="the adapter that the run trains",
            )
        )
    return model
