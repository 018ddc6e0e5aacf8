"""A curriculum: rows that are solved always or never are drawn less than the others.

What a row may still teach is the standard deviation of what its last completions earned. Of rewards
that are 0 or 1 with a success rate p it is the root of p (1 - p): most for a half, nothing for 0
and 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import pstdev

import torch
from datasets import Dataset

from runner.dataset.faults import misnamed
from runner.errors import DataError

EACH_ROW = "rows"  # in the place of a column: each row has a rate of its own

MEMORY = 16  # completions; what the model could do before says little
# So many completions speak for a row beforehand: one of which nothing is known weighs 1.
PRIOR = 2
MIN_WEIGHT = 0.1  # a row that taught nothing may teach something later


@dataclass
class Curriculum:
    """The last rewards of rows, and their weights. Rows with the same key share what is known."""

    keys: Sequence[str]  # of each row
    rewards: dict[str, list[float]] = field(default_factory=dict)  # by key, the last ones

    def record(self, row: int, rewards: Sequence[float]) -> None:
        """Take in what completions of a row have earned."""
        key = self.keys[row]
        known = self.rewards.get(key, [])
        self.rewards[key] = [*known, *rewards][-MEMORY:]

    def weights(self) -> list[float]:
        """The weight of each row, from MIN_WEIGHT to 1."""
        deviations = {key: pstdev(rewards) for key, rewards in self.rewards.items()}
        highest = max(deviations.values(), default=0.0) or 1.0
        weights = {}
        for key, deviation in deviations.items():
            count = len(self.rewards[key])
            # The mean of what its completions say, from 0 to 1, and of 1 for those of PRIOR.
            seen = count * deviation / highest
            weight = (PRIOR + seen) / (PRIOR + count)
            weights[key] = max(MIN_WEIGHT, weight)
        return [weights.get(key, 1.0) for key in self.keys]

    def draw(self, count: int, generator: torch.Generator) -> list[int]:
        """The numbers of so many rows, all different where there are enough."""
        weights = torch.tensor(self.weights(), dtype=torch.float64)
        replacement = count > len(weights)
        drawn = torch.multinomial(weights, count, replacement, generator=generator)
        numbers: list[int] = drawn.tolist()
        return numbers


def curriculum_keys(rows: Dataset, column: str) -> list[str]:
    """The key of each row: its number, or what it has in a column.

    Raises DataError for a column that the rows do not have.
    """
    if column == EACH_ROW:
        return [str(number) for number in range(len(rows))]
    if column not in rows.column_names:
        raise DataError(misnamed("trainer.curriculum", column, [EACH_ROW, *rows.column_names]))
    return [str(value) for value in rows[column]]
