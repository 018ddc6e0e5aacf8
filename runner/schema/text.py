"""A configuration as dotted keys, and its values as text: each the one way in which the runner writes them."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from runner.io.secrets import looks_secret

Config = Mapping[str, Any]  # a composed configuration, resolved: plain mappings, lists and scalars
Node = Mapping[str, Any]  # a part of one, often with a ``_target_``


def walk(node: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a tree of mappings and lists with what it holds; outer ones first, the root left out.

    >>> list(walk({"a": {"b": [7]}}))
    [('a', {'b': [7]}), ('a.b', [7]), ('a.b.0', 7)]
    """
    if path:
        yield path, node
    if isinstance(node, Mapping | list):
        for key, entry in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from walk(entry, f"{path}.{key}".lstrip("."))


def nodes(value: object, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping that has a ``_target_``, wherever it is, with its dotted key; outer ones first."""
    every = walk(value, path) if path else (("", value), *walk(value))
    return ((key, entry) for key, entry in every if isinstance(entry, dict) and "_target_" in entry)


def scalars(cfg: Config) -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping and no list, with its dotted key, in order."""
    return ((key, entry) for key, entry in walk(cfg) if not isinstance(entry, dict | list))


def flatten(node: Node) -> dict[str, Any]:
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


def to_text(value: object) -> str:
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


def to_override(path: str, value: object) -> str:
    """The word to type for a value at a dotted key, with the quotes that a shell takes away; of a secret only dots.

    >>> to_override("trainer.args.beta", 0.1), to_override("name", "a b")
    ('trainer.args.beta=0.1', 'name="a b"')
    """
    text = "..." if (isinstance(value, dict) and value) or looks_secret(str(value)) else to_text(value)
    if set(text) & set('"$`\\!{\n'):
        return shlex.quote(f"{path}={text}")
    return f'{path}="{text}"' if set(text) & set("' []()*?;&|<>#~") else f"{path}={text}"


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


def named(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The entries of a group whose parts have names; a single part has the given one."""
    return {name: node} if "_target_" in node else node
