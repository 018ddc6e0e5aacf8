"""The summary of the runs that were asked for, in the order that was asked for.

Runs are chosen by ``where=state=failed,kl_coef>0.1`` and sorted by ``sort=eval_loss``. A key is one
of RUN_KEYS, or one that a report shows, or a dotted key of the config or its ending, or a score.
Texts are compared letter by letter, which suits times, too.
"""

import os
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import eq, ge, gt, itemgetter, le, lt, ne
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from runner.errors import ConfigError, Fault
from runner.report.axis import MISSING, UNREAD, Axis
from runner.report.index import RunOfMany, read_group
from runner.report.number import format_value, plural
from runner.report.ranking import choose_objective
from runner.report.score import informative, score_names
from runner.report.sweep import Summary, SweepSetting, find_axes
from runner.run.history import is_finite
from runner.run.record import RunRecord
from runner.schema.did_you_mean import best_guess
from runner.schema.text import flatten

AnyRun = TypeVar("AnyRun", bound=RunRecord)
Group = Path | Sequence[RunOfMany]  # the folder of some runs, or the runs as they were read
Place = float | tuple[bool, float, str]  # a mean, or what _place_of makes of any values
RUN_KEYS = ("run", "state", "step", "max_steps", "started", "updated", "cause")
COMPARE = {"=": eq, "!=": ne, ">": gt, "<": lt, ">=": ge, "<=": le}
# A key, a sign and a value; signs of two characters come first, or ``>=`` would be read as ``>``.
CONDITION = re.compile(r"([^=!<>\s]+?)\s*(!=|>=|<=|=|>|<)\s*([^=<>]*)")


@dataclass(frozen=True)
class RunColumn:
    """The value of a key in each run, None where a run has none."""

    values: Sequence[object]
    is_score: bool = False


def summarise(
    group: Group,
    objective: str = "",
    direction: str = "",
    sort: str = "",
    where: str | None = None,
    top: int = 0,
) -> Summary:
    """The summary of the runs in a folder, or of runs that were read, that meet ``where``.

    ``objective`` is a score to rank by and ``direction`` max or min; both are chosen where they
    are not given. The best settings are listed first, unless there is another key to ``sort`` by;
    a report shows the first ``top`` of them.
    """
    if isinstance(group, Path):
        all_runs: Sequence[RunOfMany] = read_group(group)
        folder = group
        names = []
    else:
        all_runs = group
        parents = [run.folder.parent for run in group]
        folder = Path(os.path.commonpath(parents))
        names = list(dict.fromkeys(parent.name for parent in parents))
    runs = all_runs
    condition = ""
    if where is not None:
        runs = choose_runs(all_runs, where)
        condition = f"{where}, of {plural(len(all_runs), 'run')}"
    axes = find_axes(runs)
    ranked_by = choose_objective(runs, objective, direction)

    seeds: Sequence[Hashable] = []
    shown_axes: list[Axis] = []
    odd_axes: list[Axis] = []
    for axis in axes:
        if axis.key == "seed":
            seeds = axis.levels
        elif axis.odd and axis.key != "name":
            odd_axes.append(axis)
        else:
            shown_axes.append(axis)
    # Settings must differ in something, if only in exceptions.
    if not shown_axes:
        shown_axes = odd_axes
        odd_axes = []

    names_of_scores = score_names(runs)
    if ranked_by:
        names_of_scores = list(dict.fromkeys([ranked_by.name, *names_of_scores]))
    settings = _to_settings(runs, shown_axes, odd_axes, names_of_scores)
    if ranked_by:
        means = [setting.mean(ranked_by.name) for setting in settings]
        settings = _sort(settings, means, ranked_by.maximise)
    # Sorting changes the order of the list, not which setting is best.
    listed = settings
    if sort and runs:
        column = find_column(sort, runs, axes, "sort")
        listed = _sort_by_key(settings, runs, column, sort, direction)
    return Summary(
        group=folder,
        runs=runs,
        axes=shown_axes,
        seeds=seeds,
        settings=settings,
        score_names=names_of_scores,
        objective=ranked_by,
        listed=listed,
        top=top,
        condition=condition,
        odd=odd_axes,
        names=names,
    )


def _to_settings(
    runs: Sequence[RunRecord],
    axes: Sequence[Axis],
    odd_axes: Sequence[Axis],
    names_of_scores: Sequence[str],
) -> list[SweepSetting]:
    """The settings of some runs; a run whose config cannot be read is a setting of its own."""
    groups: dict[Hashable, list[int]] = {}
    for index, run in enumerate(runs):
        identity: Hashable = index
        if run.cfg:
            identity = tuple(axis.column[index] for axis in (*axes, *odd_axes))
        groups.setdefault(identity, []).append(index)
    settings = []
    for members in groups.values():
        first = members[0]
        setting_runs = [runs[index] for index in members]
        scores = {}
        for name in names_of_scores:
            results = [run.score(name) for run in setting_runs]
            scores[name] = [score for score in results if score is not None]
        values = {axis.name: axis.column[first] for axis in axes}
        odd = {axis.name: axis.odd[first] for axis in odd_axes if first in axis.odd}
        texts = {}
        for axis in (*axes, *odd_axes):
            if axis.name in values or axis.name in odd:
                texts[axis.name] = axis.text_of(axis.column[first])
        settings.append(SweepSetting(values, setting_runs, scores, odd, texts))
    return settings


