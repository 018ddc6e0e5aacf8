"""Tables of other tools' keys: what each key becomes, as data, and the conversions that a row may name.

``importers`` follow them for a file, and the check of keys for what somebody types who comes from such a tool, or from
an earlier version of these libraries. The table of a dialect, as the language of a tool's configurations is called
here, is ``dialects/<dialect>.yaml``, with ``shared.yaml`` below it, which explains the form of a table.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runner.schema.text import LOADER

OFF: tuple[object, ...] = (False, "", [], {}, "no", "none")
CONDITIONS = ("value", "trainer", "peft", "optimizer", "form", "held_out", "command", "script")
KINDS = ("same", "ignored", "no_equivalent", "asked", "refused")
SHARED, STRATEGY = "shared", "strategy"  # tables of no dialect


@dataclass(frozen=True)
class Rule:
    """One thing that may become of a key; the fields are those of a row, as ``shared.yaml`` explains them."""

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
def _read_texts() -> dict[str, str]:
    files = sorted(Path(__file__).with_name("dialects").glob("*.yaml"))
    return {path.stem: path.read_text(encoding="utf-8") for path in files}


@functools.cache
def read_sections() -> dict[str, dict[str, Any]]:
    """The content of each table by its dialect."""
    return {name: yaml.load(text, LOADER) for name, text in _read_texts().items()}


def find_dialects() -> dict[str, dict[str, Any]]:
    """The content of each table of a dialect."""
    return {name: node for name, node in read_sections().items() if name not in (SHARED, STRATEGY)}


@functools.cache
def read_table(dialect: str) -> Table:
    """The table of a dialect, with the rows that all share."""
    sections = read_sections()
    node = sections[dialect]
    below = sections[node["below"]] if "below" in node else {"keys": {}}
    whole = below | node
    keys = _read_rows(sections[SHARED]) | _read_rows(below) | _read_rows(node)
    return Table(keys, _read_rows({"keys": whole.get("rows", {})}), _to_rules(whole["defaults"]), whole)


def _read_rows(node: Mapping[str, Any]) -> dict[str, list[Rule]]:
    rows = {name: [Rule(to=path)] for path, names in node.get("names", {}).items() for name in names}
    rows |= {key: _to_rules(row) for key, row in node["keys"].items()}
    for kind in KINDS[:3]:
        for key, said in node.get(kind, {}).items():
            why, *nearest = said if isinstance(said, list) else [said]
            rows[key] = [Rule(kind=kind, reason=why, nearest=" ".join(nearest))]
    return rows


def _to_rules(row: str | Mapping[str, Any] | list[Any]) -> list[Rule]:
    if isinstance(row, list):
        return [rule for each in row for rule in _to_rules(each)]
    if isinstance(row, str):
        return [Rule(to=row)]
    rest = {name: value for name, value in row.items() if name not in (*CONDITIONS, *KINDS)}
    kind = next((kind for kind in KINDS if kind in row), "")
    return [Rule({name: row[name] for name in CONDITIONS if name in row}, kind=kind, reason=row.get(kind, ""), **rest)]


def is_wanted(value: object, wanted: object) -> bool:
    """True for a value that is one of those that a rule lists, compared as texts."""
    texts = {str(each).lower() for each in (wanted if isinstance(wanted, list) else [wanted])}
    return str(value).lower() in texts or ("disabled" if value is None or value in OFF else "enabled") in texts


def to_single_line(value: object) -> str:
    """A value on one line, a text as it is, anything else as the experiment has it; with blanks, because lines wrap."""
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).strip()
    return text.removesuffix("\n...").strip()


def filled(text: object, names: Mapping[str, object]) -> Any:
    """A text of a table, its names in braces replaced by values; anything else as it is."""
    if not isinstance(text, str):
        return text
    return re.sub(r"\{(\w+)\}", lambda found: to_single_line(names.get(found[1])), text)


def holds(rule: Rule, facts: Mapping[str, Sequence[object]], keys: Mapping[str, Any]) -> bool:
    """True where every condition of a rule is met by these facts, one of them the value, and by the other keys."""
    return (
        all(any(is_wanted(fact, wanted) for fact in facts.get(name, ())) for name, wanted in rule.when.items())
        and (not rule.like or bool(re.search(rule.like, to_single_line(facts["value"][0]))))
        and all(is_wanted(keys.get(key), wanted) for key, wanted in rule.beside.items())
        and not any(is_wanted(keys.get(key), wanted) for key, wanted in rule.without.items())
    )


# --- What is typed ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Meaning:
    """The options and values of ours that a word stands for, by their keys; ``why`` is a remark, or why there are none,
    and ``fix`` then what comes nearest. One that is ``final`` is meant even where the word is a key of ours elsewhere.
    """

    words: Mapping[str, Any]
    why: str
    fix: str = ""
    final: bool = False


@functools.cache
def _read_typed() -> list[dict[str, list[Rule]]]:
    shared, dialects = read_sections()[SHARED], find_dialects().values()
    return [_read_rows({"keys": shared["typed"]}), _read_rows(shared), *map(_read_rows, dialects)]


def find_meanings(key: str, value: object, trainer: str = "") -> Iterator[Meaning]:
    """The meanings of a key that is not ours, with this value, the likeliest first; an adapter is taken for LoRA."""
    facts: dict[str, list[object]] = {"value": [value], "trainer": [trainer], "peft": ["lora"]}
    names = {"key": key, "value": value, "trainer": trainer}
    tables = _read_typed() if any(key in text for text in _read_texts().values()) else []
    known = [rule for rows in tables for rule in rows.get(key, ()) if not rule.by and "*" not in rule.to]
    for rule in (rule for rule in known if holds(rule, facts, {key: value})):
        group, _, option = filled(rule.choose, names).partition("=")
        words: dict[str, Any] = {group: None if option == "null" else option} if group else {}
        if rule.to:
            words[rule.to] = value if rule.write is None else filled(rule.write, names)
            if rule.convert and rule.write is None:
                with contextlib.suppress(ValueError):  # the check of the values says what it expects
                    words[rule.to] = CONVERSIONS[rule.convert](value)
        words |= {path: filled(constant, names) for path, constant in rule.also.items()}
        why, nearest = (filled(text, names) for text in (rule.reason or rule.why, rule.typed or rule.nearest))
        fix = nearest if re.fullmatch(r"(python -m runner|[\w.]+=)((?![,;] |<).)+", nearest) else ""
        why += f"; nearest: {nearest}" if nearest and not fix else ""
        yield Meaning(words, why.removeprefix("; "), fix, rule.kind == "refused")
        if not words:
            return
    if known and is_wanted(value, "disabled"):
        yield Meaning({}, "it is off without it")


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


def to_layers(value: object) -> str | list[str]:
    """Target modules as peft takes them: all-linear, a list of names, or a regular expression."""
    if isinstance(value, str) and re.search(r"[\\^$|()*]", value):
        return value
    return "all-linear" if (names := to_words(value)) in (["all"], ["all-linear"], ["all_linear"]) else names


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


NAMED = (to_number, to_whole_number, to_plain_text, to_words, to_weights, to_layers, to_mapping, to_entries)
CONVERSIONS: Mapping[str, Callable[[object], Any]] = {
    **{each.__name__.removeprefix("to_"): each for each in NAMED},
    "first": lambda value: next(iter(to_words(value)), ""),  # of several texts
    "second_weight": lambda value: [1.0, to_number(value)],  # beside that of a preference loss, which is 1
}
# Conversions that need the number itself; the others only copy, so that what the shell sets can still be asked for.
COMPUTED = ("whole_number", "second_weight")
