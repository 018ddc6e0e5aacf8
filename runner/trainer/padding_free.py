"""Rows laid end to end in one line, with no padding between them: each attends to itself alone.

For models whose attention comes of transformers' AttentionInterface, which hands on what a forward pass is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ROW_BY_ROW = "sdpa_row_by_row"
STOCK = ("sdpa", ROW_BY_ROW)  # what it stands in for


def attend_row_by_row(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    row_lengths: Sequence[int] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The stock scaled-dot-product attention; within each of the rows, if it is told where they end."""
    if row_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    rows = zip(*(states.split(row_lengths, dim=2) for states in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, *row, None, **kwargs)[0] for row in rows], dim=1), None


AttentionInterface.register(ROW_BY_ROW, attend_row_by_row)
AttentionMaskInterface.register(ROW_BY_ROW, sdpa_mask)


def arguments_of(row_lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What a model that attends row by row is told of a line of rows."""
    return {
        "position_ids": torch.cat([torch.arange(length) for length in row_lengths]).unsqueeze(0).to(device),
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),  # so that none is made
        "row_lengths": row_lengths,
    }


def could_attend_row_by_row(trunk: PreTrainedModel) -> bool:
    """Whether a model has the stock attention, without windows; what its states then are has still to be tried."""
    config = trunk.config.get_text_config()
    windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if windows or getattr(config, "sliding_window", None):
        return False
    return getattr(trunk, "_supports_attention_backend", False) and config._attn_implementation in STOCK
