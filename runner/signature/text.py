"""A configuration as dotted keys, and its values as text: each the one way in which the runner writes them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any


def walk(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a tree of mappings and lists with what it holds; outer ones first, the root left out.

    >>> list(walk({"a": {"b": [7]}}))
    [('a', {'b': [7]}), ('a.b', [7]), ('a.b.0', 7)]
    """
    if path:
        yield path, node
    if isinstance(node, Mapping | list):
        for key, entry in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from walk(entry, f"{path}.{key}".lstrip("."))


def flatten(node: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration by their dotted keys; a list is a value, and so is an empty mapping.

    >>> flatten({"a": {"b": [7], "c": {}}})
    {'a.b': [7], 'a.c': {}}
    """
    found: dict[str, Any] = {}
    for key, entry in node.items():
        is_inner = isinstance(entry, Mapping) and entry
        found |= {f"{key}.{inner}": leaf for inner, leaf in flatten(entry).items()} if is_inner else {str(key): entry}
    return found


def last_key(path: str) -> str:
    """The last name of a dotted key, without the places in lists behind it.

    >>> last_key("dataset.files.0")
    'files'
    """
    return next((word for word in reversed(path.split(".")) if not word.isdigit()), "")


def to_text(value: Any) -> str:
    """A value as the command line takes it.

    >>> to_text([0.1, None, "a, b", True])
    "[0.1,null,'a, b',true]"
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(to_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{to_text(entry)}" for key, entry in value.items()) + "}"
    return _quoted(value) if isinstance(value, str) and _needs_quotes(value) else str(value)


def _quoted(text: str) -> str:
    """A text in quotes, in which Hydra takes a backslash as such unless a quote comes after it."""
    quote = '"' if "'" in text and '"' not in text else "'"
    ends = re.sub(rf"(\\*)({quote}|\Z)", lambda found: found[1] * 2 + ("\\" + quote if found[2] else ""), text)
    return f"{quote}{ends}{quote}"


def _needs_quotes(text: str) -> bool:
    """True for a text that would be read as something else, or end early, on the command line."""
    if not re.fullmatch(r"[\w./:@%+-]+( [\w./:@%+-]+)*", text):
        return True
    return bool(re.fullmatch(r"(?i)null|true|false|[+-]?((\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?|inf|nan)", text))
