"""Prompts as token ids; a rollout as micro-batches of rows of like length padded on the right, or of rows end to end.

Letters at the end of a tensor's name are its shape: B rows, T tokens, R response tokens, N those of all rows.
"""

import heapq
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, compress, count
from typing import Any

import torch
from datasets import IterableDataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from runner.dataset.load import Rows
from runner.errors import ConfigError, DataError, Fault, fault
from runner.generate.batch import pad, split_by_tokens
from runner.generate.completion import Completion, context_length, to_completions
from runner.generate.rows import Row
from runner.generate.sampler import Model, Responses
from runner.model.encoding import encode_prompt, stop_ids


def find_stop_ids(
    stop_token: str | None, stop_token_id: int | None, model: Model, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """Every token that ends a completion: with ``eos`` those that tokenizer and model declare, and a further one."""
    further = [] if stop_token_id is None else [stop_token_id]
    if stop_token is None:
        return tuple(further)
    of_tokenizer = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids = sorted({*further, *of_tokenizer, *stop_ids(model)})
    if not ids:
        raise ConfigError(fault("ppo.no_end"))
    return tuple(ids)


def check_rows(rows: Rows, model: Model, tokenizer: PreTrainedTokenizerBase, *, needed: int, length: int) -> None:
    """Raise DataError for rows that PPO would loop over for ever, or that the model cannot hold."""
    if rows.column_names is not None and "prompt" not in rows.column_names:
        raise DataError(Fault("dataset", f"columns {', '.join(rows.column_names)}", "a column prompt"))
    if isinstance(rows, IterableDataset):
        return
    longest = context_length(model) or math.inf
    room, faults, counts = longest - length, [], {}
    for index, prompt in enumerate(rows["prompt"]):
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
        # A token is at least a byte, and a template adds some, so that most prompts need not be counted.
        if not text or len(text.encode()) + 1024 > room:
            counts[index] = len(encode_prompt(tokenizer, prompt, rows[index]))
    if too_long := [count for count in counts.values() if count > room]:
        sizes = {"longest": max(too_long), "room": room, "held": longest, "response": length}
        faults.append(fault("ppo.long_prompts", count=len(too_long), **sizes))
    if empty := [index for index, count in counts.items() if count == 0]:
        faults.append(Fault("dataset", f"{len(empty)} prompts without a token, the first in row {empty[0]}"))
    if len(rows) < needed:
        faults.append(fault("ppo.few_rows", rows=len(rows), needed=needed))
    DataError.refuse(faults)


@dataclass
class MicroBatch:
    """Rows for one pass through a model."""

    rows_B: Tensor  # of the rollout
    input_ids_BT: Tensor  # padded on the right; or [1, T], end to end
    positions_N: Tensor  # flat index in input_ids_BT of the token before each response token
    targets_N: Tensor  # the response tokens, of which the policy wrote each
    indices_N: Tensor  # flat index of each response token in a BR tensor
    row_lengths: list[int] | None = None  # of rows that lie end to end

    def select(self, values_BR: Tensor) -> Tensor:
        """The values of this batch's tokens [N]."""
        return values_BR.flatten()[self.indices_N]

    def assign(self, values_BR: Tensor, values_N: Tensor) -> None:
        """Write the values of this batch's tokens where :meth:`select` finds them."""
        values_BR.view(-1)[self.indices_N] = values_N


class Rollout:
    """Completions that one process sampled for rows, and the numbers of their tokens, 0 until they are known."""

    def __init__(self, rows: Sequence[Row], completions: list[Completion], device: torch.device):
        self.rows, self.completions = rows, completions
        self.sequences = [[*each.prompt_ids, *each.token_ids] for each in completions]
        self.lengths = list(map(len, self.sequences))
        self.places = [  # of the tokens that the policy wrote; between them may stand what tools answered
            [len(each.prompt_ids) + place for place in compress(count(), each.own or [True] * len(each.token_ids))]
            for each in completions
        ]
        self.responses = list(map(len, self.places))
        self.mask_BR = (torch.arange(max(self.responses)) < torch.tensor(self.responses)[:, None]).to(device)
        zeros_BR = torch.zeros(self.mask_BR.shape, device=device)
        self.logprobs_BR, self.ref_logprobs_BR, self.kl_BR = zeros_BR, zeros_BR.clone(), zeros_BR.clone()
        self.values_BR, self.advantages_BR, self.returns_BR = zeros_BR.clone(), zeros_BR.clone(), zeros_BR.clone()
        self.weights_BR = self.mask_BR.float()  # in the loss of the mini-batch that is looked at
        # Over all micro-batches of an update, of what is logged.
        self.sums: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=device))
        self.has_logprobs = False
        self.sampler_logprobs_BR: Tensor | None = None  # where another than the policy has sampled
        self.scores: tuple[Tensor, ...] = ()  # rewards [B, R] and [B, F], once they are known
        self.importance_BR: Tensor | None = None  # weights of its tokens

    @classmethod
    def joined(cls, picked: Sequence[tuple["Rollout", int]]) -> "Rollout":
        """Rows of several rollouts, which are scored, as one."""
        rows, completions = ([getattr(of, name)[row] for of, row in picked] for name in ("rows", "completions"))
        first = picked[0][0]
        made = cls(rows, completions, first.mask_BR.device)
        made.has_logprobs = first.has_logprobs

        def placed(fill: float, parts: Callable[["Rollout"], Tensor]) -> Tensor:
            values = torch.cat([parts(of)[row, : of.responses[row]] for of, row in picked])
            return torch.full_like(made.logprobs_BR, fill).masked_scatter(made.mask_BR, values)

        made.logprobs_BR = placed(0.0, lambda of: of.logprobs_BR)
        if first.sampler_logprobs_BR is not None:
            made.sampler_logprobs_BR = placed(0.0, lambda of: of.sampler_logprobs_BR)
        made.scores = placed(math.nan, lambda of: of.scores[0]), torch.stack([of.scores[1][row] for of, row in picked])
        return made

    def micro_batches(
        self, rows: Sequence[int], budget: int, *, padding_free: bool = False, agree: Callable[[int], int] | None = None
    ) -> list[MicroBatch]:
        """Some rows, at most ``budget`` tokens in each batch, padding too; a longer row is alone.

        ``agree`` gives how many batches the processes take, of which each has as many rows, for the number of its own.
        """
        split = fill_by_tokens if padding_free else split_by_tokens
        groups = split(rows, [length - 1 for length in self.lengths], budget)
        for _ in range(agree(len(groups)) - len(groups) if agree else 0):
            largest = max(groups, key=len)
            groups.remove(largest)
            groups += [largest[: len(largest) // 2], largest[len(largest) // 2 :]]
        return [self.micro_batch(group, padding_free=padding_free) for group in groups]

    def micro_batch(self, rows: Sequence[int], *, padding_free: bool = False) -> MicroBatch:
        """The rows without their last token, after which nothing follows, padded on the right or end to end."""
        device, read = self.mask_BR.device, [self.sequences[row][:-1] for row in rows]
        lengths = list(map(len, read))
        input_ids_BT, _ = pad([list(chain(*read))] if padding_free else read, device)
        starts = accumulate(lengths, initial=0) if padding_free else count(step=input_ids_BT.shape[1])
        positions, targets, indices = list[int](), list[int](), list[int]()
        for row, begin in zip(rows, starts, strict=False):
            places, first = self.places[row], row * self.mask_BR.shape[1]
            positions += [begin + place - 1 for place in places]
            targets += [self.sequences[row][place] for place in places]
            indices += range(first, first + len(places))
        numbers = (torch.tensor(each).to(device, non_blocking=True) for each in (rows, positions, targets, indices))
        rows_B, positions_N, targets_N, indices_N = numbers
        return MicroBatch(rows_B, input_ids_BT, positions_N, targets_N, indices_N, lengths if padding_free else None)


def roll_out_by_function(
    function: Callable[..., Mapping[str, Any]], rows: Sequence[Row], trainer: Any
) -> tuple[list[Row], list[Completion], list[Tensor]]:
    """Rows, completions, and log-probabilities of the policy's tokens, from a function of the user's, as GRPO takes it.

    Given the prompts and the trainer, it gives ``prompt_ids``, ``completion_ids`` and ``logprobs`` of each; in
    ``env_mask`` 0 for tokens that the policy did not write; whatever else it gives are columns for rewards. Raises
    ConfigError for lists of other lengths.
    """
    given = function([row["prompt"] for row in rows], trainer)
    found = {name: part for name, part in given.items() if part is not None} if isinstance(given, Mapping) else {}
    prompts, tokens, logprobs = (found.pop(name, ()) for name in ("prompt_ids", "completion_ids", "logprobs"))
    masks = found.pop("env_mask", [[1] * len(ids) for ids in tokens])
    of_each = [list(map(len, part)) for part in (tokens, logprobs, masks)]
    counts = {len(part) for part in (prompts, tokens, *found.values())}
    if counts != {len(rows)} or of_each != of_each[:1] * 3 or not all(map(any, masks)):
        raise ConfigError(fault("ppo.other_rollout", rows=len(rows)))
    responses = Responses(list(map(torch.tensor, tokens)), list(map(torch.tensor, logprobs)))
    tokenizer, ends = trainer.processing_class, trainer.stop_ids
    made = to_completions(tokenizer, rows, prompts, responses, ends, whole=not ends)
    made = [replace(each, own=list(map(bool, mask))) for each, mask in zip(made, masks, strict=True)]
    of_policy = [each[torch.tensor(mask).bool()] for each, mask in zip(responses.logprobs, masks, strict=True)]
    rows = [{**row, **{name: values[index] for name, values in found.items()}} for index, row in enumerate(rows)]
    return rows, made, of_policy


def fill_by_tokens(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Few groups of rows, about equally long, each at most ``budget`` tokens without padding; a longer row is alone."""
    ordered = sorted(rows, key=lambda row: -lengths[row])
    groups_needed = math.ceil(sum(lengths[row] for row in rows) / budget)
    while True:
        groups: list[tuple[int, int, list[int]]] = [(0, place, []) for place in range(groups_needed)]
        for row in ordered:
            size, place, group = groups[0]  # the shortest
            heapq.heapreplace(groups, (size + lengths[row], place, [*group, row]))
        if all(size <= budget or len(group) == 1 for size, _, group in groups):
            return [group for _, _, group in sorted(groups, key=lambda group: group[1]) if group]
        groups_needed += 1
