"""Comparison of two runs, by section or bit by bit, and of a run with the defaults of its options.

Everything is read from the files of the runs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.composition import compose, differences
from runner.config.resolution import NO_VALUE
from runner.errors import ConfigError, RunnerError
from runner.report.axis import MISSING, TOP_KEYS, comparable_part
from runner.report.calls import count_calls, first_different_call
from runner.report.facts import DIGEST_LETTERS, facts_of, split_command, typed_numbers, words_of
from runner.report.number import format_difference, format_typed, format_value
from runner.report.score import informative
from runner.run.history import MACHINE, is_finite
from runner.run.record import RunRecord
from runner.schema.literal import number, to_text
from runner.schema.text import Config, select

# Groups whose options set keys of other groups. They are no defaults: what they set is a change.
OVERLAYS = ("experiment", "sweep")
# Figures that measure the machine, and so differ between equal runs.
TIMED = re.compile(
    r"(^|_)(runtime|seconds|step_time)$|_per_second$"
    rf"|^(eval_)?(eps|profiling/|{'|'.join(MACHINE)})"
)
WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class SectionRow:
    """The values of one name in two runs; for numbers also the difference."""

    name: str
    ours: str
    theirs: str
    difference: str = ""


@dataclass(frozen=True)
class Section:
    """A subject in which two runs are compared; it has no rows where they are alike."""

    title: str
    rows: Sequence[SectionRow]
    is_numeric: bool = False  # the rows have differences
    unknown: bool = False  # neither run says anything about it


@dataclass(frozen=True)
class ConfigRow:
    """Keys that have the same two values in two configs, with these values as text."""

    keys: list[str]
    ours: str
    theirs: str


@dataclass(frozen=True)
class ChangedKey:
    """A key of a run whose value is not the default of the chosen options."""

    key: str
    ours: str
    default: str


def sections_of(ours: RunRecord, theirs: RunRecord) -> list[Section]:
    """The comparison of two runs by subject, those with the fewest differences first."""
    rows = []
    for row in config_rows(ours.cfg, theirs.cfg):
        name, *followers = row.keys
        if followers:
            endings = dict.fromkeys(key.rpartition(".")[2] for key in followers)
            listed = ", ".join(endings)
            name += f" (also {listed})"
        rows.append(SectionRow(name, row.ours, row.theirs))
    sections = [Section("config", rows)]
    facts_of_theirs = facts_of(theirs)
    for subject, our_facts in facts_of(ours).items():
        their_facts = facts_of_theirs[subject]
        rows = []
        for name, our_fact, their_fact in differences(our_facts, their_facts):
            our_text = _cell_text(our_fact)
            their_text = _cell_text(their_fact)
            rows.append(SectionRow(name, our_text, their_text))
        is_unknown = not our_facts and not their_facts
        sections.append(Section(subject, rows, unknown=is_unknown))
    calls = _call_section(ours, theirs)
    if calls is not None:
        sections.append(calls)
    sections.append(_score_section("results", ours.after, theirs.after))
    sections.append(_score_section("last metrics", _last_metrics(ours), _last_metrics(theirs)))
    return sorted(sections, key=lambda section: len(section.rows))


def _call_section(ours: RunRecord, theirs: RunRecord) -> Section | None:
    """The calls of tools and environments: how many failed, and the first that differs.

    None where neither run has any.
    """
    our_counts = count_calls(ours)
    their_counts = count_calls(theirs)
    if not our_counts and not their_counts:
        return None
    rows = []
    for name, our_count, their_count in differences(our_counts, their_counts):
        our_text = _cell_text(our_count)
        their_text = _cell_text(their_count)
        rows.append(SectionRow(name, our_text, their_text))
    first = first_different_call(ours, theirs)
    if first is not None:
        name = f"the first that differs: step {first.step}, {first.place}"
        rows.append(SectionRow(name, first.ours, first.theirs))
    return Section("calls", rows)


def _score_section(title: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> Section:
    """The scores in which two runs differ, of those that tell whether something was learned."""
    names = informative({**ours, **theirs})
    rows = []
    for name in names:
        our_score = ours.get(name)
        their_score = theirs.get(name)
        if our_score != their_score:
            our_text = number(our_score)
            their_text = number(their_score)
            difference = format_difference(our_score, their_score)
            rows.append(SectionRow(name, our_text, their_text, difference))
    return Section(title, rows, is_numeric=True, unknown=not names)


def _last_metrics(run: RunRecord) -> dict[str, float]:
    """The last logged value of each metric that is not of held-out rows."""
    return {name: value for name, value in run.logged.items() if not name.startswith("eval_")}


@dataclass(frozen=True)
class Deviation:
    """A value that a repetition does not reproduce."""

    what: str  # the file or the kind of score that it is in
    step: int | None
    name: str
    ours: object
    theirs: object

    @property
    def size(self) -> float | None:
        """The difference relative to the larger number; None unless both values are numbers."""
        if not is_finite(self.ours) or not is_finite(self.theirs):
            return None
        largest = max(abs(self.ours), abs(self.theirs))
        if not largest:
            return 0.0
        return abs(self.ours - self.theirs) / largest

    def __str__(self) -> str:
        place = self.what
        if self.step is not None:
            place += f", step {self.step}"
        text = f"{place}: {self.name} {self.ours} -> {self.theirs}"
        if self.size is not None:
            text += f", {number(100 * self.size, 2)} % apart"
        return text


def deviations(ours: RunRecord, theirs: RunRecord) -> list[Deviation]:
    """All values in which a repetition differs from its original.

    Logged steps come first, in their order, then scores, then weights.
    """
    our_lines = {line["step"]: line for line in ours.lines}
    their_lines = {line["step"]: line for line in theirs.lines}
    found: list[Deviation] = []
    for step in sorted({*our_lines, *their_lines}):
        our_line = our_lines.get(step, {})
        their_line = their_lines.get(step, {})
        found += _deviations_in("metrics.jsonl", our_line, their_line, step)
    call = first_different_call(ours, theirs)
    if call is not None:
        deviation = Deviation("calls.jsonl", call.step, call.place, call.ours, call.theirs)
        # The call is the reason of what differs in its step.
        before = [other for other in found if (other.step or 0) < call.step]
        found.insert(len(before), deviation)
    found += _deviations_in("scores before", ours.before, theirs.before)
    found += _deviations_in("scores after", ours.after, theirs.after)
    found += _deviations_in("model", _weight_digests(ours), _weight_digests(theirs))
    return found


def _deviations_in(
    what: str, ours: Mapping[str, object], theirs: Mapping[str, object], step: int | None = None
) -> Iterator[Deviation]:
    """The values of one file or step that differ, except those that measure time or memory."""
    for name, our_value, their_value in differences(ours, theirs):
        if name != "step" and not TIMED.search(name):
            yield Deviation(what, step, name, our_value, their_value)


def _weight_digests(run: RunRecord) -> dict[str, str]:
    """The beginning of the digest of each weight file, from the manifest."""
    files = run.manifest.get("files") or {}
    digests = {}
    for name, digest in files.items():
        if name.endswith(WEIGHTS):
            digests[name] = str(digest)[:DIGEST_LETTERS]
    return digests


def find_changed_keys(run: RunRecord) -> list[ChangedKey] | None:
    """The keys whose values are not the defaults of the options of a run; None if not known.

    MISSING stands for a default that an option leaves open, as ``dataset=local`` does its path.
    """
    words = words_of(run)
    if words is None or not run.cfg:
        return None
    overrides, folders = split_command(words)
    changed = []
    try:
        chosen = _chosen_options(overrides, folders)
        try:
            baseline = compose(chosen, folders).cfg
        except ConfigError as error:  # keys without a default must be given to compose the rest
            open_keys = [fault.where for fault in error.faults if fault.found == NO_VALUE]
            for key in open_keys:
                value = select(run.cfg, key)
                chosen.append(f"{key}={to_text(value)}")
                changed.append(ChangedKey(key, _cell_text(value), MISSING))
            baseline = compose(chosen, folders).cfg
    except RunnerError:
        return None
    typed = typed_numbers(run)
    for row in config_rows(run.cfg, baseline):
        # Keys of groups that take their value from a top key go without saying.
        top_keys = [key for key in row.keys if key in TOP_KEYS]
        for key in top_keys or row.keys:
            ours = row.ours
            if key in typed:
                ours = format_typed(select(run.cfg, key), typed[key])
            changed.append(ChangedKey(key, ours, row.theirs))
    return changed


def _chosen_options(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The option of each group as an override, without overlays."""
    chosen = []
    for group, option in compose(overrides, folders).choices.items():
        if "/" in group or group in OVERLAYS:  # with a slash it is a part of another option
            continue
        if option not in (None, "None"):
            chosen.append(f"{group}={option}")
    return chosen


def config_rows(ours: Config, theirs: Config) -> list[ConfigRow]:
    """The keys whose values differ, those of TOP_KEYS first.

    Keys with the same two words or numbers share a row. Keys with the same two booleans do not,
    because two things that are both switched on need not belong together.
    """
    changes = list(differences(comparable_part(ours), comparable_part(theirs)))
    changes.sort(key=lambda change: change[0] not in TOP_KEYS)
    rows: dict[tuple[str, str, str], ConfigRow] = {}
    for key, our_value, their_value in changes:
        is_plain = _is_word_or_number(our_value) and _is_word_or_number(their_value)
        our_text = _cell_text(our_value)
        their_text = _cell_text(their_value)
        key_alone = "" if is_plain else key  # which shares its row with no other
        identity = (our_text, their_text, key_alone)
        row = rows.setdefault(identity, ConfigRow([], our_text, their_text))
        row.keys.append(key)
    return list(rows.values())


def _is_word_or_number(value: object) -> bool:
    """True also of None, which stands for no value; not of a boolean."""
    return value is None or isinstance(value, str) or is_finite(value)


def _cell_text(value: object) -> str:
    """A value as a table shows it; MISSING for None."""
    return MISSING if value is None else format_value(value)
