"""Rows of unlike length -> batches of rows of like length, padded on either side.

Letters at the end of a tensor's name are its shape: B rows, T tokens.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from runner.model.encoding import TokenIds

Prompts: TypeAlias = Sequence[Sequence[int]]  # token ids
# On a CPU. 768 to 1024 gained no time that could be seen, and 768 took up to a quarter more memory.
TOKENS_PER_PASS = 640
# Padded tokens that cost about as much as the fixed cost of a pass; measured on a CPU.
TOKENS_WORTH_A_PASS = 128


def split_by_tokens(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups of rows, longest first, each at most ``budget`` tokens when padded.

    A row that is longer than the budget is alone. Of all such groups of rows of like length they
    cost the least: padded tokens, and ``TOKENS_WORTH_A_PASS`` for each pass.
    """
    ordered = sorted(rows, key=lambda row: -lengths[row])
    ordered_lengths = [lengths[row] for row in ordered]
    # For the first so many rows: the cost of their best groups, and where the last of these begins.
    costs = [0]
    starts = [0]
    for last, last_length in enumerate(ordered_lengths):
        # First with the last row alone, then together with more and more rows before it.
        best_start = last
        best_cost = costs[last] + last_length + TOKENS_WORTH_A_PASS
        for start in range(last - 1, -1, -1):
            count = last + 1 - start
            tokens = count * ordered_lengths[start]  # padded to the longest, which is the first
            if tokens > budget:
                break
            cost = costs[start] + tokens + TOKENS_WORTH_A_PASS
            if cost <= best_cost:
                best_start = start
                best_cost = cost
        costs.append(best_cost)
        starts.append(best_start)

    groups = []
    end = len(ordered)
    while end:
        start = starts[end]
        groups.append(ordered[start:end])
        end = start
    groups.reverse()
    return groups


def split_by_rows(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Groups of ``size`` rows of like length, the longest first: lack of memory shows at once."""
    count = len(lengths)
    ordered = sorted(range(count), key=lambda row: -lengths[row])
    return [ordered[start : start + size] for start in range(0, count, size)]


def media_inputs_of(prompt: Sequence[int]) -> Mapping[str, Tensor]:
    """The tensors that a model takes beside the tokens of a prompt with media, by name."""
    return getattr(prompt, "media_inputs", None) or {}


def _is_per_token(tensor: Tensor, prompt: Sequence[int]) -> bool:
    """True for a tensor [1, T] with a number for each token, False for pixels and the like."""
    is_per_token: bool = tensor.shape[1:] == (len(prompt),)
    return is_per_token


def group_alike(prompts: Prompts) -> list[list[int]]:
    """The numbers of the prompts in groups whose media fit into one tensor."""
    groups: dict[object, list[int]] = {}
    for number, prompt in enumerate(prompts):
        shapes = []
        for name, tensor in media_inputs_of(prompt).items():
            if not _is_per_token(tensor, prompt):
                shapes.append((name, tensor.shape[1:]))
        alike = groups.setdefault(tuple(shapes), [])
        alike.append(number)
    return list(groups.values())


def join_media_inputs(prompts: Prompts, device: torch.device, side: str) -> dict[str, Tensor]:
    """The tensors that a model takes beside the tokens of prompts of one group.

    Those with a number for each token are padded on the same side as the tokens.
    """
    joined = {}
    for name, first in media_inputs_of(prompts[0]).items():
        tensors = [media_inputs_of(prompt)[name] for prompt in prompts]
        if _is_per_token(first, prompts[0]):
            rows = [tensor[0] for tensor in tensors]
            together = pad_sequence(rows, batch_first=True, padding_value=0, padding_side=side)
        else:
            together = torch.cat(tensors)
        joined[name] = together.to(device)
    return joined


def lengthen(prompt: Sequence[int], ids: Sequence[int]) -> TokenIds:
    """A prompt with further tokens behind it, and the media that it came with."""
    longer = TokenIds([*prompt, *ids])
    padding = (0, len(ids))
    inputs = dict(media_inputs_of(prompt))
    for name, tensor in inputs.items():
        if _is_per_token(tensor, prompt):
            inputs[name] = torch.nn.functional.pad(tensor, padding)
    longer.media_inputs = inputs
    return longer


def pad(
    rows: Prompts, device: torch.device, *, side: str = "right", value: int = 0
) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] that are padded on a side, and the mask [B, T] of what is a token."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    masks = [torch.ones(len(row), dtype=torch.long) for row in rows]
    ids_BT = pad_sequence(ids, batch_first=True, padding_value=value, padding_side=side)
    mask_BT = pad_sequence(masks, batch_first=True, padding_side=side)
    # Without blocking, which would wait for the passes before it.
    return ids_BT.to(device, non_blocking=True), mask_BT.to(device, non_blocking=True)
