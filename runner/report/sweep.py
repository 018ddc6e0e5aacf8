"""The runs of one name, side by side: settings with their mean and spread over seeds, ranked by one score.

A sweep is nothing but its run folders: a report can be made at any time. How things look is not here (``table``,
``plot``, ``page``). Runs are chosen and ordered by words: ``where=state=failed,kl_coef>0.1`` and ``sort=eval_loss``. A
key is one that a report shows, or any dotted key of the config, by its end where that is enough; the name of a score;
or one of OWN. Texts are equal or not, and in the order of their letters, which is that of times.
"""

import os
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

from runner.errors import ConfigError, Fault
from runner.io.secrets import hidden
from runner.report.axis import MISSING, UNREAD, Axis, axes_of
from runner.report.facts import choices_of, command_of
from runner.report.index import RunOfMany, read_group
from runner.report.number import plural, short, value
from runner.report.objective import (
    ASKED_FOR,
    SweepObjective,
    choose_objective,
    describe_change,
    informative,
    score_names,
)
from runner.run.read import RunRecord, is_finite
from runner.schema.text import flatten, nearest, number

Chosen = TypeVar("Chosen", bound=RunRecord)
Group = Path | Sequence[RunOfMany]  # the folder of some runs, or these as they were read
STATES = ("finished", "running", "queued", "interrupted", "failed", "lost", "created", "unknown")
OWN = ("run", "state", "step", "max_steps", "started", "updated", "cause")
COMPARE = {"=": eq, "!=": ne, ">": gt, "<": lt, ">=": ge, "<=": le}
CONDITION = re.compile(r"([^=!<>\s]+?)\s*(!=|>=|<=|=|>|<)\s*([^=<>]*)")


@dataclass(frozen=True)
class SweepSetting:
    """The runs that differ in nothing but the seed, with the score of each that finished."""

    values: Mapping[str, Hashable]
    runs: Sequence[RunRecord]
    scores: Mapping[str, list[float]] = field(default_factory=dict)
    odd: Mapping[str, Hashable] = field(default_factory=dict)  # by keys that are no axes, as no other setting has them

    def mean(self, name: str) -> float | None:
        return fmean(self.scores[name]) if self.scores.get(name) else None

    def sd(self, name: str) -> float | None:
        """The sample standard deviation over seeds; None with fewer than two."""
        return stdev(self.scores[name]) if len(self.scores.get(name, ())) > 1 else None

    def change(self, objective: SweepObjective | None) -> str:
        """The way of the objective from before the training, as a mean over the runs that have it there."""
        name, more = (objective.name, objective.maximise) if objective else ("", None)
        pairs = [(run.before[name], run.after[name]) for run in self.finished if name in run.before.keys() & run.after]
        return describe_change(more, *map(fmean, zip(*pairs, strict=True))) if pairs else ""

    @property
    def state(self) -> str:
        """The states of its runs in a word or two."""
        first, *others = self.runs
        if not others and first.state in ("running", "interrupted", "lost"):
            return first.standing
        return first.state if len(count_states(self.runs)) == 1 else list_states(self.runs)

    @property
    def finished(self) -> list[RunRecord]:
        return [run for run in self.runs if run.state == "finished"]

    @property
    def label(self) -> str:
        """The setting as it would be typed."""
        words = " ".join(f"{name}={value(entry)}" for name, entry in {**self.values, **self.odd}.items())
        return words or ("all seeds" if len(self.runs) > 1 else self.runs[0].folder.name)


