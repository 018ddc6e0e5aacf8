"""Rows of unlike length -> batches of so many tokens: rows of like length padded, or any rows end to end.

Letters at the end of a tensor's name are its shape: B rows, T tokens, R response tokens, N response tokens of all rows.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from runner.generate.batch import split_by_tokens

LOGITS_PER_CHUNK = {"cpu": 1 << 22}  # elements held at once: 16 MiB of float32
LOGITS_PER_CHUNK_ELSEWHERE = 1 << 26


def fill_by_tokens(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Few groups of rows, about equally long and each at most ``budget`` tokens without padding; a longer row is alone.

    >>> fill_by_tokens([0, 1, 2, 3], lengths=[20, 50, 40, 39], budget=80)
    [[1, 0], [2, 3]]
    """
    ordered = sorted(rows, key=lambda row: -lengths[row])
    count = math.ceil(sum(lengths[row] for row in rows) / budget)
    while True:
        groups: list[tuple[int, int, list[int]]] = [(0, place, []) for place in range(count)]
        for row in ordered:
            size, place, group = groups[0]  # the shortest
            heapq.heapreplace(groups, (size + lengths[row], place, [*group, row]))
        if all(size <= budget or len(group) == 1 for size, _, group in groups):
            return [group for _, _, group in sorted(groups, key=lambda group: group[1]) if group]
        count += 1


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Within it float32 on a CPU runs on PyTorch's own kernels.

    oneDNN compiles one for each shape that it meets, 0.3 ms and 24 kB, and keeps a thousand. Batches of unlike rows
    hardly ever have a shape twice, and what it keeps lies between the activations, which then need new room: measured,
    a quarter to a half of the peak memory of PPO on small models.
    """
    asked, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = asked


@dataclass
class Rollout:
    """What one process sampled for an update, and what is known of it."""

    sequences: list[list[int]]  # prompt and response
    prompts: list[int]  # their lengths
    responses: list[int]
    mask_BR: Tensor
    values_BR: Tensor
    logprobs_BR: Tensor | None = None  # None: still to be looked at
    ref_logprobs_BR: Tensor | None = None
    advantages_BR: Tensor | None = None
    returns_BR: Tensor | None = None
    dealt: dict[frozenset[int], list[MicroBatch]] = field(default_factory=dict)  # what was made of which rows

    @property
    def lengths(self) -> list[int]:
        return list(map(len, self.sequences))

    def micro_batches(
        self, rows: Sequence[int], budget: int, device: torch.device, *, padding_free: bool = False
    ) -> list[MicroBatch]:
        """Some rows, at most ``budget`` tokens in each batch; each epoch of one mini-batch has the same."""
        key = frozenset(rows)
        if key not in self.dealt:
            split = fill_by_tokens if padding_free else split_by_tokens
            groups = split(rows, [length - 1 for length in self.lengths], budget)
            self.dealt[key] = [self.micro_batch(group, device, padding_free=padding_free) for group in groups]
        return self.dealt[key]

    def micro_batch(self, rows: Sequence[int], device: torch.device, *, padding_free: bool = False) -> MicroBatch:
        """The rows, and where their response tokens are; nothing is asked of the last token.

        They are padded on the right, or lie end to end in one line.
        """
        read, spread = [self.sequences[row][:-1] for row in rows], self.mask_BR.shape[1]
        width = max(map(len, read))
        input_ids = [list(itertools.chain(*read))] if padding_free else [ids + [0] * (width - len(ids)) for ids in read]
        positions, targets, places, begin = [], [], [], 0
        for row, ids in zip(rows, read, strict=True):
            before, count = self.prompts[row], self.responses[row]
            positions += range(begin + before - 1, begin + before - 1 + count)
            targets += self.sequences[row][before:]
            places += range(row * spread, row * spread + count)
            begin += len(ids) if padding_free else width
        tensors = (torch.tensor(part, device=device) for part in (input_ids, positions, targets, places))
        return MicroBatch(rows, *tensors, row_lengths=list(map(len, read)) if padding_free else None)


@dataclass
class MicroBatch:
    """Rows for one pass through the model."""

    rows: Sequence[int]  # of the rollout
    input_ids: Tensor  # [B, T], padded on the right; or [1, T], end to end
    positions_N: Tensor  # flat index in input_ids of the token before each response token
    targets_N: Tensor  # the response tokens
    places_N: Tensor  # flat index of each response token in a BR tensor
    row_lengths: list[int] | None = None  # of rows that lie end to end

    def asked(self, temperature: float) -> tuple[Any, ...]:
        """What a log-probability is asked with."""
        return self.input_ids, self.positions_N, self.targets_N, temperature, self.row_lengths

    @property
    def asked_value(self) -> tuple[Any, ...]:
        """What a value is asked with."""
        return self.input_ids, self.positions_N, self.row_lengths

    def of(self, values_BR: Tensor) -> Tensor:
        """The values of this batch's tokens [N]."""
        return values_BR.flatten()[self.places_N]
