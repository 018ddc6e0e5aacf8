"""Differences of two runs, by section and to the bit, and of a run from its options; from their files alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config import NO_VALUE, compose, differences
from runner.errors import ConfigError, RunnerError
from runner.report.axis import MISSING, TOP, lasting_keys
from runner.report.facts import facts_of, folders_in, words_of
from runner.report.number import difference, value
from runner.report.objective import informative
from runner.run.read import RunRecord, is_finite
from runner.schema.text import Config, number, select, to_text

WHOLE = ("experiment", "sweep")  # options that set keys of other groups; what they set does differ
# What depends on the machine's mood and not on the run.
TIMED = re.compile(r"(^|_)(runtime|seconds|step_time)$|_per_second$|^(eval_)?(eps|time/|profiling/|memory/)")
WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class Section:
    """One respect in which two runs are compared: rows of a name and both values, none where they are alike."""

    title: str
    rows: Sequence[tuple[str, ...]]  # one of numbers ends in their difference
    unknown: bool = False  # neither run says anything of it


def sections_of(ours: RunRecord, theirs: RunRecord) -> list[Section]:
    """Every respect in which two runs can differ, the shortest first and those without a difference before them."""
    rows: list[tuple[str, ...]] = []
    for (first, *others), mine, other in config_rows(ours.cfg, theirs.cfg):
        also = ", ".join(dict.fromkeys(key.rpartition(".")[2] for key in others))
        rows.append((f"{first} (also {also})" if also else first, mine, other))
    found = [Section("config", rows)]
    for (title, a), b in zip(facts_of(ours).items(), facts_of(theirs).values(), strict=True):
        rows = [(key, *map(value_if_any, pair)) for key, *pair in differences(a, b)]
        found.append(Section(title, rows, unknown=not a and not b))
    found += [_scored("results", ours.after, theirs.after), _scored("last metrics", _last(ours), _last(theirs))]
    return sorted(found, key=lambda section: len(section.rows))


def _scored(title: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> Section:
    names = informative(list(dict.fromkeys([*ours, *theirs])))
    pairs = [(name, ours.get(name), theirs.get(name)) for name in names]
    rows = [(name, number(a), number(b), difference(a, b)) for name, a, b in pairs if a != b]
    return Section(title, rows, unknown=not names)


def _last(run: RunRecord) -> dict[str, float]:
    return {name: entry for name, entry in run.logged.items() if not name.startswith("eval_")}


@dataclass(frozen=True)
class Deviation:
    """One place where a repetition differs: the file or score, the step, the name, and both values."""

    what: str
    step: int | None
    name: str
    ours: object
    theirs: object

    @property
    def size(self) -> float | None:
        """The distance of two numbers, relative to the larger; None where they are not two numbers."""
        if not (is_finite(self.ours) and is_finite(self.theirs)):
            return None
        largest = max(abs(self.ours), abs(self.theirs))
        return abs(self.ours - self.theirs) / largest if largest else 0.0

    def __str__(self) -> str:
        place = f"{self.what}, step {self.step}" if self.step is not None else self.what
        apart = f", {number(100 * self.size, 2)} % apart" if self.size is not None else ""
        return f"{place}: {self.name} {self.ours} -> {self.theirs}{apart}"


def deviations(ours: RunRecord, theirs: RunRecord) -> list[Deviation]:
    """Everything in which a repetition differs from its original: logged steps in order, then scores, then weights."""
    tables = [{line["step"]: line for line in run.lines} for run in (ours, theirs)]
    steps = sorted({*tables[0], *tables[1]})
    pairs = [("metrics.jsonl", step, tables[0].get(step, {}), tables[1].get(step, {})) for step in steps]
    pairs += [("scores before", None, ours.before, theirs.before), ("scores after", None, ours.after, theirs.after)]
    pairs += [("model", None, _weights(ours), _weights(theirs))]
    return [
        Deviation(what, step, name, *pair)
        for what, step, mine, other in pairs
        for name, *pair in differences(mine, other)
        if name != "step" and not TIMED.search(name)
    ]


def _weights(run: RunRecord) -> dict[str, str]:
    return {name: str(sha)[:12] for name, sha in (run.manifest.get("files") or {}).items() if name.endswith(WEIGHTS)}


def differing(run: RunRecord) -> list[tuple[str, str, str]] | None:
    """Each key whose value is not what the chosen options bring, with the run's value and theirs.

    A key of which an option leaves the value open has none by default, such as the path of ``dataset=local``.
    """
    if (words := words_of(run)) is None or not run.cfg:
        return None
    overrides, folders = folders_in(words)
    open_keys = list[str]()
    try:
        choices = compose(overrides, folders).choices.items()
        chosen = [f"{group}={option}" for group, option in choices if "/" not in group and group not in WHOLE]
        chosen = [word for word in chosen if not word.endswith("=None")]
        try:
            baseline = compose(chosen, folders).cfg
        except ConfigError as error:
            open_keys = [fault.where for fault in error.faults if fault.found == NO_VALUE]
            filled = [f"{key}={to_text(select(run.cfg, key))}" for key in open_keys]
            baseline = compose([*chosen, *filled], folders).cfg
    except RunnerError:
        return None
    rows = [(key, value_if_any(select(run.cfg, key)), MISSING) for key in open_keys]
    for keys, mine, other in config_rows(run.cfg, baseline):
        rows += [(key, mine, other) for key in [key for key in keys if key in TOP] or keys]
    return rows


def config_rows(ours: Config, theirs: Config) -> list[tuple[list[str], str, str]]:
    """The lasting keys whose values differ, those of the top first, with both values as text."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for key, *pair in sorted(differences(lasting_keys(ours), lasting_keys(theirs)), key=lambda row: row[0] not in TOP):
        # Words or numbers that go together are one thing; that two things are switched on is none.
        plain = all(entry is None or is_finite(entry) or isinstance(entry, str) for entry in pair)
        mine, other = map(value_if_any, pair)
        found.setdefault((mine, other, "" if plain else key), []).append(key)
    return [(keys, mine, other) for (mine, other, _), keys in found.items()]


def value_if_any(entry: object) -> str:
    """A value as in a table, or the sign for none."""
    return MISSING if entry is None else value(entry)
