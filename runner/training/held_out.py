"""Held-out figures as figures of the set: sums over rows or tokens, for any batch and processes.

TRL averages what it notes of each micro-batch, the Trainer takes the mean of the batches' losses,
and accelerate deals some rows twice where several processes share them (``even_batches``). Here
each micro-batch adds its figures to sums, weighted by the number of rows or tokens that each figure
is a mean over (``micro_batch``), so that no row counts more than another.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor
from transformers import Trainer

from runner.schema import upstream
from runner.training.micro_batch import (
    CHOSEN,
    LIKELIHOOD,
    LIKELIHOOD_TOKENS,
    REJECTED,
    ROWS,
    TERMINATED,
    TOKENS,
    Counts,
    Reading,
    count_units,
    likelihood_share,
    read_along,
    unit_of,
)

# Attributes in which trainers note what they will log: public in our PPO and in online DPO, private
# in the rest of TRL. They are only read. ``tests/test_held_out`` and ``tests/test_sick_runs`` fail
# where upstream renames them.
NOTES = ("metrics", "stats", "_stored_metrics", "_metrics")
Notes = Mapping[str, Sequence[float | Tensor]]  # by the name in the trainer's own log

# Figures that are no means, by their names.
LEAST = re.compile(r"(^|[/_])min([/_]|$)")
MOST = re.compile(r"(^|[/_])max([/_]|$)")
DEVIATIONS = ("_std", "/std")


def notes_of(trainer: Trainer, mode: str) -> Notes | None:
    """Notes of a trainer since it logged, of a mode, ``train`` or ``eval``; None without any."""
    attributes = vars(trainer)
    for attribute in NOTES:
        if attribute in attributes:
            notes: Any = attributes[attribute]
            by_mode = bool(notes) and isinstance(next(iter(notes.values())), dict)
            mode_notes: Notes | None = notes.get(mode, {}) if by_mode else notes
            return mode_notes
    return None


@dataclass
class WeightedSum:
    """The sum of a figure over micro-batches, and of its weights."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, total: float, weight: float) -> None:
        """Add a total, which is weighted already."""
        self.total += total
        self.weight += weight


@dataclass
class HeldOutSums:
    """Sums of the figures of micro-batches, each weighted by what it is a mean over."""

    copies: Sequence[int] = ()  # of the rows of each micro-batch
    batches: int = 0
    share: float = 0.0  # of the likelihood in the loss
    means: dict[str, WeightedSum] = field(default_factory=dict)
    squares: dict[str, WeightedSum] = field(default_factory=dict)  # of figures that are deviations
    least: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)

    def add(self, figures: Mapping[str, float], counts: Counts, loss_unit: str) -> None:
        """Add the figures of a micro-batch with these counts."""
        weight = 1 / self.copies[self.batches] if self.copies else 1.0
        self.batches += 1
        rows = counts[ROWS]
        for name, value in figures.items():
            if name.endswith(DEVIATIONS):
                mean = figures.get(_mean_beside(name), math.nan)
                square = (rows - 1) * value**2 + rows * mean**2
                self._add_square(name, square * weight, rows * weight)
            elif LEAST.search(name):
                self._add_least(name, value)
            elif MOST.search(name):
                self._add_most(name, value)
            else:
                unit = loss_unit if name == "loss" else unit_of(name, counts)
                count = counts[unit]
                if count:
                    self._add_mean(name, value * count * weight, count * weight)

    def _add_mean(self, name: str, total: float, weight: float) -> None:
        self.means.setdefault(name, WeightedSum()).add(total, weight)

    def _add_square(self, name: str, total: float, weight: float) -> None:
        self.squares.setdefault(name, WeightedSum()).add(total, weight)

    def _add_least(self, name: str, value: float) -> None:
        self.least[name] = min(value, self.least.get(name, math.inf))

    def _add_most(self, name: str, value: float) -> None:
        self.most[name] = max(value, self.most.get(name, -math.inf))

    def gathered(self) -> "HeldOutSums":
        """The sums of all processes together."""
        together = HeldOutSums(share=self.share)
        for sums in gather_object([self]):
            for name, mean in sums.means.items():
                together._add_mean(name, mean.total, mean.weight)
            for name, square in sums.squares.items():
                together._add_square(name, square.total, square.weight)
            for name, value in sums.least.items():
                together._add_least(name, value)
            for name, value in sums.most.items():
                together._add_most(name, value)
        return together

    def figures(self) -> dict[str, float]:
        """The figures of the set."""
        figures = {name: mean.total / mean.weight for name, mean in self.means.items()}
        for name, square in self.squares.items():
            rows = square.weight
            mean = figures.get(_mean_beside(name), math.nan)
            variance = max(0.0, square.total - rows * mean**2) / max(1.0, rows - 1)
            figures[name] = math.sqrt(variance)
        likelihood = figures.pop(LIKELIHOOD, None)
        if likelihood is not None and "loss" in figures:
            figures["loss"] += self.share * likelihood
        # The mean margin would miss micro-batches of labelled answers that have one side only.
        chosen = figures.get(f"rewards/{CHOSEN}")
        rejected = figures.get(f"rewards/{REJECTED}")
        if chosen is not None and rejected is not None:
            figures["rewards/margins"] = chosen - rejected
        return figures | self.least | self.most


