"""Runs chosen and ordered by the words of a command line: ``where=state=failed,kl_coef>0.1`` and ``sort=eval_loss``.

A key is one that a report shows, or any dotted key of the config, by its end where that is enough; the name of a score;
or one of OWN. Texts are equal or not, and in the order of their letters, which is that of times.
"""

import functools
import re
from collections.abc import Sequence
from operator import eq, ge, gt, le, lt, ne
from typing import Any, TypeVar

from runner.errors import ConfigError, Fault
from runner.io.secrets import hidden
from runner.report.axis import MISSING, UNREAD, Axis, axes_of
from runner.report.facts import choices_of
from runner.report.number import value
from runner.report.objective import informative, score_names
from runner.run.read import RunRecord, is_finite
from runner.schema.text import flatten, nearest

Chosen = TypeVar("Chosen", bound=RunRecord)
OWN = ("run", "state", "step", "max_steps", "started", "updated", "cause")
COMPARE = {"=": eq, "!=": ne, ">": gt, "<": lt, ">=": ge, "<=": le}
CONDITION = re.compile(r"([^=!<>\s]+?)\s*(!=|>=|<=|=|>|<)\s*([^=<>]*)")


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
    """The keys in which some runs differ."""
    hide = functools.cache(hidden)  # because there are few options, and may be many runs
    typed = [{group: hide(option) for group, option in choices_of(run).items()} for run in runs]
    return axes_of([run.cfg for run in runs], typed)


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
    is_ordered = isinstance(entry, str) or sign in ("=", "!=")
    return is_ordered and bool(COMPARE[sign](value(entry), wanted.strip("'\"")))