@dataclass(frozen=True)
class Summary:
    """A group of runs as it is now; ``settings`` come best first, those without a score last."""

    group: Path
    runs: Sequence[RunOfMany]
    axes: Sequence[Axis]
    seeds: Sequence[Hashable]
    settings: Sequence[SweepSetting]
    scores: Sequence[str]
    objective: SweepObjective | None
    listed: Sequence[SweepSetting]  # the settings in the order in which they are shown
    top: int = 0  # that are shown where it was said, beside those in the files
    chosen: str = ""  # by which words, of how many
    odd: Sequence[Axis] = ()  # keys that are no axes, because all runs but a few share one value
    names: Sequence[str] = ()  # of the groups, where runs of any were given; ``group`` is the folder around them
    held: dict[Path, str] = field(default_factory=dict)  # colours of the runs when they were last drawn

    @property
    def all_finished(self) -> bool:
        return set(count_states(self.runs)) <= {"finished"}

    @property
    def troubled(self) -> list[RunRecord]:
        """The runs that have not finished, are damaged, or ended worse than they began."""
        return [run for run in self.runs if run.state != "finished" or run.cause]

    @cached_property
    def alike(self) -> dict[str, str]:
        """The scores, beside the objective, that are the same in all runs that have them."""
        names = [name for name in informative(self.scores) if self.objective and name != self.objective.name]
        found = {name: [text for run in self.runs if (text := number(run.score(name))) != "-"] for name in names}
        return {name: texts[0] for name, texts in found.items() if len(texts) > 1 == len(set(texts))}

    @property
    def shown_scores(self) -> list[str]:
        """The objective, and the other scores that say something."""
        scores = dict.fromkeys([*([self.objective.name] if self.objective else []), *informative(self.scores)])
        return [name for name in scores if name not in self.alike]

    @property
    def counts(self) -> str:
        """The number of settings and seeds; nothing where every run has the same seed."""
        return f"{plural(len(self.settings), 'setting')}, {plural(len(self.seeds), 'seed')}" if self.seeds else ""

    @cached_property
    def best(self) -> SweepSetting | None:
        """The first of the settings that compete; None where nothing has a score, or one of several alone has it."""
        if len(self.competing) == 1 and self.unranked and not self.was_asked_for:
            return None
        return next(iter(self.competing), None)

    @property
    def was_asked_for(self) -> bool:
        """True where somebody has named the objective."""
        return self.objective is not None and self.objective.why == ASKED_FOR

    @cached_property
    def unranked(self) -> list[SweepSetting]:
        """The settings that have finished without the objective."""
        return [setting for setting in self.settings if setting.finished and not self.count(setting)]

    @property
    def why_no_best(self) -> str:
        """The reason why there is no best setting."""
        if not self.competing or self.objective is None:
            if self.objective is not None and self.unranked:
                return f"no finished run has {self.objective.name}"
            return "no finished run has a score yet"
        return f"no score compares all of them: only {self.competing[0].label} has {self.objective.name}"

    @property
    def best_command(self) -> str:
        """The command that makes the finished runs of the best setting again; nothing where there is none."""
        runs = self.best.finished if self.best else []
        return command_of(runs[0], [run.cfg.get("seed") for run in runs] if self.seeds else ()) if runs else ""

    @cached_property
    def competing(self) -> list[SweepSetting]:
        """The settings with a score; where some have it from several seeds, those with one alone are left out."""
        scored = [setting for setting in self.settings if self.count(setting)]
        return [setting for setting in scored if self.count(setting) > 1] or scored

    @property
    def doubts(self) -> list[str]:
        """Reasons against taking the best setting for the best: others with its score, or about it, or with too few."""
        if self.best is None or self.objective is None:
            return []
        name = self.objective.name
        (top, sd), *others = ((fmean(setting.scores[name]), setting.sd(name) or 0) for setting in self.competing)
        rest = list(zip(self.competing[1:], others, strict=True))
        tied = [setting for setting, (mean, _) in rest if number(mean) == number(top)]
        near = [each for each, (mean, own) in rest if each not in tied and abs(mean - top) <= max(sd, own)]
        alone = [each for each in self.settings if self.count(each) == 1] if self.count(self.best) > 1 else []
        groups = {"tied with {}": tied, "within one standard deviation of {}": near, "left out with one seed": alone}
        groups[f"not compared with {{}} without {name}"] = self.unranked
        named = [(text.format(plural(len(found), "other")), found) for text, found in groups.items() if found]
        labels = [[*(short(each.label, 60) for each in found[:3]), *["..."] * (len(found) > 3)] for _, found in named]
        return [f"{text}: {', '.join(shown)}" for (text, _), shown in zip(named, labels, strict=True)]

    def count(self, setting: SweepSetting) -> int:
        """The number of runs from which the setting has its objective."""
        return len(setting.scores.get(self.objective.name, ())) if self.objective else 0


def summarise(
    group: Group, objective: str = "", direction: str = "", sort: str = "", where: str | None = None, top: int = 0
) -> Summary:
    """Put every run of a name, or some that were read, side by side, or those of them that meet ``where``.

    ``objective`` is a score to rank by and ``direction`` max or min; both are found where they are not given. The best
    settings are listed first, unless there is another key to ``sort`` by, and only the first ``top`` are shown.
    """
    every = read_group(group) if isinstance(group, Path) else group
    runs = every if where is None else choose_runs(every, where)
    axes = find_axes(runs)
    wanted = choose_objective(runs, objective, direction)
    column, is_score = find_column(sort, runs, axes, "sort") if sort and runs else ([], False)
    seeds = next((axis.levels for axis in axes if axis.key == "seed"), [])
    every_axis = [axis for axis in axes if axis.key != "seed"]
    axes = [axis for axis in every_axis if axis.key == "name" or not axis.odd] or every_axis
    odd = [axis for axis in every_axis if axis not in axes]
    names = list(dict.fromkeys([*([wanted.name] if wanted else []), *score_names(runs)]))
    groups: dict[Hashable, list[int]] = {}  # runs whose config cannot be read stand alone
    for index, run in enumerate(runs):
        groups.setdefault(tuple(axis.column[index] for axis in every_axis) if run.cfg else index, []).append(index)
    settings, places = [], dict[int, tuple[bool, float, str]]()
    for members in groups.values():
        values, own = {axis.name: axis.column[members[0]] for axis in axes}, [runs[index] for index in members]
        scores = {name: [score for run in own if (score := run.score(name)) is not None] for name in names}
        apart = {axis.name: axis.odd[members[0]] for axis in odd if members[0] in axis.odd}
        settings.append(SweepSetting(values, own, scores, apart))
        if entries := [column[index] for index in members if sort and column[index] is not None]:
            numbers = list(filter(is_finite, entries))
            places[id(settings[-1])] = (not numbers, fmean(numbers) if numbers else 0.0, str(entries[0]))
    name, sign = (wanted.name, -1 if wanted.maximise else 1) if wanted else ("", 1)
    settings.sort(key=lambda each: (each.mean(name) is None, sign * (each.mean(name) or 0.0)))
    by = choose_objective(runs, sort, direction) if is_score else None
    placed = [setting for setting in settings if id(setting) in places]
    placed.sort(key=lambda setting: places[id(setting)], reverse=by.maximise if by else direction == "max")
    listed = [*placed, *(setting for setting in settings if id(setting) not in places)]
    chosen = f"{where}, of {plural(len(every), 'run')}" if where is not None else ""
    titles = list(dict.fromkeys(run.folder.parent.name for run in every if every is group))
    around = group if isinstance(group, Path) else Path(os.path.commonpath([run.folder.parent for run in every]))
    return Summary(around, runs, axes, seeds, settings, names, wanted, listed, top, chosen, odd, titles)


