"""Marks: what a measurement has to reach, the figure that it reached, and how both are shown.

Each script of this folder prints its own tables. What an issue or a page promises it also says as
a ``Mark``, on a line of the table that ``suite.py`` prints. Left out on purpose: how anything is
measured.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

HEAD = "| work | ours | beside | measured | mark | |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Mark:
    """One measured figure beside what it has to be."""

    work: str
    measured: float  # the figure itself: a ratio, or seconds, or megabytes
    mark: float
    at_least: bool = True  # or at most
    ours: str = ""  # with its unit, as people read it
    beside: str = ""  # the other side, with its name

    @property
    def holds(self) -> bool:
        if math.isnan(self.measured):
            return False
        return self.measured >= self.mark if self.at_least else self.measured <= self.mark

    def line(self) -> str:
        """A line of the table under ``HEAD``."""
        sign = "≥" if self.at_least else "≤"
        verdict = "holds" if self.holds else "**missed**"
        cells = [self.work, self.ours, self.beside, f"{self.measured:.3g}", f"{sign} {self.mark:g}"]
        return f"| {' | '.join([*cells, verdict])} |"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Let a script be told where its marks go."""
    parser.add_argument("--marks", type=Path, help="a file that gets a line of JSON for each mark")


def note(mark: Mark, file: Path | None) -> None:
    """Print a mark, and add it to the file of marks if there is one."""
    print(mark.line(), flush=True)
    if file is not None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(mark)) + "\n")


def read(file: Path) -> list[Mark]:
    """The marks in a file, in the order in which they were measured."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [Mark(**json.loads(line)) for line in lines]
