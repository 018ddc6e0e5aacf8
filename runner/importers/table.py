"""Tables of other tools' keys: what each key becomes, as data, and the conversions that a row may name.

The table of a dialect, as the language of a tool's configurations is called here, is ``<dialect>.yaml``, with
``shared.yaml`` below it. It begins with how a file is known: the ``title`` of the tool; ``marks``, keys that it has and
the others do not; ``commands``, each with the subcommands that train, and ``scripts``, patterns of scripts that do, in
which a group is the subcommand; ``strange`` keys of files that train nothing, or are not read here.

Its section ``keys`` has a row for each key: a path of ours, or a rule, or a list of rules of which the first counts
that holds. The sections ``ignored`` (of the machine), ``no_equivalent`` (why, and what comes nearest) and ``same`` (by
default) are short for rows of one such rule. ``rows`` is the same for the keys of one dataset. ``defaults`` are what
the tool does where a file is silent. The keys in ``first`` are dealt with before the datasets, those in ``then`` right
after them. ``datasets`` says which ``keys`` hold rows, are ``held_out`` or give their ``weights``, ``forms`` which form
of rows a subcommand takes; ``rewards``, ``roles`` and ``weights`` are for the readers that ask for them.
``outer.inner`` is a nested key, ``outer.*`` any other below it. What no row can say is in ``readers``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.config.limits import read_yaml

OFF: tuple[object, ...] = (False, "", [], {}, "no", "none")
CONDITIONS = ("value", "trainer", "peft", "optimizer", "form", "held_out", "command")
KINDS = ("same", "ignored", "no_equivalent", "asked", "refused")
SHARED = "shared"


@dataclass(frozen=True)
class Rule:
    """One thing that may become of a key.

    When: a row lists values of the key as ``value``, where enabled and disabled stand for many; what was chosen before
    as ``trainer``, ``peft``, ``optimizer``, ``form`` and ``held_out`` (of the rows); and subcommands as ``command``.
    ``like`` is a pattern of the value. ``beside`` and ``without`` list values of other keys.

    What: ``choose`` takes an option of a group. ``to`` writes at a path the value, or what ``convert`` makes of it, or
    the constant ``write``; ``rest`` says why only the first of several is taken. ``also`` are further values, where
    nobody has set them, and ``give`` those of a default. ``by`` calls a function. Else the key is the ``same`` by
    default, ``ignored``, has ``no_equivalent``, is ``asked`` for, or ``refused``, each with a reason. ``nearest`` is
    what comes nearest, ``typed`` what has to be typed, ``why`` a remark. In texts ``{value}``, ``{key}``, ``{trainer}``
    and the values of other keys are filled in.
    """

    when: Mapping[str, Any] = field(default_factory=dict)
    like: str = ""
    beside: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, Any] = field(default_factory=dict)
    choose: str = ""
    to: str = ""
    convert: str = ""
    write: object = None
    rest: str = ""
    also: Mapping[str, Any] = field(default_factory=dict)
    give: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    kind: str = ""
    reason: str = ""
    nearest: str = ""
    typed: str = ""
    why: str = ""


@dataclass(frozen=True)
class Table:
    """The rows of a dialect by key, those of one dataset, its defaults, and its other sections as they are."""

    keys: Mapping[str, list[Rule]]
    rows: Mapping[str, list[Rule]]
    defaults: list[Rule]
    sections: Mapping[str, Any]


@functools.cache
def read_sections() -> dict[str, dict[str, Any]]:
    """The content of each table by its dialect."""
    return {path.stem: read_yaml(path) for path in sorted(Path(__file__).parent.glob("*.yaml"))}


def find_dialects() -> dict[str, dict[str, Any]]:
    """The content of each table but the one that all share."""
    return {name: node for name, node in read_sections().items() if name != SHARED}


@functools.cache
def read_table(dialect: str) -> Table:
    """The table of a dialect, with the rows that all share."""
    node = read_sections()[dialect]
    rows = _read_rows({"keys": node.get("rows", {})})
    return Table(_read_rows(read_sections()[SHARED]) | _read_rows(node), rows, _to_rules(node["defaults"]), node)


def _read_rows(node: Mapping[str, Any]) -> dict[str, list[Rule]]:
    """The rules of each key of a table."""
    rows = {key: _to_rules(row) for key, row in node["keys"].items()}
    for kind in KINDS[:3]:
        for key, said in node.get(kind, {}).items():
            why, *nearest = said if isinstance(said, list) else [said]
            rows[key] = [Rule(kind=kind, reason=why, nearest=" ".join(nearest))]
    return rows


def _to_rules(row: str | Mapping[str, Any] | list[Any]) -> list[Rule]:
    """The rules of a row: a text is a path of ours."""
    if isinstance(row, list):
        return [rule for each in row for rule in _to_rules(each)]
    if isinstance(row, str):
        return [Rule(to=row)]
    rest = {name: value for name, value in row.items() if name not in (*CONDITIONS, *KINDS)}
    kind = next((kind for kind in KINDS if kind in row), "")
    return [Rule({name: row[name] for name in CONDITIONS if name in row}, kind=kind, reason=row.get(kind, ""), **rest)]


def is_wanted(value: object, wanted: object) -> bool:
    """True for a value that is one of those that a rule lists, compared as texts.

    >>> is_wanted(True, "true"), is_wanted(0, ["disabled"]), is_wanted(None, [None, "bnb"]), is_wanted("x", "enabled")
    (True, True, True, True)
    """
    texts = {str(each).lower() for each in (wanted if isinstance(wanted, list) else [wanted])}
    return str(value).lower() in texts or ("disabled" if value is None or value in OFF else "enabled") in texts


# --- Conversions of values -------------------------------------------------------------------------
# Each raises ValueError with what it expects, where it cannot take a value.


def to_number(value: object) -> float:
    """A number as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number")
    return float(value)


