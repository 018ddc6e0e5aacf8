"""Tables of other tools' keys: what each key becomes, as data.

A table is ``<tool>.yaml``, with ``shared.yaml`` below it. Its section ``keys`` has a row for each key: a path of ours,
or a rule, or a list of rules of which the first counts that holds. The sections ``ignored`` (of the machine),
``no_equivalent`` (why, and what comes nearest) and ``same`` (by default) are short for rows of one such rule. ``rows``
is the same for the keys of one dataset. ``defaults`` are what the tool does where a file is silent. The keys in
``first`` are dealt with before the datasets, those in ``then`` right after them. ``outer.inner`` is a nested key,
``outer.*`` any other below it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

OFF: tuple[object, ...] = (False, "", [], {}, "no", "none")
CONDITIONS = ("value", "trainer", "peft", "optimizer", "form", "held_out", "command")
KINDS = ("same", "ignored", "no_equivalent", "asked", "refused")


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
    """The rows of a tool by key, those of one dataset, its defaults, and its other sections as they are."""

    keys: Mapping[str, list[Rule]]
    rows: Mapping[str, list[Rule]]
    defaults: list[Rule]
    sections: Mapping[str, Any]


@functools.cache
def read_table(tool: str) -> Table:
    """The table of a tool, with the rows that all share."""
    node = read_section(tool)
    rows = _read_rows({"keys": node.get("rows", {})})
    return Table(_read_rows(read_section("shared")) | _read_rows(node), rows, _to_rules(node["defaults"]), node)


@functools.cache
def read_section(name: str) -> dict[str, Any]:
    """The content of a table; ``tools`` has the tools by name."""
    return yaml.load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"), LOADER)


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
