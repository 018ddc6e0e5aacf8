"""YAML of others within bounds: read in a moment and little memory, or refused with what is wrong with it.

A file of 300 bytes can stand for 10^9 values by aliases of aliases, and a key for a text of 10^10 letters by references
to references. Both are measured before anything is built from them, which costs no more than the size of the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.errors import ConfigError, Fault

LARGEST = 1 << 20  # bytes of a file, and letters of a configuration when all references are followed
DEEPEST = 64
MOST = 10_000  # values
SMALL = 1 << 14  # bytes that hold fewer values than that
DIGITS = 300
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Without any of these a file is as plain as it looks, and need not be read twice.
SUSPICIOUS = re.compile(
    rb"&[\w-]|[\s\[,{]!|[0-9a-fA-F_:.]{%d}|(?:[\[{]\s*){8}|(?:-\s+){8}|(?:\?\s+){4}|\n {%d}" % (DIGITS, DEEPEST)
)
NUMBER = re.compile(r"[-+]?[0-9.][0-9a-fA-F_.:xo+-]*")
STANDARD = "tag:yaml.org,2002:"
KNOWN_TAGS = {f"{STANDARD}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
REFERENCE = re.compile(r"\$\{([^${}]*)(?=(\$|\}|$))")
SHORT = "a configuration that a person could have written"


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; ConfigError where it is none, or no person could have written it."""
    check_yaml(path)
    return parse_yaml(path.read_bytes(), str(path))


def parse_yaml(text: str | bytes, where: str) -> Any:
    """The content of a YAML text, by the fast reader where there is one; ConfigError with the line where it is none."""
    try:
        check_text(text.encode() if isinstance(text, str) else text, where)
        return yaml.load(text, LOADER)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(_no_yaml(error, where)) from None


def check_yaml(path: Path) -> None:
    """Raise ConfigError for a file that is too large, too deep, or stands for too much."""
    check_size(path)
    check_text(path.read_bytes(), str(path))


def check_size(path: Path) -> None:
    """Raise ConfigError for a file that nobody has written by hand."""
    size = os.stat(path).st_size
    if size > LARGEST:
        found = f"{size / 1e6:.1f} MB"
        raise ConfigError(Fault(str(path), found, f"{SHORT}, at most 1 MB", "rows belong into a file of dataset.path"))


def check_text(text: bytes, where: str) -> None:
    """Raise ConfigError for a YAML text that is too deep, stands for too much, or calls for more than plain values."""
    few = len(text) < SMALL and text.count(b"[") + text.count(b"{") < DEEPEST
    if few and not SUSPICIOUS.search(text):
        return
    try:
        fault = next(_excesses(text, where), None)
    except (yaml.YAMLError, ValueError) as error:
        fault = _no_yaml(error, where)
    if fault:
        raise ConfigError(fault)


def _excesses(text: bytes, where: str) -> Iterator[Fault]:
    """A fault for the first of the events of a text that leads too far."""
    open_nodes: list[tuple[str | None, int]] = []  # the anchor of each, and what had been counted before it
    anchors: dict[str, int | None] = {}  # how much each stands for; nothing while it is open
    count = 0
    for event in yaml.parse(text, LOADER):
        place = f"{where}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            size = anchors.get(event.anchor, 1)
            if size is None:
                yield Fault(place, f"*{event.anchor} is inside of itself", SHORT, "write it out")
            count += size or 1
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            yield from _odd(event, place)
            anchors |= (
                {event.anchor: None if isinstance(event, yaml.CollectionStartEvent) else 1} if event.anchor else {}
            )
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count - 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            anchors |= {anchor: count - before} if anchor else {}
        if len(open_nodes) > DEEPEST:
            yield Fault(place, f"more than {DEEPEST} levels", SHORT, "fewer levels")
        if count > MOST:
            yield Fault(place, f"it stands for more than {MOST:,} values", SHORT, "write the aliases out")


