"""Weights and gradients of a model in training, looked at in small pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Probe:
    """Small pieces of the weights that are trained, spread evenly over them; what befalls all of them shows there.

    A look costs a few microseconds for each of at most ``TENSORS`` pieces, whatever the size of the model. What only
    looks so in the pieces is looked up in all weights.
    """

    TENSORS, ENTRIES = 32, 256

    def __init__(self, model: nn.Module):
        self.all = [each for each in model.parameters() if each.requires_grad and each.numel()]
        self.picked = self.all[:: math.ceil(len(self.all) / self.TENSORS) or 1]
        self.before, self.bits = self.weights(), None

    @torch.no_grad()
    def weights(self) -> Tensor | None:
        """The entries that are looked at, in one row."""
        return _in_a_row([_piece(each) for each in self.picked])

    @torch.no_grad()
    def gradients(self) -> Tensor | None:
        """The entries that belong to those of ``weights``, 0 where a weight keeps none."""
        pieces = [_piece(each.grad if _has_gradient(each) else torch.zeros_like(each)) for each in self.picked]
        return _in_a_row(pieces)

    @torch.no_grad()
    def gradient(self) -> float | None:
        """The largest entry that was found, NaN where one is none; None where no weight keeps its gradient."""
        row = _in_a_row([_piece(each.grad) for each in self.picked if _has_gradient(each)])
        if row is not None and (largest := row.abs().max().item()) != 0:
            return largest
        every = (_local(each.grad).abs().max().item() for each in self.all if _has_gradient(each))
        return max(every, key=lambda found: (math.isnan(found), found), default=None)

    def moved(self, weights: Tensor | None) -> float:
        """1 where some weight has changed since the last call, 0 where none has, -1 where it is not known yet.

        ``weights`` are those of now. Where the pieces look the same, all weights are added up, now and next time.
        """
        before, self.before = self.before, weights
        if weights is None:
            return -1.0
        if not torch.equal(weights, before):
            self.bits = None
            return 1.0
        bits, self.bits = self.bits, self.sum_of_bits()
        return -1.0 if bits is None else float(bits != self.bits)

    @torch.no_grad()
    def sum_of_bits(self) -> int:
        """A number that another value of any weight changes."""
        kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return sum(int(_local(each).view(kinds[each.element_size()]).sum(dtype=torch.int64)) for each in self.all)

    @torch.no_grad()
    def are_finite(self) -> bool:
        """True where all weights are numbers."""
        # A sum passes on what is no number, without a copy; only where it may have overflown are all entries looked at.
        doubtful = (each for each in map(_local, self.all) if not each.sum(dtype=torch.float32).isfinite())
        return all(bool(each.isfinite().all()) for each in doubtful)


def _local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, where it may be spread over several."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _has_gradient(weight: Tensor) -> bool:
    return weight.grad is not None and not weight.grad.is_sparse and weight.grad.numel() > 0


def _piece(tensor: Tensor) -> Tensor:
    """The first entries of the middle row, without a copy of the tensor."""
    tensor = _local(tensor)
    while tensor.ndim > 1:
        tensor = tensor[len(tensor) // 2]
    return tensor[: Probe.ENTRIES]


def _in_a_row(pieces: Sequence[Tensor]) -> Tensor | None:
    if not pieces:
        return None
    device = pieces[0].device
    return torch.cat([piece.reshape(-1).to(device, torch.float32) for piece in pieces])
