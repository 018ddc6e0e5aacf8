"""Prompts as token ids; a rollout as micro-batches: rows of like length padded, or any rows end to end.

Groups of rows of like length are in ``runner.generate.batch``, which sampling needs too. Letters at the end of a
tensor's name are its shape: B rows, T tokens, R response tokens, N response tokens of all rows.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from runner.errors import ConfigError, DataError, Fault
from runner.generate.batch import split_by_tokens

Row = dict[str, Any]

LOGITS_PER_CHUNK = {"cpu": 1 << 22}  # elements held at once: 16 MiB of float32
LOGITS_PER_CHUNK_ELSEWHERE = 1 << 26

# --- Prompts ------------------------------------------------------------------------------------


def to_prompt_ids(tokenizer: PreTrainedTokenizerBase, row: Row) -> list[int]:
    """Token ids of a row's prompt, a chat opened for the answer with the row's tools."""
    if isinstance(row["prompt"], str):
        return tokenizer(row["prompt"])["input_ids"]
    kwargs = row.get("chat_template_kwargs") or {}
    return tokenizer.apply_chat_template(
        row["prompt"], tools=row.get("tools"), add_generation_prompt=True, return_dict=False, **kwargs
    )


def find_stop_ids(
    stop_token: str | None,
    stop_token_id: int | None,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[int, ...]:
    """Every token that ends a completion: with ``eos`` those that tokenizer and model declare, and a further one."""
    further = [] if stop_token_id is None else [stop_token_id]
    if stop_token is None:
        return tuple(further)
    of_model = model.generation_config.eos_token_id
    declared = [tokenizer.eos_token_id, *(of_model if isinstance(of_model, list) else [of_model])]
    ids = sorted({*further, *(token for token in declared if token is not None)})
    if not ids:
        found, fix = "the tokenizer has no end token", "trainer.args.stop_token_id=<id>, or stop_token=null"
        raise ConfigError(Fault("trainer.args.stop_token", found, "a token that ends a completion", fix))
    return tuple(ids)


def check_rows(
    rows: Dataset | IterableDataset,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    needed: int,
    response_length: int,
) -> None:
    """Raise DataError for rows that PPO would loop over for ever, or that the model cannot hold.

    A stream is not read: its length is not known, and its rows come once.
    """
    if rows.column_names is not None and "prompt" not in rows.column_names:
        raise DataError(Fault("dataset", f"columns {', '.join(rows.column_names)}", "a column prompt"))
    if isinstance(rows, IterableDataset):
        return
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    room, faults, counts = longest - response_length, [], {}
    for index, prompt in enumerate(rows["prompt"]):
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
        # A token is at least a byte, and a template adds some, so that most prompts need not be counted.
        if not text or len(text.encode()) + 1024 > room:
            counts[index] = len(to_prompt_ids(tokenizer, rows[index]))
    if too_long := [count for count in counts.values() if count > room]:
        found = f"{len(too_long)} prompts are too long, one of {max(too_long)} tokens"
        expected = f"at most {room}: the model holds {longest}, the response {response_length}"
        faults.append(Fault("dataset", found, expected, "a smaller trainer.args.response_length, or shorter prompts"))
    if empty := [index for index, count in counts.items() if count == 0]:
        faults.append(Fault("dataset", f"{len(empty)} prompts without a token, the first in row {empty[0]}"))
    if len(rows) < needed:
        fix = "dataset.limit.train=null, or a smaller trainer.args.per_device_train_batch_size"
        faults.append(Fault("dataset", f"{len(rows)} training rows", f"at least the {needed} of one update", fix))
    if faults:
        raise DataError(faults)


# --- Rollouts -----------------------------------------------------------------------------------


@dataclass
class Rollout:
    """Completions that one process sampled for an update, and the numbers of their tokens."""

    sequences: list[list[int]]  # prompt and response
    prompts: list[int]  # their lengths
    responses: list[int]
    mask_BR: Tensor
    values_BR: Tensor
    logprobs_BR: Tensor | None = None  # None: still to be computed
    ref_logprobs_BR: Tensor | None = None
    advantages_BR: Tensor | None = None
    returns_BR: Tensor | None = None

    @property
    def lengths(self) -> list[int]:
        return list(map(len, self.sequences))

    def micro_batches(self, rows: Sequence[int], budget: int, *, padding_free: bool = False) -> list[MicroBatch]:
        """Some rows, at most ``budget`` tokens in each batch."""
        split = fill_by_tokens if padding_free else split_by_tokens
        groups = split(rows, [length - 1 for length in self.lengths], budget)
        return [self.micro_batch(group, padding_free=padding_free) for group in groups]

    def micro_batch(self, rows: Sequence[int], *, padding_free: bool = False) -> MicroBatch:
        """The rows without their last token, after which nothing follows, padded on the right or end to end."""
        read = [self.sequences[row][:-1] for row in rows]
        lengths, width, spread = list(map(len, read)), max(map(len, read)), self.mask_BR.shape[1]
        input_ids = [list(chain(*read))] if padding_free else [ids + [0] * (width - len(ids)) for ids in read]
        starts = accumulate(lengths, initial=0) if padding_free else range(0, len(rows) * width, width)
        positions, targets, places = [], [], []
        for row, start in zip(rows, starts, strict=False):
            prompt, count = self.prompts[row], self.responses[row]
            positions += range(start + prompt - 1, start + prompt - 1 + count)
            targets += self.sequences[row][prompt:]
            places += range(row * spread, row * spread + count)
        device = self.mask_BR.device
        tensors = (torch.tensor(numbers, device=device) for numbers in (input_ids, positions, targets, places))
        return MicroBatch(rows, *tensors, row_lengths=lengths if padding_free else None)


@dataclass
class MicroBatch:
    """Rows for one pass through a model."""

    rows: Sequence[int]  # of the rollout
    input_ids: Tensor  # [B, T], padded on the right; or [1, T], end to end
    positions_N: Tensor  # flat index in input_ids of the token before each response token
    targets_N: Tensor  # the response tokens
    places_N: Tensor  # flat index of each response token in a BR tensor
    row_lengths: list[int] | None = None  # of rows that lie end to end

    def inputs(self, temperature: float) -> tuple[Tensor, Tensor, Tensor, float, list[int] | None]:
        """Arguments of a pass that gives log-probabilities."""
        return self.input_ids, self.positions_N, self.targets_N, temperature, self.row_lengths

    @property
    def value_inputs(self) -> tuple[Tensor, Tensor, list[int] | None]:
        """Arguments of a pass that gives values."""
        return self.input_ids, self.positions_N, self.row_lengths

    def select(self, values_BR: Tensor) -> Tensor:
        """The values of this batch's tokens [N]."""
        return values_BR.flatten()[self.places_N]


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
