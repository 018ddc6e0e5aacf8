"""The runs of one name, side by side: settings with their mean and spread over seeds, ranked by one score.

    summary = summarise(Path("outputs/kl"))      reads, draws nothing
    print(table(summary, width=80))              from ``table``
    write_report(summary)                        from ``page``: summary.csv, summary.jsonl, plots/, report.html

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
from runner.report.number import plural, value
from runner.report.objective import Objective, choose_objective, score_names, telling
from runner.report.repeat import choices_of, command_of
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
    def state(self) -> str:
        """The states of its runs in a word or two."""
        run = self.runs[0]
        if len(self.runs) == 1 and run.state in ("running", "interrupted", "lost"):
            return run.standing
        return run.state if len(self.states) == 1 else list_states(self.runs)

    @property
    def finished(self) -> list[RunRecord]:
        return [run for run in self.runs if run.state == "finished"]

    @property
    def label(self) -> str:
        """The setting as it would be typed."""
        words = " ".join(f"{name}={value(entry)}" for name, entry in self.values.items())
        return words or ("all seeds" if len(self.runs) > 1 else self.runs[0].folder.name)


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
    def all_finished(self) -> bool:
        return set(self.states) <= {"finished"}

    @property
    def unfinished(self) -> list[RunRecord]:
        return [run for run in self.runs if run.state != "finished" or run.damaged]

    @property
    def shown_scores(self) -> list[str]:
        """The objective, and the other scores that say something."""
        return list(dict.fromkeys([*([self.objective.name] if self.objective else []), *telling(self.scores)]))

    @property
    def counts(self) -> str:
        """The number of settings and seeds; nothing where every run has the same seed."""
        both = f"{plural(len(self.settings), 'setting')}, {plural(len(self.seeds), 'seed')}"
        return both if self.seeds else ""

    @property
    def best(self) -> Setting | None:
        """The first of the settings that compete; None where nothing has a score."""
        return next(iter(self.competing), None)

    @property
    def best_command(self) -> str:
        """The command that makes the finished runs of the best setting again; nothing where there is none."""
        runs = self.best.finished if self.best else []
        return command_of(runs[0], [run.cfg.get("seed") for run in runs] if self.seeds else ()) if runs else ""

    @property
    def competing(self) -> list[Setting]:
        """The settings with a score; where some have it from several seeds, those with one alone are left out."""
        scored = [setting for setting in self.settings if self.count(setting)]
        several = [setting for setting in scored if self.count(setting) > 1]
        return several or scored

    @property
    def tied(self) -> int:
        """The number of other settings that score exactly as the best one."""
        return sum(self.mean(setting) == self.mean(self.best) for setting in self.competing[1:]) if self.best else 0

    @property
    def near(self) -> int:
        """The number of competing settings that score worse than the best, by less than its standard deviation."""
        if self.best is None or self.objective is None or self.best.sd(self.objective.name) is None:
            return 0
        gaps = [abs(self.mean(setting) - self.mean(self.best)) for setting in self.competing[1:]]
        return sum(0 < gap < self.best.sd(self.objective.name) for gap in gaps)

    @property
    def doubt(self) -> str:
        """A reason against taking the best setting for the best, or nothing."""
        parts = [f"tied with {plural(self.tied, 'other setting')}"] if self.tied else []
        parts += [f"{plural(self.near, 'other setting')} within one standard deviation"] if self.near else []
        single = sum(self.count(setting) == 1 for setting in self.settings)
        if single and self.best and self.count(self.best) > 1:
            parts.append(f"{plural(single, 'setting')} with one finished seed left out")
        return ", ".join(parts)

    @cached_property
    def importance(self) -> Importance | None:
        """The importance of each axis to the objective; None where there is no score or no axis."""
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
        """The number of runs from which the setting has its objective."""
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
    names = list(dict.fromkeys([*([wanted.name] if wanted else []), *score_names(runs)]))

    def rank(setting: Setting) -> tuple[bool, float]:
        mean = setting.mean(wanted.name) if wanted else None
        return mean is None, 0.0 if mean is None or wanted is None else (-mean if wanted.maximise else mean)

    settings = sorted(_settings(runs, keys, names), key=rank)
    return Summary(group, runs, keys, seeds.levels if seeds else [], settings, names, wanted)


def count_states(runs: Sequence[RunRecord]) -> dict[str, int]:
    """The number of runs in each state, in the order of STATES."""
    counts = Counter(run.state for run in runs)
    return {state: counts[state] for state in sorted(counts, key=lambda state: (*STATES, state).index(state))}


def list_states(runs: Sequence[RunRecord]) -> str:
    """The number of runs in each state as a text."""
    return ", ".join(f"{count} {state}" for state, count in count_states(runs).items())


def _settings(runs: Sequence[RunRecord], axes: Sequence[Axis], names: Sequence[str]) -> list[Setting]:
    """The runs grouped by their values of the axes; those whose config cannot be read stand alone."""
    groups: dict[Any, list[int]] = {}
    for index, run in enumerate(runs):
        groups.setdefault(tuple(axis.column[index] for axis in axes) if run.cfg else index, []).append(index)
    found = []
    for places in groups.values():
        members = [runs[place] for place in places]
        values = {axis.name: axis.column[places[0]] for axis in axes}
        scores = {name: [score for run in members if (score := run.score(name)) is not None] for name in names}
        found.append(Setting(values, members, scores))
    return found
