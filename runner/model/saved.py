"""A saved model and the one in memory: every weight must load again from its folder, and some are loaded onto it."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.constants import FSDP_MODEL_NAME
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from runner.errors import ConfigError, FolderError, fault
from runner.model.folder import ADAPTER, read_shapes

PROMPT_ENCODER = "prompt_encoder.safetensors"
# In a checkpoint of a model that is not sharded.
WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors", PROMPT_ENCODER)
OF_WRAPPERS = ("modules_to_save", "token_adapter", "_checkpoint_wrapped_module", "_orig_mod")


def find_missing(model: nn.Module, folder: Path, weights: Mapping[str, Any] | None = None) -> list[str]:
    """The names of the weights that the files of a folder lack, or what keeps it from being loaded at all.

    A whole model is loaded without its values, so that it is transformers that knows which weights are tied to others
    and which go by another name in a file. Of a backbone with a head beside it, the backbone is looked at. ``weights``
    are all of the model where this process holds only a share.
    """
    try:
        model = model if isinstance(model, PreTrainedModel | PeftModel) else model.base_model
        if isinstance(model, PeftModel) and not (folder / "config.json").exists():  # else it was merged
            known = get_peft_model_state_dict(model, weights, adapter_name="default", save_embedding_layers=False)
            return sorted(known.keys() - {name for name, shape in read_shapes(folder / ADAPTER).items() if all(shape)})
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        kind: Any = next(each for each in type(base).__mro__ if not issubclass(each, FSDPModule))
        _, loaded = kind.from_pretrained(folder, device_map="meta", output_loading_info=True)
        return sorted(set(loaded["missing_keys"]) & {name for name, _ in base.named_parameters()})
    except (OSError, RuntimeError, ConfigError) as error:
        return [str(error).splitlines()[0]]


def find_unsaved(model: nn.Module, optimizer: Optimizer, checkpoint: Path) -> list[str]:
    """The names of the weights that an optimizer moves and that a checkpoint lacks; only names are read.

    Where the optimizer has weights of its own in place of the model's, as DeepSpeed's has, these are all that are
    trained. Empty, too, for a checkpoint whose weights lie in files of DeepSpeed alone, which must be loaded for names.
    """
    saved = _saved_names(model, checkpoint)
    if not saved:
        return []
    weights = dict(model.named_parameters())
    moved = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    trained = [name for name, weight in weights.items() if id(weight) in moved]
    trained = trained or [name for name, weight in weights.items() if weight.requires_grad]
    adapters = set(model.peft_config) if isinstance(model, PeftModel) else set()
    plain = {_plain_name(name, adapters) for name in saved}
    missing = [name for name in trained if _plain_name(name, adapters) not in plain]
    if missing and isinstance(model, PreTrainedModel):  # transformers writes some weights under other names
        unloaded = {*find_missing(model, checkpoint)}
        missing = [name for name in missing if name in unloaded]
    return missing


def _saved_names(model: nn.Module, checkpoint: Path) -> set[str]:
    """The names of the weights in those files of a checkpoint from which a resume loads them."""
    sharded, whole = checkpoint / f"{FSDP_MODEL_NAME}_0", checkpoint / f"{FSDP_MODEL_NAME}.bin"
    if sharded.is_dir():
        names = FileSystemReader(sharded).read_metadata().state_dict_metadata
        return {name.removeprefix("model.") for name in names}  # the key under which accelerate saves all of them
    if whole.is_file():
        return {*torch.load(whole, weights_only=True, mmap=True)}  # no value is read
    folders = [checkpoint, *(checkpoint / name for name in getattr(model, "peft_config", ()))]
    files = [path for folder in folders for kind in WEIGHTS for path in folder.glob(kind)]
    return {name for path in files for name in read_shapes(path)}


def _plain_name(name: str, adapters: Collection[str]) -> str:
    """The name of a weight without what peft and wrappers of layers put into it."""
    parts = [part for part in name.split(".") if part not in adapters and part not in OF_WRAPPERS]
    return ".".join(parts).replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def is_partitioned(model: PreTrainedModel | PeftModel) -> bool:
    """True for a model of which ZeRO-3 holds a share in each process."""
    return any(hasattr(weight, "ds_id") for weight in model.parameters())


def whole_weights(*weights: Tensor) -> AbstractContextManager[None]:
    """Inside, weights that ZeRO-3 has in shares are whole in each process; what the first one changes is kept."""
    if not any(hasattr(weight, "ds_id") for weight in weights):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(weights, modifier_rank=0)


def gather_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor] | None:
    """All weights of a model on the CPU, for the process that keeps them; None where nothing has sharded them.

    All processes call it together, since each holds a share. Of what ZeRO-3 has in shares these are the trained ones.
    """
    if is_partitioned(model):
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        with whole_weights(*trained.values()):
            return {name: weight.detach().cpu().clone() for name, weight in trained.items()}
    weights = nn.Module.state_dict(model)  # all of them, whatever a class of its own would save
    if not any(isinstance(weight, DTensor) for weight in weights.values()):
        return None
    whole = ((name, each.full_tensor() if isinstance(each, DTensor) else each) for name, each in weights.items())
    return {name: weight.cpu() for name, weight in whole if keep}


def load_adapter_weights(model: PreTrainedModel | PeftModel, folder: Path) -> PeftModel:
    """The model with the adapter of this folder on it; where it came with one, with that adapter's weights replaced.

    The base is the one that the training loaded, whatever the folder says of it: a merged base is nowhere on disk.
    """
    if not isinstance(model, PeftModel):
        return PeftModel.from_pretrained(model, folder, config=PeftConfig.from_pretrained(folder), is_trainable=False)
    loaded = set_peft_model_state_dict(model, load_peft_weights(str(folder), device=str(model.device)))
    if loaded.unexpected_keys:
        raise FolderError(fault("model.other_adapter", folder=folder, key=loaded.unexpected_keys[0]))
    return model
