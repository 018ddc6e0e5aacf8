"""The reference model: the policy as it is before the first step, frozen.

Trainers that are handed none find their own, and not always the right one:

- DPO, KTO, GRPO and RLOO load a whole model again from ``config.name_or_path``: the weights on disk
  rather than those in memory, of whatever revision is the default.
- With an adapter they switch it off, or keep a copy of one that came with the model. Switched off
  is the start model, except where putting the adapter on has changed the base.
"""

import copy

import torch
from peft import PeftConfig, PeftModel
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, Trainer

from runner.errors import ConfigError, fault
from runner.model.adapter import changes_base, loaded_config
from runner.model.saved import whole_weights
from runner.schema import upstream


def needs_reference(model: PreTrainedModel | PeftModel, peft_config: PeftConfig | None, *, precomputed: bool) -> bool:
    """True where a trainer would find a wrong reference; a whole model is its own if all is ``precomputed`` first."""
    adapter, came = peft_config or loaded_config(model), loaded_config(model)
    if came and came == adapter and getattr(came, "trainable_token_indices", None):
        return True  # the trainer's copy of the adapter lacks the rows of tokens
    return not precomputed if adapter is None else changes_base(adapter)


def copy_reference(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """A frozen copy of the model before an adapter is put on it; one that it came with is merged into the copy."""
    places = (weight for weight in model.parameters() if weight.numel() > 1 and not any(weight.stride()))
    # A clone of what ``hold_places`` made would be whole, and FSDP2 takes no weight that overlaps itself.
    empty = {id(weight): torch.nn.Parameter(torch.empty_like(weight, device="meta").contiguous()) for weight in places}
    reference = copy.deepcopy(model, empty)
    reference = reference.merge_and_unload() if isinstance(reference, PeftModel) else reference
    return reference.requires_grad_(False).eval()


@torch.no_grad()
def match_reference(trainer: Trainer) -> list[str]:
    """Make the reference of a built trainer, as GRPO's, equal to its policy; gives the names of weights that differed.

    Each shard gets its own part. Raises ConfigError where an adapter that has changed the base would be switched off.
    """
    model, reference = trainer.model, getattr(trainer, upstream.REF_MODEL, None)
    if isinstance(model, PeftModel):
        penalizes_kl = hasattr(trainer, upstream.REF_MODEL) and bool(getattr(trainer, "beta", 0))
        if reference is None and changes_base(loaded_config(model)) and penalizes_kl:
            raise ConfigError(fault("model.no_start_model", trainer=type(trainer).__name__))
        for name, weight in (weights := dict(model.named_parameters())).items():
            twin = weights.get(f"{name.removesuffix('default')}ref") if name.endswith(".default") else None
            if twin is not None:  # rows of tokens, likewise
                twin.copy_(weight)
        return []
    if reference is None:
        return []
    whole = trainer.accelerator.unwrap_model(reference, keep_torch_compile=False)
    if any(weight.is_meta for weight in reference.parameters()):  # another process of this machine has read them
        buffers = {name: buffer.clone() for name, buffer in whole.named_buffers() if not buffer.is_meta}
        reference.to_empty(device=trainer.accelerator.device)
        for name, buffer in buffers.items():
            whole.get_buffer(name).copy_(buffer)
    held, different = dict(whole.named_parameters()), []
    for name, weight in model.named_parameters():
        own = held[name]
        with whole_weights(own, weight):
            if isinstance(own, DTensor):
                weight = distribute_tensor(weight.to(own.device), own.device_mesh, own.placements)
            local, wanted = (each.to_local() if isinstance(each, DTensor) else each for each in (own, weight))
            if not torch.equal(local, wanted.to(local.device)):
                different.append(name)
                local.copy_(wanted)
    return different