def to_whole_number(value: object) -> int:
    """A number without a fraction, as an int."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:
        raise ValueError("a whole number")
    return int(value)


def to_plain_text(value: object) -> str:
    """A single value as a text."""
    if not isinstance(value, str | int | float):
        raise ValueError("a text")
    return str(value)


def to_list(value: object) -> list[Any]:
    """A list, of one element where there is no list."""
    return value if isinstance(value, list) else [value]


def to_words(value: object) -> list[str]:
    """A list of texts; a text is split at its commas."""
    words = value.split(",") if isinstance(value, str) else to_list(value)
    if any(isinstance(word, bool) or not isinstance(word, str | int | float) for word in words):
        raise ValueError("a text, or a list of texts")
    return [str(word).strip() for word in words if str(word).strip()]


def to_weights(value: object) -> list[float]:
    """A list of numbers; a text is split at its commas."""
    try:
        return [float(word) for word in to_words(value)]
    except ValueError:
        raise ValueError("a number, or a list of numbers") from None


def to_first(value: object) -> str:
    """The first of several texts."""
    return next(iter(to_words(value)), "")


def to_layers(value: object) -> str | list[str]:
    """Target modules as peft takes them: all-linear, a list of names, or a regular expression."""
    if isinstance(value, str) and re.search(r"[\\^$|()*]", value):
        return value
    names = to_words(value)
    return "all-linear" if names in (["all"], ["all-linear"], ["all_linear"]) else names


def to_loss_weights(value: object) -> list[float]:
    """The weights of a preference loss, which is 1, and of a second loss beside it."""
    return [1.0, to_number(value)]


def to_mapping(value: object) -> dict[str, Any]:
    """Keys with values."""
    if not isinstance(value, Mapping):
        raise ValueError("keys with values")
    return {str(key): entry for key, entry in value.items()}


def to_entries(value: object) -> list[dict[str, Any]]:
    """A list of mappings; a text stands for a mapping with this path."""
    try:
        return [{"path": entry} if isinstance(entry, str) else to_mapping(entry) for entry in to_list(value)]
    except ValueError:
        raise ValueError("a list, each element a path or keys with values") from None


NAMED = (
    *(to_number, to_whole_number, to_plain_text, to_words, to_weights, to_first, to_layers, to_loss_weights),
    *(to_mapping, to_entries),
)
# By the name without to_.
CONVERSIONS: Mapping[str, Callable[[object], Any]] = {each.__name__[3:]: each for each in NAMED}
# Conversions that need the number itself; the others only copy, so that what the shell sets can still be asked for.
COMPUTED = ("whole_number", "loss_weights")
