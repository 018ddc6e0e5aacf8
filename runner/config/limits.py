"""YAML of others within bounds: read in a moment and little memory, or refused with what is wrong with it.

A file of 300 bytes can stand for 10^9 values by aliases of aliases, and a key for a text of 10^10 letters by references
to references. Both are measured before anything is built from them, which costs no more than the size of the text.
"""

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.errors import ConfigError, Fault, fault
from runner.schema.text import LOADER

MAX_BYTES = 1 << 20  # of a file, and letters of a configuration when all references are followed
MAX_LETTERS_READ = 50_000  # of texts that refer to others, in a file or followed, which OmegaConf reads in 3 s
MAX_DEPTH = 64
MAX_VALUES = 10_000
MAX_DIGITS = 300
NUMBER = re.compile(r"[-+]?[0-9.][0-9a-fA-F_.:xo+-]*")
# What YAML 1.1 reads as another number than it looks like: eight for 010, ninety for 1:30.
OTHER_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
STANDARD = "tag:yaml.org,2002:"
KNOWN_TAGS = {f"{STANDARD}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
REFERENCE = re.compile(r"\$\{([^${}]*)(?=(\$|\}|$))")
Place = tuple[str, ...]  # of a key, as the names that lead there: one of them may have a dot in it
EXPECTED = "a configuration that a person could have written"


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; ConfigError where it is none, or no person could have written it."""
    check_size(path)
    return parse_yaml(path.read_bytes(), str(path))


def parse_yaml(text: str | bytes, where: str) -> Any:
    """The content of a YAML text, by the fast reader where there is one; ConfigError with the line where it is none."""
    try:
        if excess := next(_find_excesses(text, where), None):
            raise ConfigError(excess)
        return yaml.load(text, LOADER)
    except (yaml.YAMLError, ValueError, IndexError) as error:  # the last of an empty text with the tag of a number
        raise ConfigError(yaml_fault(error, where)) from None


def check_size(path: Path) -> None:
    """Raise ConfigError for a file that nobody has written by hand, and for what is no file."""
    size = path.stat().st_size
    if not path.is_file():
        found = "a folder" if path.is_dir() else "a pipe, a socket or a device"
        raise ConfigError(Fault(str(path), found, "a file", "the path of a file"))
    if size > MAX_BYTES:
        raise ConfigError(fault("config.large_file", file=path, megabytes=size / 1e6, expected=EXPECTED))


def _find_excesses(text: str | bytes, where: str) -> Iterator[Fault]:
    open_nodes: list[tuple[str | None, int]] = []  # the anchor of each, and what had been counted before it
    anchors: dict[str, int | None] = {}  # how much each stands for; nothing while it is open
    count = letters = 0
    for event in yaml.parse(text, LOADER):
        place = f"{where}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            if (size := anchors.get(event.anchor, 1)) is None:
                yield Fault(place, f"*{event.anchor} is inside of itself", EXPECTED, "write it out")
            count += size or 1
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            if event.tag and event.tag not in KNOWN_TAGS and event.tag != "!":
                yield fault("config.tagged", place=place, tag=event.tag.removeprefix(STANDARD).lstrip("!"))
            plain = event.value if isinstance(event, yaml.ScalarEvent) and not event.style else ""
            letters += len(event.value) if isinstance(event, yaml.ScalarEvent) and "${" in event.value else 0
            if letters > MAX_LETTERS_READ:
                yield fault("config.many_references", place=place, letters=letters, most=MAX_LETTERS_READ)
            if len(plain) > MAX_DIGITS and NUMBER.fullmatch(plain):
                yield fault("config.many_digits", place=place, digits=len(plain), most=MAX_DIGITS)
            elif OTHER_NUMBER.fullmatch(plain) and event.implicit[0]:
                read = yaml.safe_load(plain)
                meant = read if ":" in plain else plain.lstrip("+-0_") or 0
                yield fault("config.other_number", place=place, text=plain, read=read, meant=meant)
            is_open = isinstance(event, yaml.CollectionStartEvent)
            if event.anchor:
                anchors[event.anchor] = None if is_open else 1
            if is_open:
                open_nodes.append((event.anchor, count - 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            anchors |= {anchor: count - before} if anchor else {}
        if len(open_nodes) > MAX_DEPTH:
            yield Fault(place, f"more than {MAX_DEPTH} levels", EXPECTED, "fewer levels")
        if count > MAX_VALUES:
            yield Fault(place, f"it stands for more than {MAX_VALUES:,} values", EXPECTED, "write the aliases out")


def yaml_fault(error: Exception, where: str) -> Fault:
    """The fault of a text that is no YAML, at its line."""
    where = f"{where}:{mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) else where
    found = str(getattr(error, "problem", None) or " ".join(str(error).split())[:200])
    if "duplicate key" in found:
        return Fault(where, found, "each key once", "delete one of the two")
    return Fault(where, found, "YAML", "mend the line, or quote its text")


# --- References -----------------------------------------------------------------------------------
def check_growth(config: Mapping[str, object]) -> None:
    """Raise ConfigError where following every ``${...}`` would make far more of a configuration than it is."""
    try:
        letters, parsed = measure_growth(config)
    except RecursionError:
        raise ConfigError(fault("config.endless_references", expected=EXPECTED)) from None
    for sizes, most in ((letters, MAX_BYTES), (parsed, MAX_LETTERS_READ)):
        if sizes[()] > most:
            first = min((place for place in sizes if place and sizes[place] > most), key=sizes.__getitem__, default=())
            raise ConfigError(fault("config.grown", key=".".join(first) or "${...}", letters=sizes[first], most=most))


def measure_growth(config: Mapping[str, object]) -> tuple[dict[Place, int], dict[Place, int]]:
    """By place the letters and values of a key with its references followed, and those that OmegaConf parses for it."""
    sizes: dict[Place, int] = {}
    parsed: dict[Place, int] = {}  # of texts that refer to others, and in oc.decode

    def measure(value: object, path: Place) -> Place:
        if path not in sizes:
            sizes[path] = parsed[path] = 0  # of a circle, which OmegaConf reports better
            text = value if isinstance(value, str) else ""
            entries = [measure(entry, (*path, name)) for name, entry in _entries(value)]
            inner = list(of_references(text, path)) if "${" in text else entries
            sizes[path] = 1 + len(text) + sum(sizes[each] for each in inner)
            decoded = sizes if "oc.decode" in text else parsed
            parsed[path] = len(text) * ("${" in text) + sum(decoded[each] for each in inner)
        return path

    def of_references(text: str, path: Place) -> Iterator[Place]:
        """The place of each node that a text refers to; where a reference makes the name, the largest it may mean."""
        for reference, end in REFERENCE.findall(text):
            _, resolver, arguments = reference.rpartition(":")
            for name in filter(None, re.split(r"[\s,(){}'\"]+", arguments) if resolver else [reference.strip()]):
                up = len(name) - len(name.lstrip("."))
                words = [word for word in re.split(r"[.\[\]]+", name) if word]
                made = end == "$" and not resolver
                words = words[:-1] if made and not name.endswith(".") else words
                place = (*(path[: len(path) - up] if up else ()), *words)
                node = functools.reduce(_inside, place, config)
                meant = [((*place, inner), entry) for inner, entry in _entries(node)] if made else [(place, node)]
                measured = [measure(entry, path) for path, entry in meant if entry is not None]
                yield from sorted(measured, key=sizes.__getitem__)[-1:]

    measure(config, ())
    return sizes, parsed


def _inside(node: Any, word: str) -> Any:
    with contextlib.suppress(ValueError, IndexError):
        return node[int(word)] if isinstance(node, list) else node.get(word) if isinstance(node, Mapping) else None


def _entries(node: object) -> list[tuple[str, object]]:
    if isinstance(node, Mapping):
        return [(str(name), entry) for name, entry in node.items()]
    return [(str(index), entry) for index, entry in enumerate(node)] if isinstance(node, list) else []
