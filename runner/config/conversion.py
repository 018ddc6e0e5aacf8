"""Conversions of values of another tool's keys.

A row in the table of a tool names one of CONVERSIONS. Each of them raises ValueError with what it
expects, where it cannot take a value.
"""

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from runner.schema.literal import to_list

MAX_DIGITS = 300  # of a whole number: to read more of them takes long
MEANT = {"true": True, "false": False, "none": None, "null": None}


def plain(value: object) -> Any:
    """The value that is meant: YAML reads 2e-5 as a text, and a shell reads everything so."""
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if not isinstance(value, str):
        return value
    word = value.lower()
    # In small letters it is a value of its own: of scale_rewards and report_to.
    if word in MEANT and value != "none":
        return MEANT[word]
    if re.fullmatch(r"[+-]?(\d+|\d{1,3}(_\d{3})+)", value) and len(value) <= MAX_DIGITS:
        return int(value)
    if re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", word):
        return float(value)
    if value[:1] in ("{", "[") and value[-1:] in ("}", "]"):
        with contextlib.suppress(ValueError, RecursionError):
            return plain(json.loads(value))
    return value


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


def to_words(value: object) -> list[str]:
    """A list of texts; a text is split at its commas."""
    if isinstance(value, str):
        value = value.split(",")
    texts = []
    for word in to_list(value):
        if isinstance(word, bool) or not isinstance(word, str | int | float):
            raise ValueError("a text, or a list of texts")
        texts.append(str(word).strip())
    return list(filter(None, texts))


def to_first(value: object) -> str:
    """The first of several texts; empty if there is none."""
    words = to_words(value)
    return words[0] if words else ""


def to_weights(value: object) -> list[float]:
    """A list of numbers; a text is split at its commas."""
    try:
        return [float(word) for word in to_words(value)]
    except ValueError:
        raise ValueError("a number, or a list of numbers") from None


def to_second_weight(value: object) -> list[float]:
    """The weights of two losses, of which the first, a preference loss, has 1."""
    return [1.0, to_number(value)]


def to_layers(value: object) -> str | list[str]:
    """Target modules as peft takes them: all-linear, a list of names, or a regular expression."""
    if isinstance(value, str) and re.search(r"[\\^$|()*]", value):
        return value
    names = to_words(value)
    if names in (["all"], ["all-linear"], ["all_linear"]):
        return "all-linear"
    return names


def to_mapping(value: object) -> dict[str, Any]:
    """Keys with values."""
    if not isinstance(value, Mapping):
        raise ValueError("keys with values")
    return {str(key): entry for key, entry in value.items()}


def to_entries(value: object) -> list[dict[str, Any]]:
    """A list of mappings; a text stands for a mapping with this path."""
    entries = []
    for entry in to_list(value):
        if isinstance(entry, str):
            entries.append({"path": entry})
        elif isinstance(entry, Mapping):
            entries.append(to_mapping(entry))
        else:
            raise ValueError("a list, each element a path or keys with values")
    return entries


CONVERSIONS: Mapping[str, Callable[[object], Any]] = {
    "number": to_number,
    "whole_number": to_whole_number,
    "plain_text": to_plain_text,
    "words": to_words,
    "first": to_first,
    "weights": to_weights,
    "second_weight": to_second_weight,
    "layers": to_layers,
    "mapping": to_mapping,
    "entries": to_entries,
}
# Conversions that need the number itself. The others only copy, so that a value which the shell
# sets can still be asked for.
COMPUTED = ("whole_number", "second_weight")
