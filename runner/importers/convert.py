"""The conversions that a table may name, from a value of theirs to one of ours.

Each raises ValueError with what it expects, where it cannot take a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any


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


def to_size(value: object) -> float:
    """A share or a number of rows."""
    if not 0 <= to_number(value) < 1e12:
        raise ValueError("a share or a number of rows")
    return to_number(value)


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


NAMED = (to_number, to_whole_number, to_plain_text, to_list, to_words, to_first, to_layers, to_loss_weights)
# By the name without to_.
CONVERSIONS: Mapping[str, Callable[[object], Any]] = {each.__name__[3:]: each for each in NAMED}
# Conversions that need the number itself; the others only copy, so that what the shell sets can still be asked for.
COMPUTED = ("whole_number", "loss_weights")
