"""A file of another tool -> its keys, and the dialect that they are in.

A shell script says by its command which tool it is of; a YAML or JSON file by keys that no other
tool has, which the tables of the dialects call its marks.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from runner.config.conversion import plain
from runner.config.dialect import STRATEGY, find_dialects, read_sections
from runner.errors import ConfigError, Fault
from runner.importers.foreign_config import (
    FILE_TYPES,
    ForeignConfig,
    fill_references,
    parse_keys,
    read_foreign_text,
)
from runner.importers.training_command import read_script
from runner.schema.text import Node

SCRIPT_TYPES = (".sh", ".bash")
MAX_MARKS = 5  # that the reason for a dialect names


def read_file(path: Path, dialect: str | None = None) -> ForeignConfig:
    """The keys of a configuration in a dialect, by default the one that the file itself shows.

    Raises ConfigError where it holds no training, or is of no dialect that is known.
    """
    dialects = find_dialects()
    if dialect is not None and dialect not in dialects:
        raise ConfigError(
            Fault(
                where="dialect",
                found=dialect,
                expected=f"one of {', '.join(dialects)}",
                fix=f"dialect={next(iter(dialects))}",
            )
        )
    text = read_foreign_text(path)
    has_flags = path.suffix not in FILE_TYPES and re.search(r"(?m)^\s*--\w", text)
    if path.suffix in SCRIPT_TYPES or has_flags:
        reading = read_script(path, text)
    else:
        reading = ForeignConfig(path, fill_references(parse_keys(text, str(path))))
    reading.keys = {key: plain(value) for key, value in reading.keys.items()}

    # A file of a strategy has marks as well, and is refused for a better reason than another.
    tables: Mapping[str, Node] = dialects | {STRATEGY: read_sections()[STRATEGY]}
    if dialect:
        reading.dialect = dialect
        reading.why = "because you say so"
    elif not reading.dialect:
        _set_dialect(reading, tables, text)
    # A key may lead to a dialect beside it, which has the same commands or marks.
    for key, other_dialect in tables[reading.dialect].get("instead", {}).items():
        if key in reading.keys:
            reading.dialect = other_dialect
            break
    table = tables[reading.dialect]
    # Some tools group their keys, for example by the kind of process.
    for group in table.get("groups", ()):
        if group in reading.keys:
            inner_keys = reading.keys.pop(group)
            if not isinstance(inner_keys, Mapping):
                inner_keys = {group: inner_keys}
            reading.keys |= inner_keys
    reading.rename(table.get("renamed", {}))
    _check_trains(reading, table)
    return reading


def _set_dialect(reading: ForeignConfig, tables: Mapping[str, Node], text: str) -> None:
    """Set the dialect whose signature the text has, or that most marks are of.

    Raises ConfigError where the marks are of none, or of more than one alike.
    """
    for name, table in tables.items():
        signature = re.search(table.get("signature", "$^"), text)
        if signature:
            reading.dialect = name
            reading.why = signature[0]
            return
    marks: dict[str, list[str]] = {}
    for name, table in tables.items():
        marks[name] = [key for key in table["marks"] if key in reading.keys]
    most = max(map(len, marks.values()))
    likeliest = [name for name in marks if len(marks[name]) == most]
    if len(likeliest) > 1:
        titles = [tables[name]["title"] for name in likeliest]
        found = "no key that one of them has"
        if most:
            found = f"as much of {' as of '.join(titles)}"
        raise ConfigError(
            Fault(
                where=str(reading.path),
                found=found,
                expected=f"a configuration of {', '.join(find_dialects())}",
                fix="dialect=<one of them>",
            )
        )
    reading.dialect = likeliest[0]
    reading.why = ", ".join(marks[reading.dialect][:MAX_MARKS])


def _check_trains(reading: ForeignConfig, table: Node) -> None:
    """Raise ConfigError with each key that stands only in files that train nothing."""
    faults = []
    for key, why in table.get("strange", {}).items():
        if reading.keys.get(key):
            fault = Fault(
                where=f"{reading.path}: {key}",
                found=why,
                expected=f"a training of {table['title']}",
                fix="python -m runner import <another file>",
            )
            faults.append(fault)
    if not reading.keys.get("do_train"):
        ConfigError.refuse(faults)
