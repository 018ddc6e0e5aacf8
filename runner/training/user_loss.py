"""A loss of the user's own: how a trainer has one, how it is called, and what it must give.

B is the number of sequences, T of tokens in each.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import Trainer
from transformers.utils import ModelOutput

from runner.errors import ConfigError, Fault
from runner.schema.code import arguments_of
from runner.training.hooks import Hooks

WEIGHTS = "token_weights"  # the part of a batch that holds the weights of its tokens
Count: TypeAlias = Tensor | int | None  # of the trained tokens of all micro-batches of a step
Loss: TypeAlias = Tensor | tuple[Tensor, ModelOutput]


class Objective(Trainer):
    """A trainer whose ``hooks.loss`` is one of the user's own, or None for TRL's."""

    hooks: Hooks

    def entrywise(self, count: int, **given: object) -> Tensor:
        """One loss for each of ``count`` entries, from what is given."""
        losses = call_loss(self.hooks.loss, **given)
        if isinstance(losses, Tensor) and losses.shape == (count,):
            return losses
        found = type(losses).__name__
        if isinstance(losses, Tensor):
            found = f"a result of shape {tuple(losses.shape)}"
        raise ConfigError(
            Fault(
                where="loss",
                found=found,
                expected=f"a tensor of shape ({count},): one loss for each entry",
            )
        )


def call_loss(loss: Any, /, **given: object) -> object:
    """The result of a loss called with those given arguments that its signature names."""
    names = arguments_of(getattr(loss, "forward", loss))
    if names is None:
        return loss(**given)
    return loss(**{name: part for name, part in given.items() if name in names})


def aligned(weights: Tensor, log_probs: Tensor) -> Tensor:
    """Weights of tokens (B, T) in the shape of ``log_probs``.

    That is one less, or more where virtual tokens come first, which weigh 1.
    """
    width = log_probs.size(1)
    virtual = weights.new_ones(weights.size(0), max(0, width - weights.size(1)))
    return torch.cat([virtual, weights], dim=1)[:, -width:].to(log_probs)
