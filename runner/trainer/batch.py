"""Rows of unlike length -> padded batches, sorted by length and cut where they reach a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def split_by_tokens(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups of rows, longest first, each at most ``budget`` tokens when padded; a longer row is alone.

    >>> split_by_tokens([0, 1, 2, 3], lengths=[2, 9, 4, 3], budget=8)
    [[1], [2, 3], [0]]
    """
    groups: list[list[int]] = []
    for row in sorted(rows, key=lambda row: -lengths[row]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= budget:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids that end together, and the mask of what is a token; no pad token is needed."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids that begin together, and the mask of what is a token; causal attention never looks at the padding."""
    width = max(map(len, rows))
    ids = torch.tensor([list(row) + [0] * (width - len(row)) for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    return ids, mask
