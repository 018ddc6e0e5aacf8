"""One run by itself: what it is beyond the defaults, what it reached, and its first rows.

How that looks is in ``page``; the states and scores themselves are read in ``run.read``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from runner.errors import RunnerError
from runner.io.files import read_rows, shipped
from runner.report.axis import MISSING, TOP, lasting_keys
from runner.report.number import number, value
from runner.report.objective import informative
from runner.report.repeat import folders_in, words_of
from runner.run.read import RunRecord, plain_text, read_run
from runner.schema import Config

MAX_ROWS = 3
WHOLE = ("experiment", "sweep")  # options that set keys of other groups; what they set does differ


@dataclass(frozen=True)
class RunView:
    """One run as its page shows it.

    ``differing`` has each key whose value is not that of the chosen options, with both values; None where the folder
    does not say what was chosen. ``scores`` has name, before and after, ``rows`` the first rows of a local dataset.
    """

    run: RunRecord
    differing: list[tuple[str, str, str]] | None
    scores: list[tuple[str, str, str]]
    rows: list[list[tuple[str, str]]]
    config: str


def view_of(folder: Path) -> RunView:
    """Read one run folder; nothing in it can make this fail."""
    run = read_run(folder)
    config = yaml.safe_dump(dict(run.cfg), sort_keys=False, allow_unicode=True) if run.cfg else ""
    return RunView(run, differing(run), score_rows(run), first_rows(run.cfg), config)


def differing(run: RunRecord) -> list[tuple[str, str, str]] | None:
    """Each key whose value is not what the chosen options bring, with the run's value and theirs.

    The options are looked up in the menu as it is today; None where they are not known or no longer there.
    """
    words = words_of(run)
    if words is None or not run.cfg:
        return None
    from runner.config import compose, differences

    overrides, folders = folders_in(words)
    try:
        choices = compose(overrides, folders).choices.items()
        chosen = [f"{group}={option}" for group, option in choices if "/" not in group and group not in WHOLE]
        baseline = compose([word for word in chosen if not word.endswith("=None")], folders).cfg
    except RunnerError:
        return None
    found = [
        (key, *(MISSING if entry is None else value(entry) for entry in pair))
        for key, *pair in differences(lasting_keys(run.cfg), lasting_keys(baseline))
    ]
    of_top = {(mine, other) for key, mine, other in found if key in TOP}
    return [(key, mine, other) for key, mine, other in found if key in TOP or (mine, other) not in of_top]


def score_rows(run: RunRecord) -> list[tuple[str, str, str]]:
    """The name of each score that says something, with its value before and after training."""
    names = informative(list(dict.fromkeys([*run.after, *run.before])))
    return [(name, number(run.before.get(name)), number(run.after.get(name))) for name in names]


def first_rows(cfg: Config) -> list[list[tuple[str, str]]]:
    """Column and text of the first training rows, where the data is local JSON lines; other data takes libraries."""
    rows = cfg.get("dataset")
    if not isinstance(rows, Mapping) or not isinstance(rows.get("path"), str):
        return []
    splits = rows.get("split")
    split = str((isinstance(splits, Mapping) and splits.get("train")) or "train").partition("[")[0]
    path = Path(shipped(rows["path"]))
    file = path / f"{split}.jsonl" if path.is_dir() else path
    if file.suffix != ".jsonl" or not file.is_file():
        return []
    return [[(name, plain_text(entry)) for name, entry in row.items()] for row in read_rows(file, MAX_ROWS)]
