"""Rows of unlike length -> batches of rows of like length, padded on either side."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from runner.model.encoding import TokenIds

Prompts: TypeAlias = Sequence[Sequence[int]]  # token ids
TOKENS_PER_PASS = 640  # 768 to 1024 gained no time that could be seen, and 768 up to a quarter more memory; on CPU
PASS = 128  # padded tokens that cost about as much as what every pass costs beside them; measured on CPU


def split_by_tokens(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups of rows, longest first, each at most ``budget`` tokens when padded; a longer row is alone.

    Of all such groups of rows of like length those that cost the least: padded tokens, and ``PASS`` for each pass.
    """
    ordered = sorted(rows, key=lambda row: -lengths[row])
    costs, firsts = [0], [0]  # of the best groups of the first so many rows: what they cost, where the last begins
    for end in range(1, len(ordered) + 1):
        found = [(costs[-1] + lengths[ordered[end - 1]] + PASS, end - 1)]
        for first in range(end - 2, -1, -1):
            if (size := (end - first) * lengths[ordered[first]]) > budget:
                break
            found.append((costs[first] + size + PASS, first))
        cost, first = min(found)
        costs.append(cost)
        firsts.append(first)
    groups: list[list[int]] = []
    end = len(ordered)
    while end:
        groups.insert(0, ordered[firsts[end] : end])
        end = firsts[end]
    return groups


def split_by_rows(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Groups of ``size`` rows of like length, the longest first, so that what does not fit is seen at once."""
    ordered = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def group_alike(prompts: Prompts) -> list[list[int]]:
    """The numbers of the prompts in groups whose pixels can be one tensor; those without any are one group."""
    groups: dict[object, list[int]] = {}
    for number, prompt in enumerate(prompts):
        pixels = getattr(prompt, "pixels", None) or {}
        shapes = ((name, each.shape[1:]) for name, each in pixels.items() if each.shape[1:] != (len(prompt),))
        groups.setdefault(tuple(shapes), []).append(number)
    return list(groups.values())


def join_pixels(prompts: Prompts, device: torch.device, side: str) -> dict[str, Tensor]:
    """Of alike prompts what a model takes beside their tokens: one number per token padded as these are, or pixels."""
    found = {}
    for name, first in (getattr(prompts[0], "pixels", None) or {}).items():
        parts = [prompt.pixels[name] for prompt in prompts]  # type: ignore[attr-defined]
        counts = first.shape[1:] == (len(prompts[0]),)
        joined = pad_sequence([part[0] for part in parts], True, 0, side) if counts else torch.cat(parts)
        found[name] = joined.to(device)
    return found


def lengthen(prompt: list[int], ids: Sequence[int]) -> list[int]:
    """A prompt with further tokens behind it, and the images that it came with."""
    whole, pixels = TokenIds([*prompt, *ids]), getattr(prompt, "pixels", None) or {}
    for_each = {name: each for name, each in pixels.items() if each.shape[1:] == (len(prompt),)}
    whole.pixels = {**pixels, **{name: torch.nn.functional.pad(each, (0, len(ids))) for name, each in for_each.items()}}
    return whole


def pad(rows: Prompts, device: torch.device, *, side: str = "right", value: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids that begin together, or end together if padded on the left, and the mask of what is a token."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    masks = [torch.ones(len(row), dtype=torch.long) for row in rows]
    ids_BT = pad_sequence(ids, batch_first=True, padding_value=value, padding_side=side)
    mask_BT = pad_sequence(masks, batch_first=True, padding_side=side)
    return ids_BT.to(device, non_blocking=True), mask_BT.to(device, non_blocking=True)  # waits for no pass before it
