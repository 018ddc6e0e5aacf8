"""Tells where the value of a key comes from."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from runner.command import CommandLine
from runner.command._provenance import provenance_of, provenance_of_run
from runner.config.dialect import find_meanings
from runner.config.provenance import Provenance, Setting
from runner.errors import ConfigError, Fault
from runner.io.secrets import hidden
from runner.io.terminal import print_visible
from runner.launch.compose import stages
from runner.report.number import short
from runner.report.table import Column, format_table
from runner.run.record import find_runs
from runner.schema.did_you_mean import nearest
from runner.schema.literal import to_text
from runner.schema.text import Config, flatten, select, walk
from runner.validate.context import ValidationContext

MAX_VALUE_WIDTH = 36  # characters of a value


def main(line: CommandLine) -> int:
    """Print where the value of the key comes from, for each configuration that is meant."""
    if len(line.runs) == 2 and not line.overrides:
        key, word = line.runs
        (run,) = find_runs([word], f"why {key}", 1)
        provenance, notes = provenance_of_run(run)
        lines = [*explain(key, provenance, [str(run)]), *notes]
        print_visible(hidden("\n".join(lines)))
        return 0
    if len(line.runs) != 1 or "/" in line.runs[0]:
        words = ["learning_rate", "trainer=dpo"]
        if len(line.runs) == 1:  # a run without a key
            words[1] = line.runs[0]
        elif len(line.runs) == 2:
            words = line.runs
        raise ConfigError(
            Fault(
                where="KEY",
                found=" ".join([*line.runs, *line.overrides]) or "no key",
                expected="one key, and a run or the words of one configuration",
                fix=shlex.join(["python", "-m", "runner", "why", *words]),
            )
        )
    (key,) = line.runs
    runs = stages.compose_unchecked(line.overrides, line.folders)
    stage, _, inner_key = key.partition(".")
    of_stage = [composed for composed in runs if inner_key and composed.stage == stage]
    if of_stage:
        runs = of_stage
        key = inner_key
    lines = []
    for composed in runs:
        if composed.stage:
            if lines:
                lines.append("")
            lines.append(f"stage {composed.stage}")
        lines += explain(key, provenance_of(composed, line), line.overrides)
    print_visible(hidden("\n".join(lines)))
    return 0


@dataclass(frozen=True)
class SettingLine:
    """A line of the explanation of a key."""

    word: str  # ``is`` for what counts, ``over`` for what it has overridden; or a key
    value: str
    place: str


def explain(key: str, provenance: Provenance, words: Sequence[str] = ()) -> Iterator[str]:
    """The lines that explain a key and those that its value is taken from.

    Of a node they are a line for each of its keys.
    """
    key = find_key(key, provenance.cfg, words)
    node = select(provenance.cfg, key)
    if isinstance(node, Mapping) and node:
        yield key
        yield from _explain_node(key, node, provenance)
        return
    keys = [key]
    # The list grows by the keys that a value is taken from.
    for path in keys:
        settings = provenance.of(path)
        follows = settings[0].follows if settings else ()
        value = _value_of(path, provenance.cfg, settings)
        yield f"{path} = {short(value, MAX_VALUE_WIDTH)}" if value else path
        lines: list[SettingLine] = []
        for setting in settings:
            text = setting.text
            if not path.endswith(setting.key):  # it sets a key above this one
                text = f"{setting.key}: {text}"
            place = setting.place
            if setting.note:
                place += f"  ({setting.note})"
            word = "over" if lines else "is"
            lines.append(SettingLine(word, short(text, MAX_VALUE_WIDTH), place))
        if lines:
            yield from _align(lines)
        else:
            yield "  no file and no word sets it"
        keys += [name for name in follows if name not in keys]


def _explain_node(key: str, node: Config, provenance: Provenance) -> list[str]:
    """A line for each value of a node, with the place that sets it."""
    lines = []
    for name, value in flatten(node).items():
        path = f"{key}.{name}"
        settings = provenance.of(path)
        place = settings[0].place if settings else ""
        value_text = short(to_text(value), MAX_VALUE_WIDTH)
        lines.append(SettingLine(path, value_text, place))
    return _align(lines)


def _value_of(path: str, cfg: Config, settings: Sequence[Setting]) -> str:
    """The value of a key in the configuration, else its default.

    Empty where only the run knows it.
    """
    parent, _, name = path.rpartition(".")
    holder = select(cfg, parent)
    if isinstance(holder, Mapping) and name in holder:
        return to_text(holder[name])
    if not settings:
        return ""
    first = settings[0]
    if first.follows:
        value = select(cfg, first.follows[0])
        return to_text(value)
    return first.text


def _align(lines: Sequence[SettingLine]) -> list[str]:
    """The lines as a table without its titles."""
    columns = [
        Column("", [line.word for line in lines], needed=True, left=True),
        Column("", [line.value for line in lines], needed=True, left=True),
        Column("", [line.place for line in lines], needed=True, left=True),
    ]
    _, *rows = format_table(columns, 200)
    return rows


def find_key(key: str, cfg: Config, words: Sequence[str] = ()) -> str:
    """The whole key that is meant: the key itself, or the only one that ends so.

    Raises ConfigError for none and for several; the fix is typed with ``words``.
    """
    # Every key of the configuration, and those that its targets take besides.
    paths = dict.fromkeys(path for path, _ in walk(cfg))
    if key in paths:
        return key
    context = ValidationContext(cfg)
    paths |= dict.fromkeys(chain(*context.places.values()))
    if key in paths:
        return key
    ends = [path for path in paths if path.endswith(f".{key}")]
    if len(ends) == 1:
        return ends[0]
    raise ConfigError(_no_such_key(key, ends, list(paths), cfg, words))


def _no_such_key(
    key: str, ends: Sequence[str], paths: Sequence[str], cfg: Config, words: Sequence[str]
) -> Fault:
    """The fault of a key that is none; ``ends`` are the ``paths`` that end with it."""
    near = []
    for path in ends:
        parent, _, _ = path.rpartition(".")
        if isinstance(select(cfg, parent), Mapping):
            near.append(path)
    if not near:
        for meaning in find_meanings(key, 1):
            near += [path for path in meaning.words if path in paths]
    near = near or nearest(key, paths)
    if not near:
        last_names: dict[str, str] = {}
        # The first of several keys with one name counts.
        for path in reversed(paths):
            _, _, name = path.rpartition(".")
            last_names[name] = path
        _, _, typed_name = key.rpartition(".")
        near = [last_names[name] for name in nearest(typed_name, last_names)]
    likeliest = near[0] if near else "trainer"
    return Fault(
        where=key,
        found=f"{len(ends)} keys have this ending" if ends else "no such key",
        expected=", ".join(near[:3]) or "a key of this configuration",
        fix=shlex.join(["python", "-m", "runner", "why", likeliest, *words]),
    )
