"""Sampled completions: of several columns side by side, and those that steps were trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.report.number import plural
from runner.run.history import is_finite, read_rollouts, read_samples
from runner.run.record import RunRecord
from runner.schema.literal import number

MAX_COLUMNS = 6  # settings, or steps of one run, whose completions stand side by side
MAX_ROLLOUTS = 12  # steps of a run whose completions can be chosen

Sample = Mapping[str, Any]  # a sampled completion


@dataclass(frozen=True)
class SampleColumn:
    """Completions of one setting or one step, under a label."""

    label: str
    colour: str | None  # of the setting
    samples: Sequence[Sample]


@dataclass(frozen=True)
class SampleCell:
    """The completion of a prompt in one column."""

    label: str
    colour: str | None
    sample: Sample


@dataclass(frozen=True)
class Prompt:
    """A prompt with its completion in each column."""

    text: str
    cells: Sequence[SampleCell]


@dataclass(frozen=True)
class RolloutStep:
    """A few of the completions that a step was trained on, those of a prompt under its text."""

    step: int
    prompts: Sequence[Prompt]


def completions_by_step(run: RunRecord) -> list[Prompt]:
    """Prompts with the completions of a run at a few steps, the first and the last among them."""
    samples = read_samples(run.folder, dense=True)
    columns = []
    for step in _spread_steps(samples, MAX_COLUMNS):
        samples_of_step = at_step(samples, step)
        columns.append(SampleColumn(f"step {step}", None, samples_of_step))
    return shared_prompts(columns)


def rollouts_by_step(run: RunRecord) -> list[RolloutStep]:
    """Completions that a run was trained on, at a few steps, each with what is known of it."""
    rows = read_rollouts(run.folder)
    steps = []
    for step in _spread_steps(rows, MAX_ROLLOUTS):
        cells: dict[str, list[SampleCell]] = {}
        for row in at_step(rows, step):
            cell = SampleCell(_describe_rollout(row), None, row)
            cells.setdefault(row["prompt"], []).append(cell)
        prompts = [Prompt(text, cells_of_prompt) for text, cells_of_prompt in cells.items()]
        steps.append(RolloutStep(step, prompts))
    return steps


def _describe_rollout(row: Sample) -> str:
    """The rewards of a completion by their names, its advantage, its length and its end."""
    rewards = row.get("rewards")
    figures = dict(rewards) if isinstance(rewards, Mapping) else {}
    figures["advantage"] = row.get("advantage")
    texts = []
    for name, value in figures.items():
        if is_finite(value):
            texts.append(f"{name} {number(value)}")
    if is_finite(row.get("tokens")):
        texts.append(plural(row["tokens"], "token"))
    if row.get("finish"):
        texts.append(f"ended by {row['finish']}")
    return ", ".join(texts)


def _spread_steps(samples: Sequence[Sample], most: int) -> list[int]:
    """At most so many of the steps that have samples, the first and the last among them.

    They are at equal distances in the list of steps, all of them where there are fewer.
    """
    steps = sorted({sample["step"] for sample in samples})
    if not steps:
        return []
    last = len(steps) - 1
    distance = last / (most - 1)
    places = {round(number * distance) for number in range(most)}
    return [steps[place] for place in sorted(places)]


def at_step(samples: Sequence[Sample], step: float) -> list[Sample]:
    """The samples of one step."""
    return [sample for sample in samples if sample["step"] == step]


def shared_prompts(columns: Sequence[SampleColumn]) -> list[Prompt]:
    """The prompts that all columns have, each with its first completion in each column.

    Only such prompts can be compared; they come in the order of the first column.
    """
    if not columns:
        return []
    first_samples: list[dict[str, Sample]] = []
    for column in columns:
        by_prompt: dict[str, Sample] = {}
        for sample in column.samples:
            by_prompt.setdefault(sample["prompt"], sample)
        first_samples.append(by_prompt)
    prompts = []
    for text in first_samples[0]:
        cells = []
        for column, by_prompt in zip(columns, first_samples, strict=True):
            if text in by_prompt:
                cells.append(SampleCell(column.label, column.colour, by_prompt[text]))
        if len(cells) == len(columns):
            prompts.append(Prompt(text, cells))
    return prompts
