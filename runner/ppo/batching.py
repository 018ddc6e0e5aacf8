"""Micro-batches: the rows of one pass through a model, and how rows are shared out among them.

Letters at the end of a tensor's name are its shape: B rows, T tokens, R response tokens, N response
tokens of all rows.
"""

import contextlib
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class MicroBatch:
    """Rows for one pass through a model."""

    rows_B: Tensor  # numbers of the rows in their rollout
    input_ids_BT: Tensor  # padded on the right; or [1, T], end to end
    positions_N: Tensor  # flat index in input_ids_BT of the token before each response token
    targets_N: Tensor  # the response tokens, all of them written by the policy
    indices_N: Tensor  # flat index of each response token in a BR tensor
    row_lengths: list[int] | None = None  # of rows that lie end to end

    def select(self, values_BR: Tensor) -> Tensor:
        """The values of this batch's tokens [N]."""
        return values_BR.flatten()[self.indices_N]

    def assign(self, values_BR: Tensor, values_N: Tensor) -> None:
        """Write the values of this batch's tokens where :meth:`select` finds them."""
        values_BR.view(-1)[self.indices_N] = values_N


def fill_by_tokens(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Few groups of rows, about equally long, each at most ``budget`` tokens without padding.

    A row that is longer than the budget is alone.
    """
    longest_first = sorted(rows, key=lambda row: -lengths[row])
    total = sum(lengths[row] for row in rows)
    group_count = math.ceil(total / budget)
    while True:
        groups: list[list[int]] = [[] for _ in range(group_count)]
        sizes = [(0, number) for number in range(group_count)]  # a heap
        for row in longest_first:
            size, shortest = sizes[0]
            groups[shortest].append(row)
            heapq.heapreplace(sizes, (size + lengths[row], shortest))
        too_large = [number for size, number in sizes if size > budget and len(groups[number]) > 1]
        if not too_large:
            return [group for group in groups if group]
        group_count += 1


@contextlib.contextmanager
def own_kernels() -> Iterator[None]:
    """Run float32 on a CPU inside by PyTorch's own kernels.

    oneDNN compiles one for each shape that it meets, 0.3 ms and 24 kB, and keeps a thousand.
    Batches of unlike rows hardly ever have a shape twice, and what it keeps lies between the
    activations, which then need new room: measured, a quarter to a half of the peak memory of PPO
    on small models.
    """
    with torch.backends.mkldnn.flags(
        enabled=False, deterministic=None, allow_tf32=None, fp32_precision=None
    ):
        yield
