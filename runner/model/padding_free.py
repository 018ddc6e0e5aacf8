"""Rows laid end to end in one line, with no padding between them: each attends to itself alone.

For models whose attention comes from transformers' AttentionInterface, which hands on the arguments
of a forward pass.

Letters at the end of a tensor's name are its shape: T tokens of all rows, H hidden or heads, D size
of a head.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ROW_BY_ROW = "sdpa_row_by_row"
PROBE_LENGTHS = [3, 2]  # of the rows on which a model is tried


def attend_row_by_row(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    row_lengths: Sequence[int] | None = None,
    row_starts: Tensor | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The stock attention, within each row if there are ``row_lengths``; states are [1, H, T, D].

    ``row_starts`` are given on CUDA, where one flash kernel attends to all rows, in 16 bits.
    """
    if row_lengths is None:
        states, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return states, None
    if row_starts is not None:
        return _attend_by_flash_kernel(query, key, value, row_lengths, row_starts, scaling), None

    # Split as they lie in memory: otherwise putting gradients together takes twice as long.
    lines = [states[0].transpose(0, 1) for states in (query, key, value)]
    if len(set(row_lengths)) == 1:
        length = row_lengths[0]
        # All rows at once.
        parts = [[line.unflatten(0, (-1, length))] for line in lines]
    else:
        parts = [line.unsqueeze(0).split(row_lengths, dim=1) for line in lines]
    outputs = []
    for row_states in zip(*parts, strict=True):
        query_row, key_row, value_row = (states.transpose(1, 2) for states in row_states)
        output, _ = sdpa_attention_forward(
            module, query_row, key_row, value_row, None, scaling=scaling, **kwargs
        )
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs)[None], None


def _attend_by_flash_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_lengths: Sequence[int],
    row_starts: Tensor,
    scaling: float | None,
) -> Tensor:
    """The attention of all rows by one kernel that takes rows of unlike length, and 16 bits."""
    from torch.nn.attention.varlen import varlen_attn

    dtype = value.dtype
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, 1)
        value = value.repeat_interleave(groups, 1)
    query_THD, key_THD, value_THD = (
        states[0].transpose(0, 1).to(dtype).contiguous() for states in (query, key, value)
    )
    longest = max(row_lengths)
    states_THD: Tensor = varlen_attn(
        query_THD,
        key_THD,
        value_THD,
        row_starts,
        row_starts,
        longest,
        longest,
        scale=scaling,
        window_size=(-1, 0),
    )
    return states_THD[None]


AttentionInterface.register(ROW_BY_ROW, attend_row_by_row)
AttentionMaskInterface.register(ROW_BY_ROW, sdpa_mask)


def to_line_arguments(row_lengths: Sequence[int], device: torch.device) -> dict[str, object]:
    """Arguments of a model's forward pass over a line of rows, beside their tokens."""
    positions = torch.cat([torch.arange(length) for length in row_lengths]).unsqueeze(0)
    line: dict[str, object] = {
        "position_ids": positions.to(device, non_blocking=True),
        "row_lengths": row_lengths,
        # Not looked at; without it the model would make a mask of all tokens by all tokens.
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
    }
    if device.type == "cuda":
        starts = torch.tensor([0, *accumulate(row_lengths)], dtype=torch.int32)
        line["row_starts"] = starts.to(device, non_blocking=True)
    return line


def make_padding_free(trunk: PreTrainedModel) -> bool:
    """Have a trunk attend row by row, if the states of a row stay those that it has alone.

    It must be in evaluation mode, because it is asked for both. Other attention than sdpa, and
    attention in windows, stay as they are.
    """
    config = trunk.config.get_text_config()
    before = config._attn_implementation
    layer_types = set(getattr(config, "layer_types", None) or ())
    has_windows = layer_types - {"full_attention"} or getattr(config, "sliding_window", None)
    has_backend = getattr(trunk, "_supports_attention_backend", False)
    if before not in ("sdpa", ROW_BY_ROW) or has_windows or not has_backend:
        return False
    is_same = False
    ids_1T = torch.arange(sum(PROBE_LENGTHS), device=trunk.device).unsqueeze(0)
    try:
        with torch.no_grad():
            alone = []
            for row in ids_1T.split(PROBE_LENGTHS, dim=1):
                alone.append(trunk(input_ids=row, use_cache=False).last_hidden_state[0])
            trunk.set_attn_implementation(ROW_BY_ROW)
            line = to_line_arguments(PROBE_LENGTHS, trunk.device)
            line_TH = trunk(input_ids=ids_1T, use_cache=False, **line).last_hidden_state[0]
        is_same = equal_to_rounding(line_TH, torch.cat(alone))
    finally:
        if not is_same:
            trunk.set_attn_implementation(before)
    return is_same


def equal_to_rounding(states: Tensor, expected: Tensor) -> bool:
    """True where two tensors of one shape differ only by the order in which they were added up.

    That is by a hundred roundings of their type or 1 %, whichever is less, of the largest entry.
    """
    share = min(1e-2, 100 * torch.finfo(states.dtype).eps)
    largest = float(states.abs().max())
    is_close: bool = torch.allclose(states, expected, rtol=0, atol=share * largest)
    return is_close
