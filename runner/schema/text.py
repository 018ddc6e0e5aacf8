"""Configurations as text: dotted keys, and words to type.

A value alone is made a text in ``literal``.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner.io.secrets import form_of
from runner.schema.literal import to_text

Config = Mapping[str, Any]  # a composed configuration, resolved: plain mappings, lists and scalars
Node = Mapping[str, Any]  # a part of one, often with a ``_target_``
PLAIN = (str, int, float, type(None))  # values without parts
# What makes a shell split or change a word, and what it changes inside of double quotes, too.
SPECIAL_TO_SHELLS = set("' []()*?;&|<>#~")
SPECIAL_IN_QUOTES = set('"$`\\!{\n')
MAX_SHORT_LETTERS = 64  # of a value in a fault
MIN_KEY_LETTERS = 6  # of a shortened key: ``path`` and ``r`` alone say too little


# --- Dotted keys ---


def walk(node: object, path: str = "", lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Every dotted key of a tree of mappings and ``lists`` with its value.

    Outer ones come first; the root itself is left out.

    >>> list(walk({"a": {"b": [7]}}))
    [('a', {'b': [7]}), ('a.b', [7]), ('a.b.0', 7)]
    """
    if path:
        yield path, node
    items: Iterable[tuple[object, object]] = ()
    if isinstance(node, Mapping):
        items = node.items()
    elif lists and isinstance(node, list):
        items = enumerate(node)
    for key, value in items:
        inner_path = f"{path}.{key}".lstrip(".")
        # Nearly all values are plain, and nothing is inside of them.
        if isinstance(value, PLAIN) and inner_path:
            yield inner_path, value
        else:
            yield from walk(value, inner_path, lists)


def walk_shared(configs: Iterable[Config]) -> Iterator[tuple[Config, str, Any]]:
    """Every dotted key of some configurations with its value, as ``walk`` has them.

    A part that several of them share is walked once, where it comes first: the jobs of a sweep
    have most parts in common.
    """
    seen: set[tuple[str, int]] = set()
    for cfg in configs:
        for key, part in cfg.items():
            inner_parts = [(key, part)]
            # The part in which jobs differ has inner parts that they share.
            if isinstance(part, Mapping):
                inner_parts = [(f"{key}.{name}", inner) for name, inner in part.items()]
                yield cfg, key, part
            for path, inner in inner_parts:
                if isinstance(inner, Mapping | list):
                    if (path, id(inner)) in seen:
                        continue
                    seen.add((path, id(inner)))
                for inner_path, value in walk(inner, path):
                    yield cfg, inner_path, value


def nodes(value: object, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping inside a value that has a ``_target_``, with its dotted key; outer ones first.

    ``path`` is the key of the value itself.
    """
    if not path and isinstance(value, dict) and "_target_" in value:
        yield path, value
    for key, inner in walk(value, path):
        if isinstance(inner, dict) and "_target_" in inner:
            yield key, inner


def scalars(cfg: Config) -> Iterator[tuple[str, Any]]:
    """Every value that is neither a mapping nor a list, with its dotted key, in order."""
    for key, value in walk(cfg):
        if not isinstance(value, dict | list):
            yield key, value


def flatten(node: Node) -> dict[str, Any]:
    """The values by their dotted keys. Lists and empty mappings count as values."""
    flat = {}
    for key, value in walk(node, lists=False):
        if not isinstance(value, Mapping) or not value:
            flat[key] = value
    return flat


def last_key(path: str) -> str:
    """The last name of a dotted key, without the indices of lists behind it."""
    while path:
        path, _, word = path.rpartition(".")
        if not word.isdigit():
            return word
    return ""


def short_key(key: str, keys: Iterable[str]) -> str:
    """The shortest ending of a dotted key that says enough and that no other key has.

    >>> keys = ["trainer.args.max_steps", "dataset.path", "peft.r"]
    >>> [short_key(key, keys) for key in keys]
    ['max_steps', 'dataset.path', 'peft.r']
    """
    rivals = [f".{rival}" for rival in keys if rival != key]
    parts = key.split(".")
    ending = parts.pop()
    while parts:
        is_shared = any(rival.endswith(f".{ending}") for rival in rivals)
        if len(ending) >= MIN_KEY_LETTERS and not is_shared:
            return ending
        ending = f"{parts.pop()}.{ending}"
    return key


def select(node: object, key: str) -> Any:
    """The value at a dotted key, None where there is none; for an empty key the node itself."""
    if not key:
        return node
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def named(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The parts of a group by their names; a group that is a single part gives it this name."""
    return {name: node} if "_target_" in node else node


# --- Words ---


def to_override(path: str, value: object) -> str:
    """The word to type for a value at a dotted key, with the quotes that a shell takes away.

    A secret, or a mapping that is not empty, is only dots.

    >>> to_override("trainer.args.beta", 0.1), to_override("name", "a b")
    ('trainer.args.beta=0.1', 'name="a b"')
    """
    is_mapping = isinstance(value, dict) and bool(value)
    if is_mapping or form_of(str(value)):
        text = "..."
    else:
        text = to_text(value)
    letters = set(text)
    if SPECIAL_IN_QUOTES & letters:
        return shlex.quote(f"{path}={text}")
    if SPECIAL_TO_SHELLS & letters:
        return f'{path}="{text}"'
    return f"{path}={text}"


def as_typed(values: Node) -> str:
    """The words to type for some keys with their values; of mappings for the keys below them."""
    words = []
    for path, value in flatten(values).items():
        words.append(to_override(path, value))
    return " ".join(words)


def short_text(value: object) -> str:
    """A value as it stands in a fault: as typed, on one line, not too long, and never a secret."""
    text = to_text(value).replace("\n", "\\n")
    if form_of(text):
        return "..."
    if len(text) <= MAX_SHORT_LETTERS:
        return text
    return f"{text[: MAX_SHORT_LETTERS - 3]}..."
