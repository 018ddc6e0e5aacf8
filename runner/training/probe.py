"""Small pieces of the weights that a training changes, in which every step can be looked at."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.utils import get_total_norm

# The integers whose sum shows a change of any bit, by the bytes of an entry.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Probe:
    """Small pieces of the trained weights, spread evenly; what befalls all weights shows there.

    A look costs a few microseconds for each of at most ``TENSORS`` pieces, whatever the size of the
    model. Where the pieces show neither a gradient nor a change, all weights are looked at.
    """

    TENSORS = 16
    ENTRIES = 256  # of a piece

    def __init__(self, model: nn.Module):
        # A process that holds no part of a sharded weight has nothing of it to look at.
        self.all: list[Tensor] = []
        for weight in model.parameters():
            if weight.requires_grad and _local_part(weight).numel():
                self.all.append(weight)
        stride = math.ceil(len(self.all) / self.TENSORS) or 1
        self.picked = self.all[::stride]
        self.addresses = list[int]()  # in memory, of the weights that `pieces` are views of
        self.pieces = list[Tensor]()
        self.before = self.weights()
        self.bits: int | None = None
        self.shows_gradient = False  # the first piece that ``gradient`` looks at was not all 0

    def weights(self) -> Tensor | None:
        """The entries that are looked at, in one row; None where no weight is trained."""
        addresses = [_local_part(weight).data_ptr() for weight in self.picked]
        if addresses != self.addresses:
            self.addresses = addresses
            self.pieces = [_piece(weight.detach()) for weight in self.picked]
        return _in_a_row(self.pieces)

    @torch.no_grad()
    def gradients(self) -> Tensor | None:
        """The gradients of the entries of ``weights``, 0 where a weight has none."""
        pieces = []
        for weight in self.picked:
            gradient = _gradient(weight)
            pieces.append(_piece(torch.zeros_like(weight) if gradient is None else gradient))
        return _in_a_row(pieces)

    def gradient(self) -> float | None:
        """The size of the largest entry of a piece that is not all 0; NaN where one is NaN.

        0 only where every gradient is 0 everywhere; None where no weight has a gradient.
        """
        self.shows_gradient = True
        for weight in reversed(self.picked):
            gradient = _gradient(weight)
            if gradient is not None:
                size: float = _largest_entry(gradient).item()
                if size != 0:
                    return size
                self.shows_gradient = False
        sizes = [float(gradient.abs().max()) for gradient in self._all_gradients()]
        return largest(sizes) if sizes else None

    def glimpse(self) -> Tensor | None:
        """The size of the largest entry of the piece that ``gradient`` looks at first.

        None where that piece was all 0 the last time, and the first time.
        """
        if self.shows_gradient:
            for weight in reversed(self.picked):
                gradient = _gradient(weight)
                if gradient is not None:
                    return _largest_entry(gradient)
        return None

    def norm(self) -> Tensor | None:
        """The norm of all gradients that this process holds; None where it holds none."""
        gradients = list(self._all_gradients())
        return get_total_norm(gradients) if gradients else None

    def change(self, weights: Tensor | None) -> Tensor | None:
        """On the device, not 0 where an entry that is looked at is not what it was.

        ``weights`` are those of now, compared with the last ones that ``has_moved`` was given. None
        where no weight is trained.
        """
        if weights is None or self.before is None:
            return None
        change = weights - self.before
        return change.dot(change)

    def has_moved(self, weights: Tensor | None, change: float | None) -> bool | None:
        """True where a weight has changed since the last call, None where that is not known.

        ``weights`` are those of now, and ``change`` is what the method of this name says of them.
        The first call that sees no change in the pieces does not know, because only then the bits
        of all weights are summed, for the next call to compare.
        """
        self.before = weights
        if weights is None:
            return None
        if change:
            self.bits = None
            return True
        bits_before = self.bits
        self.bits = self.sum_of_bits()
        return None if bits_before is None else self.bits != bits_before

    @torch.no_grad()
    def sum_of_bits(self) -> int:
        """A number that another value of any weight changes."""
        sums = []
        for weight in map(_local_part, self.all):
            integers = weight.view(INTEGERS[weight.element_size()])
            sums.append(integers.sum(dtype=torch.int64))
        return int(sum(read_at_once(sums)))

    @torch.no_grad()
    def are_finite(self) -> bool:
        """True where all weights are finite numbers."""
        weights = [_local_part(weight) for weight in self.all]
        sums = read_at_once([weight.sum(dtype=torch.float32) for weight in weights])
        for weight, weight_sum in zip(weights, sums, strict=True):
            # A sum passes on NaN and infinity without a copy of the weight. It may overflow by
            # itself, so that all entries are looked at where it is not finite.
            if not math.isfinite(weight_sum) and not weight.isfinite().all():
                return False
        return True

    def _all_gradients(self) -> Iterator[Tensor]:
        for weight in self.all:
            gradient = _gradient(weight)
            if gradient is not None:
                yield _local_part(gradient)


def read_at_once(numbers: Sequence[Tensor]) -> list[float]:
    """The numbers, in one read of a device, which waits until it has done all it was given."""
    if not numbers:
        return []
    device = numbers[0].device
    row = []
    for number in numbers:
        if number.device != device:
            number = number.to(device)
        row.append(number if number.dim() == 0 else number.reshape(()))
    values: list[float] = torch.stack(row).tolist()
    return values


def largest(values: Sequence[float]) -> float:
    """The largest of one or more numbers, NaN where one is NaN."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def _local_part(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds; any other tensor as it is."""
    # Nearly all tensors are of these types, and to look for an attribute takes longer.
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return tensor
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        local: Tensor = tensor.to_local()
        return local
    return tensor


def _gradient(weight: Tensor) -> Tensor | None:
    """The gradient of a weight, unless it has none, a sparse or an empty one."""
    gradient = weight.grad
    if gradient is None or gradient.is_sparse or gradient.numel() == 0:
        return None
    return gradient


def _piece(tensor: Tensor) -> Tensor:
    """The first entries of the middle row, without a copy of the tensor."""
    tensor = _local_part(tensor)
    middle = [size // 2 for size in tensor.shape[:-1]]
    return tensor[(*middle, slice(Probe.ENTRIES))]


def _largest_entry(tensor: Tensor) -> Tensor:
    """The size of the largest entry of the piece of a tensor, NaN where one is NaN."""
    return vector_norm(_piece(tensor), math.inf)


def _in_a_row(pieces: Sequence[Tensor]) -> Tensor | None:
    """The pieces one behind the other on the device of the first; None of no pieces."""
    if not pieces:
        return None
    device = pieces[0].device
    if any(piece.device != device for piece in pieces):
        pieces = [piece.to(device) for piece in pieces]
    return torch.cat(pieces).to(torch.float32)
