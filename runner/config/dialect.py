"""Tables of other tools' keys, as data: what becomes of each key.

``importers`` follow them for a file, and ``did_you_mean`` for what somebody types who comes from
such a tool, or from an earlier version of these libraries. A dialect is the language of a tool's
configurations. Its table is ``dialects/<dialect>.yaml``, with ``shared.yaml`` below it, which
explains the form of a table.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runner.schema.text import LOADER, Config, Node

OFF: tuple[object, ...] = (False, "", [], {}, "no", "none")
CONDITIONS = ("value", "trainer", "peft", "optimizer", "form", "held_out", "command", "script")
SECTION_KINDS = ("same", "ignored", "no_equivalent")  # that are sections of a table as well
KINDS = (*SECTION_KINDS, "asked", "refused")
SHARED = "shared"
STRATEGY = "strategy"


@dataclass(frozen=True)
class Rule:
    """One thing that may become of a key; ``shared.yaml`` explains the fields."""

    # When it holds.
    when: Node = field(default_factory=dict)
    like: str = ""
    beside: Node = field(default_factory=dict)
    without: Node = field(default_factory=dict)
    # What becomes of the key.
    choose: str = ""
    to: str = ""
    convert: str = ""
    write: object = None
    rest: str = ""
    also: Node = field(default_factory=dict)
    give: Node = field(default_factory=dict)
    by: str = ""
    # Or why nothing does.
    kind: str = ""
    reason: str = ""
    nearest: str = ""
    typed: str = ""
    why: str = ""


Rules = dict[str, list[Rule]]  # those of each key, of which the first that holds counts


@dataclass(frozen=True)
class Table:
    """The table of a dialect."""

    keys: Rules
    rows: Rules  # of the keys of one dataset
    defaults: list[Rule]
    sections: Config  # all of it, as it is written


@functools.cache
def read_dialect_texts() -> dict[str, str]:
    """The text of each table, by its dialect."""
    files = sorted(Path(__file__).with_name("dialects").glob("*.yaml"))
    return {path.stem: path.read_text(encoding="utf-8") for path in files}


@functools.cache
def read_sections() -> dict[str, dict[str, Any]]:
    """The content of each table, by its dialect."""
    return {name: yaml.load(text, LOADER) for name, text in read_dialect_texts().items()}


def find_dialects() -> dict[str, dict[str, Any]]:
    """The content of each table that is one of a dialect, by its name."""
    tables = dict(read_sections())
    del tables[SHARED]
    del tables[STRATEGY]
    return tables


@functools.cache
def read_table(dialect: str) -> Table:
    """The table of a dialect, with the rows that all share."""
    sections = read_sections()
    node = sections[dialect]
    below = sections[node["below"]] if "below" in node else {"keys": {}}
    merged = below | node
    return Table(
        keys=read_rules(sections[SHARED]) | read_rules(below) | read_rules(node),
        rows=read_rules({"keys": merged.get("rows", {})}),
        defaults=_to_rules(merged["defaults"]),
        sections=merged,
    )


def read_rules(node: Node) -> Rules:
    """The rules of each key in a table, those of the sections that are short for rows as well."""
    rows: Rules = {}
    for path, names in node.get("names", {}).items():
        for name in names:
            rows[name] = [Rule(to=path)]
    for key, row in node["keys"].items():
        rows[key] = _to_rules(row)
    for kind in SECTION_KINDS:
        for key, texts in node.get(kind, {}).items():
            reason, *nearest = texts if isinstance(texts, list) else [texts]
            rows[key] = [Rule(kind=kind, reason=reason, nearest=" ".join(nearest))]
    return rows


def _to_rules(row: str | Node | list[Any]) -> list[Rule]:
    """The rules of a row: a path of ours, a rule, or a list of either."""
    if isinstance(row, list):
        rules = []
        for part in row:
            rules.extend(_to_rules(part))
        return rules
    if isinstance(row, str):
        return [Rule(to=row)]
    keys = dict(row)
    when = {name: keys.pop(name) for name in CONDITIONS if name in keys}
    for kind in KINDS:
        if kind in keys:
            reason = keys.pop(kind)
            return [Rule(when, kind=kind, reason=reason, **keys)]
    return [Rule(when, **keys)]


def is_wanted(value: object, wanted: object) -> bool:
    """True for a value that is one of those that a rule lists, compared as texts."""
    options = wanted if isinstance(wanted, list) else [wanted]
    texts = {str(option).lower() for option in options}
    state = "disabled" if value is None or value in OFF else "enabled"
    return str(value).lower() in texts or state in texts


def to_single_line(value: object) -> str:
    """A value on one line, as an experiment has it; a text as it is.

    There are blanks between the parts of a list or mapping, because lines wrap.
    """
    if isinstance(value, str):
        return value
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.strip().removesuffix("\n...").strip()


def filled(text: object, names: Mapping[str, object]) -> Any:
    """A text of a table, its names in braces replaced by values; anything else as it is."""
    if not isinstance(text, str):
        return text
    return re.sub(r"\{(\w+)\}", lambda name: to_single_line(names.get(name[1])), text)


def holds(rule: Rule, facts: Mapping[str, Sequence[object]], keys: Node) -> bool:
    """True where every condition of a rule is met by these facts and by the other keys.

    One of the facts is the value.
    """
    for name, wanted in rule.when.items():
        if not any(is_wanted(fact, wanted) for fact in facts.get(name, ())):
            return False
    if rule.like and not re.search(rule.like, to_single_line(facts["value"][0])):
        return False
    for key, wanted in rule.beside.items():
        if not is_wanted(keys.get(key), wanted):
            return False
    return not any(is_wanted(keys.get(key), wanted) for key, wanted in rule.without.items())