def _odd(event: yaml.NodeEvent, place: str) -> Iterator[Fault]:
    """A fault for a tag that would build something, or a number that no machine counts with."""
    if event.tag and event.tag not in KNOWN_TAGS and event.tag != "!":
        found = f"the tag !{event.tag.removeprefix(STANDARD).lstrip('!')}"
        yield Fault(place, found, "plain values", "leave the tag out; _target_ names what is built")
    text = event.value if isinstance(event, yaml.ScalarEvent) and not event.style else ""
    if len(text) > DIGITS and NUMBER.fullmatch(text):
        yield Fault(place, f"a number of {len(text)} digits", f"at most {DIGITS}", "quotes, if it is a text")


def _no_yaml(error: Exception, where: str) -> Fault:
    mark = getattr(error, "problem_mark", None)
    found = getattr(error, "problem", None) or " ".join(str(error).split())[:200]
    return Fault(f"{where}:{mark.line + 1}" if mark else where, str(found), "YAML", "mend the line, or quote its text")


# --- References -----------------------------------------------------------------------------------


def check_growth(config: Mapping[str, object]) -> None:
    """Raise ConfigError where following every ``${...}`` would make far more of a configuration than it is."""
    try:
        growth = Growth(config)
        found = f"with what it refers to {growth.total:,} letters" if growth.total > LARGEST else ""
        where = growth.largest
    except RecursionError:
        where, found = "", "references to references without an end"
    if found:
        raise ConfigError(Fault(where or "${...}", found, SHORT, "write the values out"))


class Growth:
    """The number of letters and values a configuration is when each reference in it is followed, by key."""

    def __init__(self, config: Mapping[str, object]):
        self.config = config
        self.sizes: dict[str, int] = {}
        self.total = self._size(config, ())

    @property
    def largest(self) -> str:
        """The shortest key of those that grow too much."""
        found = [key for key, size in self.sizes.items() if size > LARGEST and key]
        return min(found, key=lambda key: self.sizes[key], default="")

    def _size(self, value: object, path: tuple[str, ...]) -> int:
        key = ".".join(path)
        if key not in self.sizes:
            self.sizes[key] = 0  # of a circle, which OmegaConf tells better
            if isinstance(value, str):
                self.sizes[key] = 1 + len(value) + sum(self._of_references(value, path))
            else:
                self.sizes[key] = 1 + sum(self._size(entry, (*path, name)) for name, entry in _entries(value))
        return self.sizes[key]

    def _of_references(self, text: str, path: tuple[str, ...]) -> Iterator[int]:
        """The size of each node that a text refers to; where a reference makes the name, of the largest it may mean."""
        for said, end in REFERENCE.findall(text) if "${" in text else ():
            _, resolver, arguments = said.rpartition(":")
            names = re.split(r"[\s,(){}'\"]+", arguments) if resolver else [said.strip()]
            for name in filter(None, names):
                up = len(name) - len(name.lstrip("."))
                words = [word for word in re.split(r"[.\[\]]+", name) if word]
                made = end == "$" and not resolver
                words = words[:-1] if made and not name.endswith(".") else words
                place = (*(path[: len(path) - up] if up else ()), *words)
                node = self._at(place)
                if made:
                    yield max((self._size(entry, (*place, inner)) for inner, entry in _entries(node)), default=0)
                elif node is not None:
                    yield self._size(node, place)

    def _at(self, path: tuple[str, ...]) -> object:
        node: object = self.config
        for word in path:
            if isinstance(node, list):
                node = node[int(word)] if word.isdigit() and int(word) < len(node) else None
            else:
                node = node.get(word) if isinstance(node, Mapping) else None
        return node


def _entries(node: object) -> list[tuple[str, object]]:
    """The values of a mapping or a list by their names as text."""
    if isinstance(node, Mapping):
        return [(str(name), entry) for name, entry in node.items()]
    return [(str(place), entry) for place, entry in enumerate(node)] if isinstance(node, list) else []
