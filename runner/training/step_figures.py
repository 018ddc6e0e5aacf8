"""The figures of one optimizer step, as each process sees them and as one of all processes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from accelerate.utils import gather

from runner.training.probe import largest

UNSEEN = -1.0  # the number by which None is sent, for figures that are never below 0


class RewardRange(NamedTuple):
    """The lowest and highest value of a reward since the training began, and their number."""

    low: float
    high: float
    number: int


@dataclass(frozen=True)
class StepFigures:
    """Figures of one optimizer step; None is what a process could not see."""

    loss: float = math.nan  # the sum over the step's micro-batches; NaN without any
    gradient: float | None = None  # the largest entry of a gradient that was looked at
    weight: float | None = None  # the root mean square of the weights that were looked at
    moved: bool | None = None  # whether some weight changed
    norm: float | None = None  # of the gradient before its clip
    slope: float | None = None  # the cosine between the change of the weights and the gradient
    length: float | None = None  # trained tokens of an answer, on average
    rewards: Mapping[str, RewardRange] = field(default_factory=dict)

    def to_numbers(self) -> list[float]:
        """The figures as numbers that can be sent to other processes."""
        numbers = [self.loss]
        for size in (self.gradient, self.weight, self.moved, self.norm):
            numbers.append(UNSEEN if size is None else float(size))
        for figure in (self.slope, self.length):
            numbers.append(math.nan if figure is None else figure)
        for reward in self.rewards.values():
            numbers += [reward.low, reward.high, float(reward.number)]
        return numbers

    @classmethod
    def from_numbers(cls, numbers: Sequence[float], reward_names: Sequence[str]) -> "StepFigures":
        """The figures that a process has sent by ``to_numbers``, with rewards of these names."""
        loss, gradient, weight, moved, norm, slope, length, *ranges = numbers
        has_moved = None
        if moved != UNSEEN:
            has_moved = moved > 0
        rewards = {}
        for index, name in enumerate(reward_names):
            start = 3 * index
            low, high, count = ranges[start : start + 3]
            rewards[name] = RewardRange(low, high, int(count))
        return cls(
            loss=loss,
            gradient=_size(gradient),
            weight=_size(weight),
            moved=has_moved,
            norm=_size(norm),
            slope=finite_or_none(slope),
            length=finite_or_none(length),
            rewards=rewards,
        )


def gather_figures(figures: StepFigures, device: torch.device) -> StepFigures:
    """The figures of all processes as one; every process has to call it at the same step."""
    numbers = torch.tensor([figures.to_numbers()], dtype=torch.float64, device=device)
    reward_names = list(figures.rewards)
    of_processes = []
    for row in gather(numbers).tolist():
        of_processes.append(StepFigures.from_numbers(row, reward_names))
    return merge_figures(of_processes)


def merge_figures(processes: Sequence[StepFigures]) -> StepFigures:
    """The figures of several processes as one: means of loss and length, the largest of the sizes.

    The slope is that of the first process that knows one.
    """
    moves = []
    slopes = []
    lengths = []
    for figures in processes:
        if figures.moved is not None:
            moves.append(figures.moved)
        if figures.slope is not None:
            slopes.append(figures.slope)
        if figures.length is not None:
            lengths.append(figures.length)
    length = None
    if len(lengths) == len(processes):
        length = _mean(lengths)
    rewards = {}
    for name in processes[0].rewards:
        ranges = [figures.rewards[name] for figures in processes]
        rewards[name] = _merge_ranges(ranges)
    return StepFigures(
        loss=_mean([figures.loss for figures in processes]),
        gradient=_largest_known([figures.gradient for figures in processes]),
        weight=_largest_known([figures.weight for figures in processes]),
        moved=any(moves) if moves else None,
        norm=_largest_known([figures.norm for figures in processes]),
        slope=slopes[0] if slopes else None,
        length=length,
        rewards=rewards,
    )


def finite_or_none(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def _size(number: float) -> float | None:
    return None if number < 0 else number


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _largest_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return largest(known)


def _merge_ranges(ranges: Sequence[RewardRange]) -> RewardRange:
    """One range around all; NaN where a bound is NaN."""
    low = -largest([-reward.low for reward in ranges])
    high = largest([reward.high for reward in ranges])
    number = sum(reward.number for reward in ranges)
    return RewardRange(low, high, number)
