"""Rows laid end to end in one line, with no padding between them: each attends to itself alone.

For models whose attention comes of transformers' AttentionInterface, which hands on the arguments of a forward pass.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from runner.generate.sampler import evaluating

ROW_BY_ROW = "sdpa_row_by_row"


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
    """The stock attention, within each row if lengths are given; on CUDA by one flash kernel, which takes 16 bits."""
    if row_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if row_starts is None:
        # Split as they lie in memory, or putting gradients together takes twice as long; rows of one length at once.
        step, lines = row_lengths[0], [states[0].transpose(0, 1) for states in (query, key, value)]
        if len(set(row_lengths)) == 1:
            parts = [[line.unflatten(0, (-1, step))] for line in lines]
        else:
            parts = [line.unsqueeze(0).split(row_lengths, dim=1) for line in lines]
        rows = ([states.transpose(1, 2) for states in row] for row in zip(*parts, strict=True))
        each = [sdpa_attention_forward(module, *row, None, scaling=scaling, **kwargs)[0] for row in rows]
        return torch.cat([states.flatten(0, 1) for states in each])[None], None
    from torch.nn.attention.varlen import varlen_attn

    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else value.dtype
    groups = query.shape[1] // key.shape[1]
    heads = query, *(states.repeat_interleave(groups, 1) if groups > 1 else states for states in (key, value))
    lines_THD = (states[0].transpose(0, 1).to(dtype).contiguous() for states in heads)
    longest = max(row_lengths)
    found = varlen_attn(*lines_THD, row_starts, row_starts, longest, longest, scale=scaling, window_size=(-1, 0))
    return found[None], None


AttentionInterface.register(ROW_BY_ROW, attend_row_by_row)
AttentionMaskInterface.register(ROW_BY_ROW, sdpa_mask)


def to_line_arguments(row_lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Arguments of a model's forward pass over a line of rows, beside their tokens."""
    positions = torch.cat([torch.arange(length) for length in row_lengths]).unsqueeze(0)
    line: dict[str, Any] = {"position_ids": positions.to(device, non_blocking=True), "row_lengths": row_lengths}
    line["attention_mask"] = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)  # so that none is made
    if device.type == "cuda":
        starts = torch.tensor([0, *accumulate(row_lengths)], dtype=torch.int32)
        line["row_starts"] = starts.to(device, non_blocking=True)
    return line


@torch.no_grad()
def make_padding_free(trunk: PreTrainedModel) -> bool:
    """Have a trunk attend row by row if states stay as they are alone; other attention, and windows, are left alone."""
    config = trunk.config.get_text_config()
    before, windows = config._attn_implementation, set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    has_backend = getattr(trunk, "_supports_attention_backend", False)
    if before not in ("sdpa", ROW_BY_ROW) or windows or getattr(config, "sliding_window", None) or not has_backend:
        return False
    lengths, same = [3, 2], False
    ids_1T = torch.arange(sum(lengths), device=trunk.device).unsqueeze(0)
    try:
        with evaluating(trunk):
            alone = [trunk(input_ids=row, use_cache=False).last_hidden_state[0] for row in ids_1T.split(lengths, dim=1)]
            trunk.set_attn_implementation(ROW_BY_ROW)
            kwargs = to_line_arguments(lengths, trunk.device)
            line_TH = trunk(input_ids=ids_1T, use_cache=False, **kwargs).last_hidden_state[0]
        same = equal_to_rounding(line_TH, torch.cat(alone))
    finally:
        if not same:
            trunk.set_attn_implementation(before)
    return same


def equal_to_rounding(one: Tensor, other: Tensor) -> bool:
    """True where two tensors of one shape are the same but for the order in which they were added up."""
    rounding = min(1e-2, 100 * torch.finfo(one.dtype).eps) * float(one.abs().max())
    return torch.allclose(one, other, rtol=0, atol=rounding)
