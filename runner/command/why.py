"""Tells where the value of a key comes from."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from runner.command import CommandLine
from runner.config import compose
from runner.config.dialect import find_meanings
from runner.config.provenance import Provenance, read_provenance
from runner.errors import ConfigError, Fault
from runner.io.secrets import hidden
from runner.io.terminal import print_visible
from runner.launch.compose import stages
from runner.report.number import short
from runner.report.table import Column, format_table
from runner.schema.did_you_mean import nearest
from runner.schema.literal import to_text
from runner.schema.text import flatten, select, walk
from runner.validate.context import ValidationContext

MAX_VALUE_WIDTH = 36  # characters of a value


def main(line: CommandLine) -> int:
    """Print where the value of the key comes from, for each configuration that the command line means."""
    if len(line.runs) != 1:
        found = " and ".join(line.runs) or "no key"
        raise ConfigError(
            Fault(
                where="KEY",
                found=f"{found}",
                expected="one key and the words of one configuration; what a run froze is in its "
                "config.yaml",
                fix="python -m runner why learning_rate trainer=dpo",
            )
        )
    try:  # what is wrong with a configuration keeps nobody from asking why
        runs = [compose(line.overrides, line.folders)]
    except ConfigError:  # such as a reference to another run
        runs = []
    if not runs or "stages" in runs[0].cfg:
        runs = stages.compose_runs(line.overrides, line.folders)
    stage, _, inner = line.runs[0].partition(".")
    # the key begins with a stage
    meant = [composed for composed in runs if inner and composed.stage == stage]
    lines = []
    for number, composed in enumerate(meant or runs):
        words, typed = (
            (composed.words, composed.overrides) if composed.stage else (composed.overrides, None)
        )
        origins = read_provenance(composed.cfg, words, line.folders, typed, composed.stage)
        # set by the model's option besides it
        lost = r"(?!model\.).*\bmodel/[^/]+\.yaml:" if composed.note else "$"
        settings = [
            each for each in origins.settings if not re.match(lost, f"{each.key} {each.place}")
        ]
        lines += [("\n" if number else "") + f"stage {composed.stage}"] if composed.stage else []
        lines += explain(
            inner if meant else line.runs[0], replace(origins, settings=settings), line.overrides
        )
    print_visible(hidden("\n".join(lines)))
    return 0


def explain(key: str, origins: Provenance, words: Sequence[str] = ()) -> Iterator[str]:
    """The lines that explain one key, and those that it is taken from; of a node, a line for each of its keys."""
    key = find_key(key, origins.cfg, words)
    node = select(origins.cfg, key)
    if isinstance(node, Mapping) and node:
        yield key
        values = {
            f"{key}.{name}": short(to_text(entry), MAX_VALUE_WIDTH)
            for name, entry in flatten(node).items()
        }
        yield from _align(
            (name, text, next((e.place for e in origins.of(name)), ""))
            for name, text in values.items()
        )
        return
    keys = [key]
    for each in keys:  # which grows by the keys that a value is taken from
        settings = origins.of(each)
        follows = settings[0].follows if settings else ()
        # The value is that of the configuration or else the default; there is none where only the
        # run knows it.
        path, _, name = each.rpartition(".")
        holder, value = select(origins.cfg, path), settings[0].text if settings else ""
        if isinstance(holder, Mapping) and name in holder:
            value = to_text(holder[name])
        elif follows:
            value = to_text(select(origins.cfg, follows[0]))
        yield f"{each} = {short(value, MAX_VALUE_WIDTH)}" if value else each
        rows: list[tuple[str, ...]] = []
        for entry in settings:
            # of a key above this one
            text = entry.text if each.endswith(entry.key) else f"{entry.key}: {entry.text}"
            place = f"{entry.place}  ({entry.note})" if entry.note else entry.place
            rows.append(("over" if rows else "is", short(text, MAX_VALUE_WIDTH), place))
        yield from _align(rows) if rows else ["  no file and no word sets it"]
        keys += [name for name in follows if name not in keys]


def _align(rows: Iterable[tuple[str, ...]]) -> list[str]:
    return format_table([Column("", cells, True, True) for cells in zip(*rows, strict=True)], 200)[
        1:
    ]


def find_key(key: str, cfg: Mapping[str, Any], words: Sequence[str] = ()) -> str:
    """The whole key that is meant: as it is, or the only one that ends so; or ConfigError, to type with ``words``."""
    there = dict(walk(cfg))
    # Every key that is there, and those that its targets take besides.
    known = dict.fromkeys(
        [*there, *(() if key in there else chain(*ValidationContext(cfg).places.values()))]
    )
    if key in known:
        return key
    ends = [path for path in known if path.endswith(f".{key}")]
    set_ones = [path for path in ends if isinstance(select(cfg, path.rpartition(".")[0]), Mapping)]
    if len(ends) == 1:
        return ends[0]
    lasts = {path.rpartition(".")[2]: path for path in reversed(known)}
    near = [lasts[name] for name in nearest(key.rpartition(".")[2], lasts)]
    meant = [path for meaning in find_meanings(key, 1) for path in meaning.words if path in known]
    near = set_ones or meant or nearest(key, known) or near
    found = f"{len(ends)} keys have this ending" if ends else "no such key"
    fix = shlex.join(["python", "-m", "runner", "why", *[*near, "trainer"][:1], *words])
    raise ConfigError(Fault(key, found, ", ".join(near[:3]) or "a key of this configuration", fix))
