"""A configuration as dotted keys, values as text to type or to read, likeness of words, and the tables of a module."""

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.io.secrets import form_of

Config = Mapping[str, Any]  # a composed configuration, resolved: plain mappings, lists and scalars
Node = Mapping[str, Any]  # a part of one, often with a ``_target_``
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one, where it was built
# Texts that the command line takes without quotes, and those among them that would be read as something else.
UNQUOTED = re.compile(r"[\w./:@%+-]+( [\w./:@%+-]+)*")
CONSTANT = re.compile(r"(?i)null|true|false|[+-]?((\d[\d_]*(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)")


def read_tables(module: str) -> dict[str, Any]:
    """The tables of a module, by its ``__file__``: the YAML file that stands beside it under its name."""
    return yaml.load(Path(module).with_suffix(".yaml").read_bytes(), LOADER)


def walk(node: object, path: str = "", lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Every dotted key of a tree of mappings and ``lists`` with what it holds; outer ones first, the root left out.

    >>> list(walk({"a": {"b": [7]}}))
    [('a', {'b': [7]}), ('a.b', [7]), ('a.b.0', 7)]
    """
    if path:
        yield path, node
    if isinstance(node, Mapping) or (lists and isinstance(node, list)):
        for key, entry in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from walk(entry, f"{path}.{key}".lstrip("."), lists)


def nodes(value: object, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping that has a ``_target_``, wherever it is, with its dotted key; outer ones first."""
    every = walk(value, path) if path else (("", value), *walk(value))
    return ((key, entry) for key, entry in every if isinstance(entry, dict) and "_target_" in entry)


def scalars(cfg: Config) -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping and no list, with its dotted key, in order."""
    return ((key, entry) for key, entry in walk(cfg) if not isinstance(entry, dict | list))


def flatten(node: Node) -> dict[str, Any]:
    """The values of a configuration by their dotted keys; a list is a value, and so is an empty mapping."""
    return {key: entry for key, entry in walk(node, lists=False) if not (isinstance(entry, Mapping) and entry)}


def last_key(path: str) -> str:
    """The last name of a dotted key, without the indices of lists behind it."""
    return next((word for word in reversed(path.split(".")) if not word.isdigit()), "")


def select(node: object, key: str) -> Any:
    """The value at a dotted key of a tree of mappings, None where there is none; of an empty key the tree itself."""
    for name in key.split(".") if key else ():
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def named(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The entries of a group whose parts have names; a single part has the given one."""
    return {name: node} if "_target_" in node else node


def to_text(value: object) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(to_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{to_text(entry)}" for key, entry in value.items()) + "}"
    if not isinstance(value, str) or (UNQUOTED.fullmatch(value) and not CONSTANT.fullmatch(value)):
        return value if isinstance(value, str) else short_exponent(str(value))
    quote = '"' if "'" in value and '"' not in value else "'"
    # Hydra takes a backslash as such unless a quote comes after it.
    ends = re.sub(rf"(\\*)({quote}|\Z)", lambda found: found[1] * 2 + ("\\" + quote if found[2] else ""), value)
    return f"{quote}{ends}{quote}"


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits, and no word of a computer's."""
    if value is None:
        return "-"
    if isinstance(value, int) or (abs(value) < 1e6 and float(value).is_integer()):
        return str(int(value))
    return short_exponent(f"{value:.{digits}g}")


def short_exponent(text: str) -> str:
    """The text of a number without signs and zeros that an exponent does not need: 1e-6 for 1e-06."""
    return re.sub(r"(?<=\d)e([+-])0*(?=\d)", lambda sign: f"e{sign[1].strip('+')}", text)


def to_override(path: str, value: object) -> str:
    """The word to type for a value at a dotted key, with the quotes that a shell takes away; of a secret only dots.

    >>> to_override("trainer.args.beta", 0.1), to_override("name", "a b")
    ('trainer.args.beta=0.1', 'name="a b"')
    """
    text = "..." if (isinstance(value, dict) and value) or form_of(str(value)) else to_text(value)
    if set(text) & set('"$`\\!{\n'):
        return shlex.quote(f"{path}={text}")
    return f'{path}="{text}"' if set(text) & set("' []()*?;&|<>#~") else f"{path}={text}"


def as_typed(values: Node) -> str:
    """The words to type for some keys with their values, of one that holds several those below it."""
    return " ".join(to_override(path, value) for path, value in flatten(values).items())


def short_text(value: object) -> str:
    """A value as it stands in a fault: as typed, on one line, not too long, and never a secret."""
    text = to_text(value).replace("\n", "\\n")
    if form_of(text):
        return "..."
    return text if len(text) <= 64 else f"{text[:61]}..."


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The words that look like this one, the likeliest first."""
    scores = {each: likeness(word, each) for each in words}
    return sorted((each for each in scores if scores[each] >= cutoff), key=lambda each: -scores[each])


def files_beside(path: Path, suffixes: Collection[str]) -> list[str]:
    """The files with these suffixes in the folder of one that is missing, those that look most like it first."""
    there = [file for file in path.parent.glob("[!.]*") if file.suffix.lower() in suffixes]
    return sorted(map(str, there), key=lambda name: (not name.endswith(path.suffix), -likeness(path.name, name), name))


def likeness(word: str, other: str) -> float:
    """From 0 to 1 how much two words look alike; case and separators do not count."""
    one, two = (re.sub(r"[\W_]", "", each).lower() for each in (word, other))
    ratio = difflib.SequenceMatcher(None, one, two).ratio()
    return max(0.9, ratio) if len(one) > 3 and two.startswith(one) else ratio