def _mean_beside(deviation: str) -> str:
    """The name of the mean that a standard deviation belongs to."""
    if deviation.endswith("_std"):
        return deviation.removesuffix("_std")
    return f"{deviation.removesuffix('std')}mean"


@contextlib.contextmanager
def summed_up(
    trainer: Trainer, sums: HeldOutSums, batch: Any, losses: list[Tensor | None]
) -> Iterator[None]:
    """Add to the sums what a trainer notes of a micro-batch inside.

    Its loss is what the caller puts into ``losses`` there.
    """
    counts = count_units(trainer, batch)
    noted_before = {}
    for name, values in (notes_of(trainer, "eval") or {}).items():
        noted_before[name] = len(values)
    with read_along(trainer, batch) as reading:
        yield
    is_sampled = not isinstance(batch, Mapping)
    figures = _fresh_figures(trainer, noted_before, is_sampled)
    if is_sampled and "completions/mean_length" in figures:
        terminated = 1 - figures.get("completions/clipped_ratio", 0.0)
        counts[TOKENS] = figures["completions/mean_length"] * counts[ROWS]
        counts[TERMINATED] = terminated * counts[ROWS]
    if trainer.hooks.reads_cross_entropy and reading.cross_entropy is not None:
        figures[upstream.CROSS_ENTROPY] = reading.cross_entropy
    sums.share = likelihood_share(trainer)
    if sums.share:
        figures[LIKELIHOOD] = _likelihood(figures, counts, reading)
    is_mean_of_tokens = "labels" in batch
    if is_sampled and not hasattr(trainer, "reward_funcs"):  # a loss to a teacher
        is_mean_of_tokens = TOKENS in counts
    if losses and losses[0] is not None:
        loss = losses[0].float().mean().item()
        figures["loss"] = loss - sums.share * figures.get(LIKELIHOOD, 0.0)
    sums.add(figures, counts, TOKENS if is_mean_of_tokens else ROWS)


def _fresh_figures(
    trainer: Trainer, noted_before: Mapping[str, int], is_sampled: bool
) -> dict[str, float]:
    """The figures that a trainer has noted of its last micro-batch, those of a set only."""
    absent = left_out(trainer)
    figures = {}
    for note, values in (notes_of(trainer, "eval") or {}).items():
        fresh = [float(value) for value in values[noted_before.get(note, 0) :]]
        name = note.removeprefix("eval_")
        if not fresh or name in absent:
            continue
        # A reward may apply to none of the completions.
        if not (is_sampled and math.isnan(fresh[-1])):
            figures[name] = fresh[-1]
    return figures


def _likelihood(figures: Mapping[str, float], counts: Counts, reading: Reading) -> float:
    """The mean negative log-probability of the tokens that a loss of pairs learns by it."""
    if "nll_loss" in figures:
        return figures["nll_loss"]
    if reading.cross_entropy is not None:
        return reading.cross_entropy
    return -figures["logps/chosen"] * counts[CHOSEN] / max(1.0, counts[LIKELIHOOD_TOKENS])


def left_out(trainer: Trainer) -> set[str]:
    """The figures of a trainer that describe a batch, its padding or the training, and no set."""
    names = {"num_tokens", "aux_loss"}
    if hasattr(trainer, "calculate_KL"):
        names.add("kl")
    if hasattr(trainer, "concatenated_forward"):
        names |= {"logits/chosen", "logits/rejected"}
    return names
