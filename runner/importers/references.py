"""References of values to other keys, as OmegaConf writes them -> the values that they lead to.

These are ``${a.b}``, ``${.b}`` beside a key, ``${..b}`` further out, and
``${oc.select:a.b,fallback}``. Nothing is read from the environment.
"""

import re
from collections.abc import Mapping

from runner.config.limits import parse_yaml
from runner.importers.foreign_config import Keys
from runner.schema.text import select

REFERENCE = re.compile(r"\$\{(?:oc\.select:\s*)?(\.*)([\w.]+)(?:\s*,\s*([^{}]*))?\}")
MAX_STEPS = 10  # from one reference to the next
# Letters of a text that is looked at or put into another, so that no file grows without end.
MAX_LETTERS = 1000


def fill_references(keys: Keys) -> Keys:
    """The keys with the values that their texts refer to; what leads nowhere stays as it is."""
    return {key: _fill(value, [key], keys) for key, value in keys.items()}


def _fill(value: object, place: list[str], keys: Keys) -> object:
    """A value at a place with the values that it refers to."""
    if isinstance(value, Mapping):
        return {key: _fill(inner, [*place, str(key)], keys) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, place, keys) for inner in value]
    for _ in range(MAX_STEPS):
        if not isinstance(value, str) or len(value) > MAX_LETTERS:
            return value
        whole = REFERENCE.fullmatch(value)
        if whole:
            following = _follow(whole, place, keys)
        else:
            following = REFERENCE.sub(lambda match: _as_text(match, place, keys), value)
        if following == value:
            return value
        value = following
    return value


def _as_text(reference: re.Match[str], place: list[str], keys: Keys) -> str:
    """The text that a reference inside of a text leads to; the reference where it is too long."""
    text = str(_follow(reference, place, keys))
    return reference[0] if len(text) > MAX_LETTERS else text


def _follow(reference: re.Match[str], place: list[str], keys: Keys) -> object:
    """The value that a reference at a place leads to, else its fallback, else the reference."""
    dots, target, fallback = reference.groups()
    if dots:
        outer = place[: -len(dots)]
        target = ".".join([*outer, target])
    value = select(keys, target)
    if value is not None:
        return value
    if fallback is not None:
        return parse_yaml(fallback, "a fallback")
    return reference[0]
