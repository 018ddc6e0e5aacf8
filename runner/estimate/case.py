"""The runs that are tried in small, one of each kind, with those that each stands for.

Runs that differ in numbers only are one case: a learning rate or a seed changes what is learnt, and
not what is done; a batch size, a rank or a zero changes that too.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.config.resolution import Composed
from runner.io.files import read_json
from runner.run import Run
from runner.run.key import folder_of, key_of, label_of, lasting
from runner.schema.text import Config, scalars

# Whole numbers that only say how long, how often, or which chance.
LENGTHS = re.compile(
    r"(^|\.)((data_)?seed|(max|save|eval|logging|warmup)_steps|num_train_epochs|total_episodes"
    r"|limit\.(train|eval))$"
)
# Files in the folder of a smoke run.
UNREDUCED = "unreduced"
ROWS = "rows.json"
UNEXPORTED = "unexported.json"
MAX_LABEL_WIDTH = 45  # characters of a label in a line


@dataclass
class Reduced:
    """A run in small, and in what it is not as the real run."""

    cfg: dict[str, Any]
    unreduced: dict[str, Any]  # the real run on its first few hundred rows
    rows: int | None = None  # of the real run, None where nobody knows
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep a note, unless it is empty or there already."""
        if text and text not in self.notes:
            self.notes.append(text)


@dataclass
class Case:
    """One run that is tried, and the runs that it stands for."""

    composed: Composed
    before: "Case | None" = None  # of the stage before it
    runs: dict[str, Composed] = field(default_factory=dict)  # by their keys, with itself
    small: Reduced = field(init=False)  # what is played for it
    run: Run = field(init=False)  # whose folder that is in
    seconds: float = 0.0
    code: int | None = None  # until it has ended

    @property
    def name(self) -> str:
        """A case as a person knows it: the name of its runs, and its label."""
        name = str(self.composed.experiment.name)
        label = label_of(self.composed.overrides, name)
        if len(label) > MAX_LABEL_WIDTH:
            label = f"{label[: MAX_LABEL_WIDTH - 1]}…"
        return name if label == "default" else f"{name} {label}"


def group_by_structure(jobs: Sequence[Sequence[Composed]]) -> list[Case]:
    """The runs that differ in structure, in the order in which they are played.

    Stages follow those that they build on.
    """
    cases: dict[str, Case] = {}
    for runs in jobs:
        links: dict[str, str] = {}  # the structures of the stages so far, by their models
        case = None
        for composed in runs:
            structure = structure_of(composed.cfg, links)
            case = cases.setdefault(structure, Case(composed, case))
            case.runs.setdefault(key_of(composed.cfg), composed)
            links[model_of(composed)] = structure
    return list(cases.values())


def model_of(composed: Composed) -> str:
    """The folder in which a run will leave its model, as later stages name it."""
    return str(folder_of(composed.cfg, composed.overrides) / "model")


def structure_of(cfg: Config, links: Mapping[str, str]) -> str:
    """Ten hex digits that are equal where two runs do the same with other numbers."""
    structure = {}
    for path, value in scalars(lasting(cfg)):
        is_length = isinstance(value, int) and LENGTHS.search(path)
        if isinstance(value, float) or is_length:
            structure[path] = "a number" if value else 0
        elif isinstance(value, str):
            structure[path] = links.get(value, value)
        else:
            structure[path] = value
    return key_of(structure)


def read_lengths(run: Run) -> dict[str, Any]:
    """The lengths and number of the real run's rows, as far as a smoke run has seen them."""
    return read_json(run.folder / ROWS) or {}
