"""The rollout of one update: completions, what is computed for each of their tokens, micro-batches.

Letters at the end of a tensor's name are its shape: B rows of this process, T tokens, R response
tokens, N response tokens of all rows, F rewards.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from runner.generate.completion import Completion
from runner.generate.padding import pad, split_by_tokens
from runner.io.turns import Row, ends_with_tool
from runner.ppo.batching import MicroBatch, fill_by_tokens


@dataclass(frozen=True)
class SampledRows:
    """Rows with a completion each, and the log-probabilities that its sampler gave its tokens."""

    rows: list[Row]
    completions: list[Completion]
    logprobs: list[Tensor]


class Rollout:
    """Completions that one process sampled for rows, and the figures of their tokens.

    A BR tensor has a column for each token that the policy wrote, and is 0 until its figures are
    computed, and behind the end of a response.
    """

    def __init__(self, rows: Sequence[Row], completions: list[Completion], device: torch.device):
        self.rows = rows
        self.completions = completions
        self.sequences: list[list[int]] = []
        for completion in completions:
            self.sequences.append([*completion.prompt_ids, *completion.token_ids])
        self.lengths = [len(sequence) for sequence in self.sequences]
        # Of the tokens that the policy wrote, in their sequence; between them may stand what tools
        # answered.
        self.positions = [_policy_positions(completion) for completion in completions]
        self.responses = [len(positions) for positions in self.positions]
        responses_B1 = torch.tensor(self.responses).unsqueeze(1)
        columns_R = torch.arange(max(self.responses))
        self.mask_BR = (columns_R < responses_B1).to(device)

        self.logprobs_BR = self._zeros()
        self.ref_logprobs_BR = self._zeros()
        self.kl_BR = self._zeros()
        self.values_BR = self._zeros()
        self.advantages_BR = self._zeros()
        self.returns_BR = self._zeros()
        self.weights_BR = self.mask_BR.float()  # in the loss of the current mini-batch
        # Sums over all micro-batches of an update, for the log.
        self.sums: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=device))
        self.has_logprobs = False  # from sampling, so that the policy need not compute them
        # Where another sampler than the policy drew the tokens: its log-probabilities, and the
        # weights that they give the losses.
        self.sampler_logprobs_BR: Tensor | None = None
        self.importance_BR: Tensor | None = None
        # Once rewards have been asked: the reward of each token, NaN where none was given, and the
        # sum of each reward.
        self.earned_BR: Tensor | None = None
        self.reward_sums_BF: Tensor | None = None

    def _zeros(self) -> Tensor:
        return torch.zeros(self.mask_BR.shape, device=self.mask_BR.device)

    @classmethod
    def joined(cls, picked: Sequence[tuple["Rollout", int]]) -> "Rollout":
        """Rows of several rollouts, whose rewards are known, as one rollout."""
        first, _ = picked[0]
        rows = [rollout.rows[row] for rollout, row in picked]
        completions = [rollout.completions[row] for rollout, row in picked]
        joined = cls(rows, completions, first.mask_BR.device)

        def join(name: str, fill: float) -> Tensor:
            """A tensor [B, R] of the picked rows, whose responses may be of another width now."""
            parts = []
            for rollout, row in picked:
                values_R = getattr(rollout, name)[row]
                parts.append(values_R[: rollout.responses[row]])
            filled_BR = torch.full_like(joined.logprobs_BR, fill)
            return filled_BR.masked_scatter(joined.mask_BR, torch.cat(parts))

        joined.has_logprobs = first.has_logprobs
        joined.logprobs_BR = join("logprobs_BR", 0.0)
        if first.sampler_logprobs_BR is not None:
            joined.sampler_logprobs_BR = join("sampler_logprobs_BR", 0.0)
        joined.earned_BR = join("earned_BR", math.nan)
        sums = [rollout.reward_sums_BF[row] for rollout, row in picked]  # type: ignore[index]
        joined.reward_sums_BF = torch.stack(sums)
        return joined

    def count_tokens(self, rows: Sequence[int]) -> int:
        """The number of tokens that the policy wrote in some rows."""
        return sum(self.responses[row] for row in rows)

    def micro_batches(
        self,
        rows: Sequence[int],
        budget: int,
        *,
        padding_free: bool = False,
        agree: Callable[[int], int] | None = None,
    ) -> list[MicroBatch]:
        """Batches of some rows, at most ``budget`` tokens each with padding; a longer row is alone.

        ``agree`` gives the number of batches that all processes take, for the number of this one's.
        """
        split = fill_by_tokens if padding_free else split_by_tokens
        # The last token of a row is only a target.
        lengths = [length - 1 for length in self.lengths]
        groups = split(rows, lengths, budget)
        missing = 0
        if agree is not None:
            missing = agree(len(groups)) - len(groups)
        # All processes must take as many passes, or some would wait for the others for ever.
        for _ in range(missing):
            largest = max(groups, key=len)
            groups.remove(largest)
            half = len(largest) // 2
            groups += [largest[:half], largest[half:]]
        return [self.micro_batch(group, padding_free=padding_free) for group in groups]

    def micro_batch(self, rows: Sequence[int], *, padding_free: bool = False) -> MicroBatch:
        """The rows without their last token, padded on the right or end to end."""
        device = self.mask_BR.device
        inputs = [self.sequences[row][:-1] for row in rows]
        lengths = [len(ids) for ids in inputs]
        if padding_free:
            joined_ids = list(chain.from_iterable(inputs))
            input_ids_BT, _ = pad([joined_ids], device)
            starts = list(accumulate(lengths[:-1], initial=0))
        else:
            input_ids_BT, _ = pad(inputs, device)
            width = input_ids_BT.shape[1]
            starts = [index * width for index in range(len(rows))]

        positions: list[int] = []
        targets: list[int] = []
        indices: list[int] = []
        columns = self.mask_BR.shape[1]
        for row, start in zip(rows, starts, strict=True):
            sequence = self.sequences[row]
            row_positions = self.positions[row]
            # The token at a position is predicted from the one before it.
            positions += [start + position - 1 for position in row_positions]
            targets += [sequence[position] for position in row_positions]
            first = row * columns
            indices += range(first, first + self.responses[row])

        def to_device(numbers: Sequence[int]) -> Tensor:
            return torch.tensor(numbers).to(device, non_blocking=True)

        return MicroBatch(
            rows_B=to_device(rows),
            input_ids_BT=input_ids_BT,
            positions_N=to_device(positions),
            targets_N=to_device(targets),
            indices_N=to_device(indices),
            row_lengths=lengths if padding_free else None,
        )

    def to_rows(self, names: Sequence[str]) -> list[dict[str, object]]:
        """The completions with their rewards, by these names, and the mean of their advantages."""
        assert self.reward_sums_BF is not None and self.earned_BR is not None
        sums_B = (self.advantages_BR * self.mask_BR).sum(1)
        advantages_B = sums_B / self.mask_BR.sum(1)
        figures = zip(
            self.completions,
            self.reward_sums_BF.tolist(),
            self.earned_BR.nansum(1).tolist(),
            advantages_B.tolist(),
            strict=True,
        )
        rows: list[dict[str, object]] = []
        for completion, sums, reward, advantage in figures:
            rewards = {}
            for name, value in zip(names, sums, strict=True):
                rewards[name] = None if math.isnan(value) else value
            finish = completion.finish
            if ends_with_tool(completion.answer):
                finish = "tool"
            rows.append(
                {
                    "prompt": completion.prompt,
                    "completion": completion.answer,
                    "rewards": rewards,
                    "reward": reward,
                    "advantage": advantage,
                    "tokens": len(completion.token_ids),
                    "finish": finish,
                }
            )
        return rows

    def to_table(self, scores_B: Tensor, step: int, set_name: str) -> list[dict[str, object]]:
        """The rows of ``completions.jsonl``, with the score of each completion."""
        table: list[dict[str, object]] = []
        for completion, score in zip(self.completions, scores_B.tolist(), strict=True):
            table.append(
                {
                    "step": step,
                    "set": set_name,
                    "prompt": completion.prompt,
                    "completion": completion.answer,
                    "score": score,
                }
            )
        return table


def _policy_positions(completion: Completion) -> list[int]:
    """The positions, in prompt and completion, of the tokens that the policy wrote."""
    start = len(completion.prompt_ids)
    if completion.own is None:
        end = start + len(completion.token_ids)
        return list(range(start, end))
    return [start + index for index, is_own in enumerate(completion.own) if is_own]
