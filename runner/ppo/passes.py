"""Passes of the models over a rollout: its micro-batches, and the kernels that run them.

Each function takes the PPOTrainer, of which it reads only what is public.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from transformers import Trainer

from runner.generate.padding import TOKENS_PER_PASS
from runner.ppo.batching import MicroBatch, own_kernels
from runner.ppo.rollout import Rollout


def micro_batches(
    trainer: Trainer, rollout: Rollout, rows: Sequence[int] | None = None
) -> list[MicroBatch]:
    """Some rows of a rollout, else all, as many in each pass as the budget of tokens allows."""
    budget = trainer.args.max_tokens_per_micro_batch
    if not budget:
        on_cpu = trainer.args.device.type == "cpu"
        budget = TOKENS_PER_PASS if on_cpu else trainer.rows_per_pass * max(rollout.lengths)
    if rows is None:
        rows = range(len(rollout.sequences))
    agree = trainer.largest_count if trainer.is_fsdp_enabled else None
    return rollout.micro_batches(rows, budget, padding_free=trainer.padding_free, agree=agree)


def is_in_float32(trainer: Trainer) -> bool:
    """True where neither the weights of the policy nor autocast round its passes to 16 bits."""
    args = trainer.args
    has_autocast = args.bf16 or args.fp16
    return not has_autocast and trainer.actor_critic.policy.dtype == torch.float32


def kernels(trainer: Trainer) -> AbstractContextManager[None]:
    """PyTorch's own kernels where they are the better ones."""
    if trainer.args.device.type == "cpu" and is_in_float32(trainer):
        return own_kernels()
    return nullcontext()
