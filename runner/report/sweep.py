"""The runs of one name, side by side: settings with their mean and spread over seeds, ranked by one score.

    summary = summarise(Path("outputs/kl"))      reads, draws nothing
    print(table(summary, width=80))              from ``table``
    write_report(summary)                        summary.csv, summary.jsonl, plots/, report.html

A sweep is nothing but its run folders, so a report can be made of any of them at any time, also while they train.
How things look is not here (``table``, ``plot``, ``page``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from runner.report.axis import Axis, axes_of
from runner.report.importance import Importance, importance_of
from runner.report.number import value
from runner.report.objective import Objective, choose_objective, scores_of
from runner.report.repeat import choices_of
from runner.run.read import RunRecord, read_group

STATES = ("finished", "running", "interrupted", "failed", "lost", "created", "unknown")


@dataclass(frozen=True)
class Setting:
    """The runs that differ in nothing but the seed, with the score of each that finished."""

    values: Mapping[str, Any]
    runs: Sequence[RunRecord]
    scores: Mapping[str, list[float]] = field(default_factory=dict)

    def mean(self, name: str) -> float | None:
        return fmean(self.scores[name]) if self.scores.get(name) else None

    def sd(self, name: str) -> float | None:
        """The sample standard deviation over seeds; None with fewer than two."""
        return stdev(self.scores[name]) if len(self.scores.get(name, ())) > 1 else None

    @property
    def states(self) -> dict[str, int]:
        return count_states(self.runs)

    @property
    def finished(self) -> int:
        return self.states.get("finished", 0)

    @property
    def label(self) -> str:
        """The setting as it would be typed."""
        told = " ".join(f"{name}={value(entry)}" for name, entry in self.values.items())
        return told or ("all seeds" if len(self.runs) > 1 else self.runs[0].folder.name)


@dataclass(frozen=True)
class Summary:
    """A group of runs as it is now; ``settings`` come best first, those without a score last."""

    group: Path
    runs: Sequence[RunRecord]
    axes: Sequence[Axis]
    seeds: Sequence[Any]
    settings: Sequence[Setting]
    scores: Sequence[str]
    objective: Objective | None

    @property
    def states(self) -> dict[str, int]:
        return count_states(self.runs)

    @property
    def unfinished(self) -> list[RunRecord]:
        return [run for run in self.runs if run.state != "finished" or run.damaged]

    @property
    def best(self) -> Setting | None:
        """The first of the settings that compete; None where nothing has a score."""
        return next(iter(self.competing), None)

    @property
    def competing(self) -> list[Setting]:
        """The settings with a score; where some have it from several seeds, those with one alone are left out."""
        scored = [setting for setting in self.settings if self.count(setting)]
        several = [setting for setting in scored if self.count(setting) > 1]
        return several or scored

    @property
    def tied(self) -> int:
        """How many other settings score exactly as the best one."""
        return sum(self.mean(setting) == self.mean(self.best) for setting in self.competing[1:]) if self.best else 0

    @property
    def near(self) -> int:
        """How many competing settings score worse than the best, but by less than its standard deviation."""
        if self.best is None or self.objective is None or self.best.sd(self.objective.name) is None:
            return 0
        gaps = [abs(self.mean(setting) - self.mean(self.best)) for setting in self.competing[1:]]
        return sum(0 < gap < self.best.sd(self.objective.name) for gap in gaps)

    @cached_property
    def importance(self) -> Importance | None:
        """How much each axis matters to the objective; None where there is no score or no axis."""
        if self.objective is None or not self.axes:
            return None
        scored = [(run.score(self.objective.name), index) for index, run in enumerate(self.runs) if run.cfg]
        scored = [(score, index) for score, index in scored if score is not None]
        columns = {axis.name: [axis.column[index] for _, index in scored] for axis in self.axes}
        return importance_of(columns, [score for score, _ in scored])

    def mean(self, setting: Setting) -> float | None:
        """The setting's mean objective."""
        return setting.mean(self.objective.name) if self.objective else None

    def count(self, setting: Setting) -> int:
        """From how many runs the setting has its objective."""
        return len(setting.scores.get(self.objective.name, ())) if self.objective else 0


def summarise(group: Path, objective: str | None = None, direction: str | None = None) -> Summary:
    """Read every run of a name and put them side by side.

    ``objective`` is a score to rank by and ``direction`` max or min; both are found where they are not given.
    """
    runs = read_group(group)
    axes = axes_of([run.cfg for run in runs], [choices_of(run) for run in runs])
    seeds = next((axis for axis in axes if axis.key == "seed"), None)
    keys = [axis for axis in axes if axis.key != "seed"]
    wanted = choose_objective(runs, objective, direction)
    names = list(dict.fromkeys([*([wanted.name] if wanted else []), *scores_of(runs)]))
    settings = _settings(runs, keys, names)
    ranked = sorted(settings, key=lambda setting: _rank(setting, wanted))
    return Summary(group, runs, keys, seeds.levels if seeds else [], ranked, names, wanted)


def write_report(summary: Summary) -> Path:
    """Write ``summary.csv``, ``summary.jsonl``, ``plots/`` and ``report.html`` into the group; returns the page.

    Where nothing has changed since they were written, nothing is.
    """
    from runner.report.fingerprint import fingerprint_of, is_written

    linked = [(run.folder / "report.html").exists() for run in summary.runs]
    mark = fingerprint_of(summary.runs, summary.objective, linked)
    page = summary.group / "report.html"
    if not is_written(page, mark, [page.with_name("summary.csv"), page.with_name("summary.jsonl")]):
        _write(summary, page, mark)
    return page


def count_states(runs: Sequence[RunRecord]) -> dict[str, int]:
    """How many runs are in each state, in the order of STATES."""
    counts = Counter(run.state for run in runs)
    return {state: counts[state] for state in sorted(counts, key=lambda state: (*STATES, state).index(state))}


def _write(summary: Summary, page: Path, mark: str) -> None:
    from runner.files import write_text
    from runner.report.page import sweep_page
    from runner.report.table import to_csv, to_jsonl

    write_text(page.with_name("summary.csv"), to_csv(summary))
    write_text(page.with_name("summary.jsonl"), to_jsonl(summary))
    write_text(page, sweep_page(summary, mark, plots=page.with_name("plots")))


def _settings(runs: Sequence[RunRecord], axes: Sequence[Axis], names: Sequence[str]) -> list[Setting]:
    """The runs grouped by their values of the axes; those whose config cannot be read stand alone."""
    groups: dict[Any, list[int]] = {}
    for index, run in enumerate(runs):
        groups.setdefault(tuple(axis.column[index] for axis in axes) if run.cfg else index, []).append(index)
    found = []
    for places in groups.values():
        members = [runs[place] for place in places]
        values = {axis.name: axis.column[places[0]] for axis in axes}
        found.append(Setting(values, members, {name: _scores(members, name) for name in names}))
    return found


def _scores(runs: Sequence[RunRecord], name: str) -> list[float]:
    return [score for run in runs if (score := run.score(name)) is not None]


def _rank(setting: Setting, objective: Objective | None) -> tuple[bool, float]:
    mean = setting.mean(objective.name) if objective else None
    return mean is None, 0.0 if mean is None or objective is None else (-mean if objective.maximise else mean)