def count_states(runs: Sequence[RunRecord]) -> dict[str, int]:
    """The number of runs in each state, in the order of STATES."""
    counts = Counter(run.state for run in runs)
    return {state: counts[state] for state in sorted(counts, key=lambda state: (*STATES, state).index(state))}


def list_states(runs: Sequence[RunRecord]) -> str:
    """The number of runs in each state as a text."""
    return ", ".join(f"{count} {state}" for state, count in count_states(runs).items())


def choose_runs(runs: Sequence[Chosen], where: str) -> list[Chosen]:
    """The runs that meet each condition of a text; ConfigError for what is no condition, or no key of theirs."""
    axes, kept = find_axes(runs), set(range(len(runs)))
    for text in (each.strip(" '\"") for each in where.strip("[] ").split(",")):
        if not (found := CONDITION.fullmatch(text)):
            expected = f"key and value with one of {' '.join(COMPARE)} between"
            raise ConfigError(Fault("where", repr(text), expected, "where='state=failed,kl_coef>0.1'"))
        key, sign, wanted = found.groups()
        column, _ = find_column(key, runs, axes, "where")
        kept = {index for index in kept if _meets(column[index], sign, wanted)}
    return [runs[index] for index in sorted(kept)]


def find_axes(runs: Sequence[RunRecord]) -> list[Axis]:
    """The keys in which some runs differ, the first of them their name."""
    hide = cache(hidden)  # because there are few options, and may be many runs
    typed = [{group: hide(option) for group, option in choices_of(run).items()} for run in runs]
    names = tuple(run.folder.parent.name for run in runs)
    return [Axis("name", "name", names)] * (len(set(names)) > 1) + axes_of([run.cfg for run in runs], typed)


def find_column(key: str, runs: Sequence[RunRecord], axes: Sequence[Axis], option: str) -> tuple[Sequence[Any], bool]:
    """The value of a key in each run, None where it has none, and whether it is a score; ConfigError for no key."""
    if key in OWN:
        facts = [{**run.status, "run": run.folder.name, "state": run.state, "cause": run.cause} for run in runs]
        return [own.get(key) for own in facts], False
    if axis := next((axis for axis in axes if key in (axis.name, axis.key)), None):
        return [None if entry in (MISSING, UNREAD) else entry for entry in axis.column], False
    flat = [flatten(run.cfg) for run in runs]
    every = dict.fromkeys(name for leaves in flat for name in leaves)
    scores = dict.fromkeys([*score_names(runs), *(name for run in runs for name in run.logged)])
    if key not in every and (score := next((each for each in (f"eval_{key}", key) if each in scores), None)):
        return [run.score(score) for run in runs], True
    names = [key] if key in every else [name for name in every if name.endswith(f".{key}")]
    if len(names) == 1:
        return [leaves.get(names[0]) for leaves in flat], False
    known = names or dict.fromkeys([*OWN, *(axis.name for axis in axes), *informative(score_names(runs))])
    near = names or nearest(key, dict.fromkeys([*known, *every, *(name.rpartition(".")[2] for name in every)]))
    reason = f"{key!r} is the end of {len(names)} keys" if names else f"no run has {key!r}"
    fix = f"{near[0]} in place of {key}" if near else "one of these"
    raise ConfigError(Fault(option, reason, f"one of {', '.join(known)}", fix))


def _meets(entry: object, sign: str, wanted: str) -> bool:
    try:
        if is_finite(entry):
            return bool(COMPARE[sign](entry, float(wanted)))
    except ValueError:
        return sign == "!="
    return (isinstance(entry, str) or sign in ("=", "!=")) and bool(COMPARE[sign](value(entry), wanted.strip("'\"")))
