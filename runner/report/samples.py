"""Sampled completions of several columns side by side, by their prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.run.history import read_samples
from runner.run.record import RunRecord

MAX_COLUMNS = 6  # settings, or steps of one run, whose completions stand side by side

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


def completions_by_step(run: RunRecord) -> list[Prompt]:
    """Prompts with the completions of a run at a few steps, the first and the last among them."""
    samples = read_samples(run.folder, dense=True)
    steps = sorted({sample["step"] for sample in samples})
    if not steps:
        return []
    distance = (len(steps) - 1) / (MAX_COLUMNS - 1)
    places = sorted({round(column * distance) for column in range(MAX_COLUMNS)})
    columns = []
    for place in places:
        step = steps[place]
        samples_of_step = at_step(samples, step)
        columns.append(SampleColumn(f"step {step}", None, samples_of_step))
    return shared_prompts(columns)


def at_step(samples: Sequence[Sample], step: float) -> list[Sample]:
    """The samples of one step."""
    return [sample for sample in samples if sample["step"] == step]


def shared_prompts(columns: Sequence[SampleColumn]) -> list[Prompt]:
    """The prompts that all columns have, each with its first completion in each column."""
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