def _sort_by_key(
    settings: Sequence[SweepSetting],
    runs: Sequence[RunRecord],
    column: RunColumn,
    sort: str,
    direction: str,
) -> list[SweepSetting]:
    """The settings in the order of a key, descending for a score of which more is better."""
    descending = direction == "max"
    objective = choose_objective(runs, sort, direction) if column.is_score else None
    if objective:
        descending = objective.maximise
    folders = [run.folder for run in runs]
    value_of = dict(zip(folders, column.values, strict=True))
    places = []
    for setting in settings:
        values = [value_of[run.folder] for run in setting.runs]
        places.append(_place_of(values))
    return _sort(settings, places, descending)


def _sort(
    settings: Sequence[SweepSetting], places: Sequence[Place | None], descending: bool
) -> list[SweepSetting]:
    """The settings in the order of their places; those without a place come last."""
    placed = []
    unplaced = []
    for setting, place in zip(settings, places, strict=True):
        if place is None:
            unplaced.append(setting)
        else:
            placed.append((place, setting))
    placed.sort(key=itemgetter(0), reverse=descending)
    sorted_settings = [setting for _, setting in placed]
    return sorted_settings + unplaced


def _place_of(values: Sequence[object]) -> Place | None:
    """The place of a setting by the mean of its numbers, or else, behind these, its first text."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    numbers = [value for value in present if is_finite(value)]
    mean = fmean(numbers) if numbers else 0.0
    return not numbers, mean, str(present[0])


def choose_runs(runs: Sequence[AnyRun], where: str) -> list[AnyRun]:
    """The runs that meet all conditions of a text.

    Raises ConfigError for a text that is no condition, and for a key that no run has.
    """
    axes = find_axes(runs)
    chosen = list(range(len(runs)))  # by their indices, as in columns
    for text in where.strip("[] ").split(","):
        condition = text.strip(" '\"")
        match = CONDITION.fullmatch(condition)
        if not match:
            raise ConfigError(
                Fault(
                    where="where",
                    found=repr(condition),
                    expected=f"key and value with one of {' '.join(COMPARE)} between",
                    fix="where='state=failed,kl_coef>0.1'",
                )
            )
        key, sign, wanted = match.groups()
        values = find_column(key, runs, axes, "where").values
        chosen = [index for index in chosen if _meets(values[index], sign, wanted)]
    return [runs[index] for index in chosen]


def _meets(value: object, sign: str, wanted: str) -> bool:
    """True where a value and a text compare as the sign says: as numbers, or else as texts."""
    compare = COMPARE[sign]
    if is_finite(value):
        try:
            return bool(compare(value, float(wanted)))
        except ValueError:  # a number differs from any word
            return sign == "!="
    if sign not in ("=", "!=") and not isinstance(value, str):
        return False
    return bool(compare(format_value(value), wanted.strip("'\"")))


def find_column(
    key: str, runs: Sequence[RunRecord], axes: Sequence[Axis], option: str
) -> RunColumn:
    """The column of a key that was typed after ``option``; ConfigError where no run has it."""
    values: list[object] = []
    if key in RUN_KEYS:
        for run in runs:
            facts = dict(run.status)
            facts["run"] = run.folder.name
            facts["state"] = run.state
            facts["cause"] = run.cause
            values.append(facts.get(key))
        return RunColumn(values)
    for axis in axes:
        if key in (axis.name, axis.key):
            return RunColumn(_list_values(axis))

    configs = [flatten(run.cfg) for run in runs]
    config_keys = list(dict.fromkeys(chain.from_iterable(configs)))
    if key in config_keys:
        matching = [key]
    else:
        scores = set(score_names(runs)).union(*[run.logged for run in runs])
        for name in (f"eval_{key}", key):
            if name in scores:
                values = [run.score(name) for run in runs]
                return RunColumn(values, is_score=True)
        matching = [name for name in config_keys if name.endswith(f".{key}")]
    if len(matching) == 1:
        values = [config.get(matching[0]) for config in configs]
        return RunColumn(values)
    if matching:
        raise ConfigError(
            Fault(
                where=option,
                found=f"{len(matching)} keys end with {key!r}",
                expected=f"one of {', '.join(matching)}",
                fix=f"{matching[0]} in place of {key}",
            )
        )
    axis_names = [axis.name for axis in axes]
    shown = [*RUN_KEYS, *axis_names, *informative(score_names(runs))]
    raise ConfigError(_unknown_key(key, option, shown, config_keys))


def _list_values(axis: Axis) -> list[object]:
    """The values of an axis by run; None where a run has none, or it was not read."""
    values: list[object] = []
    for value in axis.column:
        if value in (MISSING, UNREAD):
            values.append(None)
        else:
            values.append(value)
    return values


def _unknown_key(key: str, option: str, shown: Sequence[str], config_keys: Sequence[str]) -> Fault:
    """The fault of a key that no run has, with the keys that reports show and the most similar."""
    endings = [name.rpartition(".")[2] for name in config_keys]
    names = dict.fromkeys([*shown, *config_keys, *endings])
    similar = best_guess(key, names)
    fix = "one of these"
    if similar:
        fix = f"{similar} in place of {key}"
    return Fault(
        where=option,
        found=f"no run has {key!r}",
        expected=f"one of {', '.join(dict.fromkeys(shown))}",
        fix=fix,
    )
