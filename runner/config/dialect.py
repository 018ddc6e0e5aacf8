"""Tables of other tools' keys, as data: what becomes of each key.

``importers`` follow them for a file, and the check of keys for what somebody types who comes from
such a tool, or from an earlier version of these libraries. A dialect is the language of a tool's
configurations. Its table is ``dialects/<dialect>.yaml``, with ``shared.yaml`` below it, which
explains the form of a table.
"""

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runner.config.conversion import CONVERSIONS
from runner.io.fast_yaml import LOADER
from runner.schema.literal import to_list
from runner.schema.text import Config, Node

OFF: tuple[object, ...] = (False, "", [], {}, "no", "none")
CONDITIONS = ("value", "trainer", "peft", "optimizer", "form", "held_out", "command", "script")
SECTION_KINDS = ("same", "ignored", "no_equivalent")  # that are sections of a table as well
KINDS = (*SECTION_KINDS, "asked", "refused")
SHARED = "shared"
STRATEGY = "strategy"
# A remark that is a command as a whole.
COMMAND = re.compile(r"(python -m runner|[\w.]+=)((?![,;] |<).)+")


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
def _read_texts() -> dict[str, str]:
    """The text of each table, by its dialect."""
    folder = Path(__file__).with_name("dialects")
    texts = {}
    for path in sorted(folder.glob("*.yaml")):
        texts[path.stem] = path.read_text(encoding="utf-8")
    return texts


@functools.cache
def read_sections() -> dict[str, dict[str, Any]]:
    """The content of each table, by its dialect."""
    sections = {}
    for name, text in _read_texts().items():
        sections[name] = yaml.load(text, LOADER)
    return sections


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
    merged: dict[str, Any] = {}
    keys = _read_rules(sections[SHARED])
    for name in reversed(find_lineage(dialect)):
        merged |= sections[name]
        keys |= _read_rules(sections[name])
    return Table(
        keys=keys,
        rows=_read_rules({"keys": merged.get("rows", {})}),
        defaults=_to_rules(merged["defaults"]),
        sections=merged,
    )


def find_lineage(dialect: str) -> list[str]:
    """A dialect, the one whose table lies below its own, and so on."""
    sections = read_sections()
    lineage = [dialect]
    while "below" in sections[lineage[-1]]:
        lineage.append(sections[lineage[-1]]["below"])
    return lineage


def _read_rules(node: Node) -> Rules:
    """The rules of each key in a table, those of the sections that are short for rows as well."""
    rows: Rules = {}
    for path, names in node.get("names", {}).items():
        for name in names:
            rows[name] = [Rule(to=path)]
    for key, row in node["keys"].items():
        rows[key] = _to_rules(row)
    for kind in SECTION_KINDS:
        for key, texts in node.get(kind, {}).items():
            reason, *nearest = to_list(texts)
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
    """True for a value that is one of those that a rule lists, compared as texts.

    ``enabled`` and ``disabled`` stand for all values that mean so, such as ``none`` or ``[]``.
    """
    texts = {str(option).lower() for option in to_list(wanted)}
    state = "disabled" if value is None or value in OFF else "enabled"
    return str(value).lower() in texts or state in texts


def to_single_line(value: object) -> str:
    """A value on one line, as an experiment has it; a text as it is.

    There are blanks between the parts of a list or mapping, because lines wrap.
    """
    if isinstance(value, str):
        return value
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    # PyYAML ends a document that is a single scalar with three dots.
    document = text.strip().removesuffix("\n...")
    return document.strip()


def filled(text: object, names: Mapping[str, object]) -> Any:
    """A text of a table, its names in braces replaced by values; anything else as it is."""
    if not isinstance(text, str):
        return text

    def fill(name: re.Match[str]) -> str:
        value = names.get(name[1])
        return to_single_line(value)

    return re.sub(r"\{(\w+)\}", fill, text)


def holds(rule: Rule, facts: Mapping[str, Sequence[object]], keys: Node) -> bool:
    """True where every condition of a rule is met by these facts and by the other keys.

    One of the facts is the value.
    """
    for name, wanted in rule.when.items():
        if not any(is_wanted(fact, wanted) for fact in facts.get(name, ())):
            return False
    value = facts["value"][0]
    if rule.like and not re.search(rule.like, to_single_line(value)):
        return False
    for key, wanted in rule.beside.items():
        if not is_wanted(keys.get(key), wanted):
            return False
    for key, wanted in rule.without.items():
        if is_wanted(keys.get(key), wanted):
            return False
    return True


# --- Other names of our keys and verbs ------------------------------------------------------------
@dataclass(frozen=True)
class Meaning:
    """The options and values of ours that a word stands for."""

    words: Node  # by their keys
    why: str  # a remark, or the reason why there are no words
    fix: str = ""  # what comes nearest, where there are none
    final: bool = False  # meant even where the word is a key of ours elsewhere


@functools.cache
def _read_typed() -> list[Rules]:
    """The rules for what is typed, those that all tables share, and those of each dialect."""
    shared = read_sections()[SHARED]
    tables = [_read_rules({"keys": shared["typed"]}), _read_rules(shared)]
    for dialect in find_dialects().values():
        tables.append(_read_rules(dialect))
    return tables


def find_meanings(key: str, value: object, trainer: str = "") -> Iterator[Meaning]:
    """The meanings of a key that is not ours, with this value, the likeliest first.

    An adapter is taken for LoRA.
    """
    # Most keys are in no table, and it takes a while to read them all.
    if not any(key in text for text in _read_texts().values()):
        return
    rules = []
    for rows in _read_typed():
        for rule in rows.get(key, ()):
            if not rule.by and "*" not in rule.to:
                rules.append(rule)
    facts: dict[str, list[object]] = {"value": [value], "trainer": [trainer], "peft": ["lora"]}
    names = {"key": key, "value": value, "trainer": trainer}
    for rule in rules:
        if holds(rule, facts, {key: value}):
            meaning = _to_meaning(rule, names)
            yield meaning
            if not meaning.words:
                return
    if rules and is_wanted(value, "disabled"):
        yield Meaning({}, "it is off without it")


def _to_meaning(rule: Rule, names: Mapping[str, object]) -> Meaning:
    """The meaning that a rule gives to a word; ``names`` are those that its texts may use."""
    words: dict[str, object] = {}
    group, _, option = filled(rule.choose, names).partition("=")
    if option.startswith("["):  # several options of a group
        words[group] = yaml.load(option, LOADER)
    elif group:
        words[group] = None if option == "null" else option
    if rule.to:
        words[rule.to] = names["value"]
        if rule.write is not None:
            words[rule.to] = filled(rule.write, names)
        elif rule.convert:
            with contextlib.suppress(ValueError):  # the check of values says what it expects
                words[rule.to] = CONVERSIONS[rule.convert](names["value"])
    for path, constant in rule.also.items():
        words[path] = filled(constant, names)

    why = filled(rule.reason or rule.why, names)
    remark = filled(rule.typed or rule.nearest, names)
    fix = ""
    if COMMAND.fullmatch(remark):
        fix = remark
    elif remark:
        why = f"{why}; nearest: {remark}".removeprefix("; ")
    return Meaning(words, why, fix, final=rule.kind == "refused")


def meant_command(word: str) -> str:
    """The command that another tool's word for one of our verbs stands for; else empty.

    It has names in braces: ``{word}``, ``{rest}`` of the words, and the ``{runs}`` among them.
    """
    commands: dict[str, str] = read_sections()[SHARED]["words"]
    return commands.get(word.lower(), "")
