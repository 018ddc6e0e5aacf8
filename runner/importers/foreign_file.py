"""A file of another tool -> its keys, and the dialect that they are in.

A shell script says by its command which tool it is of; a YAML or JSON file by keys that no other
tool has, which the tables of the dialects call its marks.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.config.conversion import plain
from runner.config.dialect import STRATEGY, find_dialects, read_sections, read_table
from runner.errors import ConfigError, Fault
from runner.importers.foreign_config import (
    FILE_TYPES,
    ForeignConfig,
    Keys,
    parse_keys,
    read_foreign_text,
)
from runner.importers.hydra_words import flatten_config
from runner.importers.python_file import PYTHON_TYPES
from runner.importers.python_training import read_python
from runner.importers.references import fill_references
from runner.importers.training_command import read_script
from runner.schema.text import Node, select

SCRIPT_TYPES = (".sh", ".bash")
MAX_MARKS = 5  # that the reason for a dialect names


def read_file(path: Path, dialect: str | None = None, branch: str | None = None) -> ForeignConfig:
    """The keys of a configuration in a dialect, by default the one that the file itself shows.

    ``branch`` has the numbers of the branches of a script that are taken.

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
    reading = _read_keys(path, text, _to_choices(branch))
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
    _flatten(reading, table)
    reading.rename(table.get("renamed", {}))
    _check_trains(reading, table)
    return reading


def _read_keys(path: Path, text: str, choices: Sequence[int]) -> ForeignConfig:
    """The keys of a file with this text, by what kind of file it is."""
    if path.suffix in PYTHON_TYPES:
        return read_python(path, text)
    has_flags = path.suffix not in FILE_TYPES and re.search(r"(?m)^\s*--\w", text)
    if path.suffix in SCRIPT_TYPES or has_flags:
        return read_script(path, text, choices)
    return ForeignConfig(path, fill_references(parse_keys(text, str(path))))


def _flatten(reading: ForeignConfig, table: Node) -> None:
    """Take keys out of the groups in which some tools have them."""
    # Some name the kind of process, for example.
    for group in table.get("groups", ()):
        if isinstance(reading.keys.get(group), Mapping):
            _ungroup(reading, group)
    if table.get("hydra"):
        reading.keys = flatten_config(reading.keys)


def _to_choices(branch: str | None) -> list[int]:
    """The numbers of branches, with commas between them; ConfigError for anything else."""
    numbers = str(branch).split(",") if branch is not None else []
    if not all(number.strip().isdigit() for number in numbers):
        raise ConfigError(
            Fault(
                where="branch",
                found=str(branch),
                expected="the number of a branch for each condition, 0 for none",
                fix="branch=1",
            )
        )
    return [int(number) for number in numbers]


def _ungroup(reading: ForeignConfig, group: str) -> None:
    """Put the keys of a group among the others, but for those that mean something else there.

    These have a row as ``group.key``, or there is a key of this name outside.
    """
    rows = read_table(reading.dialect).keys
    for key, value in reading.keys.pop(group).items():
        full_name = f"{group}.{key}"
        if full_name in rows or key in reading.keys:
            reading.keys[full_name] = value
        else:
            reading.keys[key] = value


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
        marks[name] = [key for key in table["marks"] if _is_there(key, reading.keys)]
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


def _is_there(mark: str, keys: Keys) -> bool:
    """True for a key of the file, which may be a dotted one of its inner keys."""
    return mark in keys or select(keys, mark) is not None


def _check_trains(reading: ForeignConfig, table: Node) -> None:
    """Raise ConfigError with each key that stands only in files that train nothing."""
    faults = []
    needed_keys = table.get("needs", ())
    if needed_keys and not reading.command and not reading.keys.keys() & set(needed_keys):
        fault = Fault(
            where=str(reading.path),
            found=f"none of {', '.join(needed_keys)}: a model to talk to, and no training",
            expected=f"a training of {table['title']}",
            fix="python -m runner import <another file>",
        )
        faults.append(fault)
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
