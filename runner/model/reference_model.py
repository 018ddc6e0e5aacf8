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
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, Trainer

from runner.errors import ConfigError, Fault
from runner.model.adapter import changes_base, loaded_config, merge_adapter
from runner.model.saved import whole_weights


def needs_reference(
    model: PreTrainedModel | PeftModel, peft_config: PeftConfig | None, *, precomputed: bool
) -> bool:
    """True where a trainer would find a wrong reference.

    A whole model is its own if all of its likelihoods are ``precomputed``.
    """
    own_config = loaded_config(model)
    adapter = peft_config or own_config
    if own_config and own_config == adapter:
        if getattr(own_config, "trainable_token_indices", None):
            return True  # the trainer's copy of the adapter lacks the rows of tokens
    if adapter is None:
        return not precomputed
    return changes_base(adapter)


def copy_reference(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """A frozen copy of the model before an adapter is put on it.

    An adapter that the model came with is merged into the copy.
    """
    # A clone of a weight that ``hold_places`` made would be whole, and FSDP2 takes no weight that
    # overlaps itself: the copy has such weights on ``meta``.
    copied: dict[int, object] = {}
    for weight in model.parameters():
        if weight.numel() > 1 and not any(weight.stride()):
            empty = torch.empty_like(weight, device="meta").contiguous()
            copied[id(weight)] = nn.Parameter(empty)
    reference = copy.deepcopy(model, copied)
    if isinstance(reference, PeftModel):
        reference = merge_adapter(reference)
    return reference.requires_grad_(False).eval()


def match_reference(trainer: Trainer) -> list[str]:
    """Make the reference of a built trainer, as GRPO's, equal to its policy.

    Returns the names of the weights that differed.

    Each shard gets its own part. Raises ConfigError where an adapter that has changed the base
    would be switched off.
    """
    model = trainer.model
    reference = getattr(trainer, "ref_model", None)
    with torch.no_grad():
        if isinstance(model, PeftModel):
            # The trainer would switch off an adapter that has changed the base.
            penalizes_kl = hasattr(trainer, "ref_model") and bool(getattr(trainer, "beta", 0))
            if reference is None and penalizes_kl and changes_base(loaded_config(model)):
                name = type(trainer).__name__
                raise ConfigError(
                    Fault(
                        where="peft",
                        found=f"{name} cannot recover the start model from below this adapter",
                        expected="an adapter that leaves the base as it is, or no KL",
                        fix="peft=lora, or kl_coef=0",
                    )
                )
            # A trainer leaves the rows of tokens out of its copy "ref" of an adapter.
            weights = dict(model.named_parameters())
            for name, weight in weights.items():
                twin = weights.get(f"{name.removesuffix('default')}ref")
                if name.endswith(".default") and twin is not None:
                    twin.copy_(weight)
            return []
        if reference is None:
            return []
        unwrapped = trainer.accelerator.unwrap_model(reference, keep_torch_compile=False)
        if any(weight.is_meta for weight in reference.parameters()):
            # Another process of this machine has read the weights.
            _give_memory(reference, unwrapped, trainer.accelerator.device)
        return _copy_weights(model, unwrapped)


def _give_memory(reference: nn.Module, unwrapped: nn.Module, device: torch.device) -> None:
    """Have a reference on ``meta`` hold weights on a device, without values.

    Its buffers stay as they are.
    """
    buffers = {}
    for name, buffer in unwrapped.named_buffers():
        if not buffer.is_meta:
            buffers[name] = buffer.clone()
    reference.to_empty(device=device)
    for name, buffer in buffers.items():
        unwrapped.get_buffer(name).copy_(buffer)


def _copy_weights(model: nn.Module, reference: nn.Module) -> list[str]:
    """Copy the weights of a model into a reference, which may be sharded.

    Returns the names of the weights that differed.
    """
    twins = dict(reference.named_parameters())
    different = []
    for name, weight in model.named_parameters():
        twin = twins[name]
        with whole_weights(twin, weight):
            if isinstance(twin, DTensor):
                weight = weight.to(twin.device)
                weight = distribute_tensor(weight, twin.device_mesh, twin.placements)
            twin_shard = _local_part(twin)
            shard = _local_part(weight).to(twin_shard.device)
            if not torch.equal(twin_shard, shard):
                different.append(name)
                twin_shard.copy_(shard)
    return different


def _local_part(weight: Tensor) -> Tensor:
    """The part of a weight that this process holds."""
    if not isinstance(weight, DTensor):
        return weight
    return weight.to_local()
