"""YAML of others within limits: read in a moment with little memory, or refused with the reason.

A file of 300 bytes can stand for 10^9 values by aliases of aliases, and a key for a text of 10^10
letters by references to references. Both are measured before anything is built from them, which
costs no more than the size of the text.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runner.config.conversion import MAX_DIGITS
from runner.errors import ConfigError, Fault
from runner.io.fast_yaml import LOADER
from runner.io.filetype import undecodable

# Of a file, and letters of a configuration when all references are followed.
MAX_BYTES = 1 << 20
# Of texts that refer to others, in a file or followed: OmegaConf reads so many in 3 s.
MAX_LETTERS_READ = 50_000
MAX_DEPTH = 64
MAX_VALUES = 10_000
NUMBER = re.compile(r"[-+]?[0-9.][0-9a-fA-F_.:xo+-]*")
# Numbers that YAML 1.1 reads as others than they look like: eight for 010, ninety for 1:30.
OTHER_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
STANDARD = "tag:yaml.org,2002:"
KNOWN_TAGS = {f"{STANDARD}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
REFERENCE = re.compile(r"\$\{([^${}]*)(?=(\$|\}|$))")
EXPECTED = "a configuration that a person could have written"

Place = tuple[str, ...]  # a key, as the names that lead to it: one of them may have a dot in it


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; ConfigError if it is none, or no person could have written it."""
    check_size(path)
    return parse_yaml(path.read_bytes(), str(path))


def parse_yaml(text: str | bytes, where: str) -> Any:
    """The content of a YAML text, by the fast reader where it was built.

    Raises ConfigError with the line where it is no YAML.
    """
    try:
        excess = next(_find_excesses(text, where), None)
        if excess:
            raise ConfigError(excess)
        return yaml.load(text, LOADER)
    # An empty text with the tag of a number is an IndexError.
    except (yaml.YAMLError, ValueError, IndexError) as error:
        raise ConfigError(yaml_fault(error, where)) from None


def encoding_fault(path: Path, content: bytes, expected: str) -> Fault:
    """The fault of a file whose bytes are not UTF-8, with what they are instead."""
    finding = undecodable(content, str(path))
    return Fault(
        where=str(path),
        found=finding.found,
        expected=expected,
        fix=finding.fix,
    )


def check_size(path: Path) -> None:
    """Raise ConfigError for a file that nobody has written by hand, and for what is no file."""
    size = path.stat().st_size
    if not path.is_file():
        raise ConfigError(
            Fault(
                where=str(path),
                found="a folder" if path.is_dir() else "a pipe, a socket or a device",
                expected="a file",
                fix="the path of a file",
            )
        )
    if size > MAX_BYTES:
        raise ConfigError(
            Fault(
                where=str(path),
                found=f"{size / 1e6:.1f} MB",
                expected=f"{EXPECTED}, at most 1 MB",
                fix="rows belong in a file of dataset.path",
            )
        )


@dataclass
class _Open:
    """A list or mapping whose end has not been read yet."""

    anchor: str | None
    count: int  # of values before it


def _find_excesses(text: str | bytes, where: str) -> Iterator[Fault]:
    """A fault for each thing in a YAML text that no person would have written."""
    open_nodes: list[_Open] = []
    sizes: dict[str | None, int | None] = {}  # the values behind an anchor, None while it is open
    count = 0
    letters = 0
    for event in yaml.parse(text, LOADER):
        place = f"{where}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 1)
            if size is None:
                yield Fault(
                    where=place,
                    found=f"*{event.anchor} contains itself",
                    expected=EXPECTED,
                    fix="write it out",
                )
            count += size or 1
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            count += 1
            letters += len(event.value) if "${" in event.value else 0
            yield from _find_scalar_faults(event, place)
        elif isinstance(event, yaml.CollectionStartEvent):
            sizes[event.anchor] = None
            open_nodes.append(_Open(event.anchor, count))
            count += 1
            yield from _find_tag_faults(event, place)
        elif isinstance(event, yaml.CollectionEndEvent):
            node = open_nodes.pop()
            sizes[node.anchor] = count - node.count
        yield from _find_size_faults(place, count, len(open_nodes), letters)


def _find_size_faults(place: str, values: int, depth: int, letters: int) -> Iterator[Fault]:
    """A fault for too many values, levels, or letters of texts that refer to others."""
    if letters > MAX_LETTERS_READ:
        yield Fault(
            where=place,
            found=f"{letters:,} characters of texts that refer to others",
            expected=f"at most {MAX_LETTERS_READ:,}",
            fix="write the values out",
        )
    if depth > MAX_DEPTH:
        yield Fault(
            where=place,
            found=f"more than {MAX_DEPTH} levels",
            expected=EXPECTED,
            fix="fewer levels",
        )
    if values > MAX_VALUES:
        yield Fault(
            where=place,
            found=f"it stands for more than {MAX_VALUES:,} values",
            expected=EXPECTED,
            fix="write the aliases out",
        )


def _find_tag_faults(event: yaml.NodeEvent, place: str) -> Iterator[Fault]:
    """A fault for a tag by which YAML would build something."""
    if event.tag and event.tag not in KNOWN_TAGS and event.tag != "!":
        tag = event.tag.removeprefix(STANDARD).lstrip("!")
        yield Fault(
            where=place,
            found=f"the tag !{tag}",
            expected="plain values",
            fix="leave the tag out; _target_ names what is built",
        )


def _find_scalar_faults(event: yaml.ScalarEvent, place: str) -> Iterator[Fault]:
    """A fault for a tag, and for a number that is too long or is read as another."""
    yield from _find_tag_faults(event, place)
    text = "" if event.style else event.value  # a text in quotes is no number
    if len(text) > MAX_DIGITS and NUMBER.fullmatch(text):
        yield Fault(
            where=place,
            found=f"a number of {len(text)} digits",
            expected=f"at most {MAX_DIGITS}",
            fix="quotes, if it is a text",
        )
    elif OTHER_NUMBER.fullmatch(text) and event.implicit[0]:
        value = yaml.safe_load(text)
        meant = value
        if ":" not in text:
            meant = text.lstrip("+-0_") or 0
        yield Fault(
            where=place,
            found=f"{text}, which YAML reads as {value}",
            expected="a number that is read as it looks",
            fix=f"{meant}, or '{text}' if it is a text",
        )


def yaml_fault(error: Exception, where: str) -> Fault:
    """The fault of a text that is no YAML, at its line."""
    mark = getattr(error, "problem_mark", None)
    if mark:
        where = f"{where}:{mark.line + 1}"
    message = " ".join(str(error).split())
    found = str(getattr(error, "problem", None) or message[:200])
    found = re.sub("^(but )?found ", "", found)
    if "duplicate key" in found:
        return Fault(
            where=where,
            found=found,
            expected="each key once",
            fix="delete one of the two",
        )
    return Fault(
        where=where,
        found=found,
        expected="YAML",
        fix="mend the line, or quote its text",
    )


# --- References -----------------------------------------------------------------------------------
def check_growth(config: Mapping[str, object]) -> None:
    """Raise ConfigError if following every ``${...}`` would make far more of a configuration."""
    try:
        growth = measure_growth(config)
    except RecursionError:
        raise ConfigError(
            Fault(
                where="${...}",
                found="references to references that never end",
                expected=EXPECTED,
                fix="write the values out",
            )
        ) from None
    for sizes, most in ((growth.letters, MAX_BYTES), (growth.parsed, MAX_LETTERS_READ)):
        if sizes[()] <= most:
            continue
        # The smallest key that is too large: it holds the reason, and not those that refer to it.
        too_large = [place for place in sizes if place and sizes[place] > most]
        key = min(too_large, key=sizes.__getitem__, default=())
        raise ConfigError(
            Fault(
                where=".".join(key) or "${...}",
                found=f"{sizes[key]:,} characters, with all that it refers to",
                expected=f"at most {most:,}",
                fix="write the values out",
            )
        )


@dataclass
class Growth:
    """The sizes of the keys of a configuration with references followed; at () those of all."""

    config: Mapping[str, object]
    letters: dict[Place, int] = field(default_factory=dict)  # and values
    # Letters that OmegaConf parses: of texts that refer to others, and those in oc.decode.
    parsed: dict[Place, int] = field(default_factory=dict)

    def measure(self, value: object, path: Place) -> None:
        """Measure a value at a place, and before it all that is in it or that it refers to."""
        if path in self.letters:
            return
        # Until it is measured, for a circle of references, which OmegaConf reports better.
        self.letters[path] = 0
        self.parsed[path] = 0
        text = value if isinstance(value, str) else ""
        is_reference = "${" in text
        inner_places = []
        if is_reference:
            inner_places = list(self._find_references(text, path))
        else:
            for name, part in _parts_of(value):
                self.measure(part, (*path, name))
                inner_places.append((*path, name))
        parsed = self.letters if "oc.decode" in text else self.parsed
        inner_letters = sum(self.letters[place] for place in inner_places)
        self.letters[path] = 1 + len(text) + inner_letters
        self.parsed[path] = sum(parsed[place] for place in inner_places)
        if is_reference:
            self.parsed[path] += len(text)

    def _find_references(self, text: str, path: Place) -> Iterator[Place]:
        """The measured place of each node that a text refers to.

        Where a reference makes the name, it is the largest node that may be meant.
        """
        for reference, end in REFERENCE.findall(text):
            _, resolver, arguments = reference.rpartition(":")
            names = [reference.strip()]
            if resolver:
                names = re.split(r"[\s,(){}'\"]+", arguments)
            is_made = end == "$" and not resolver
            for name in filter(None, names):
                place = _place_of(name, path, is_made)
                node = _node_at(self.config, place)
                nodes = [(place, node)]
                if is_made:
                    nodes = [((*place, inner_name), part) for inner_name, part in _parts_of(node)]
                measured = []
                for inner_place, part in nodes:
                    if part is not None:
                        self.measure(part, inner_place)
                        measured.append(inner_place)
                if measured:
                    yield max(measured, key=self.letters.__getitem__)


def measure_growth(config: Mapping[str, object]) -> Growth:
    """The sizes of each key of a configuration with its references followed."""
    growth = Growth(config)
    growth.measure(config, ())
    return growth


def _place_of(name: str, path: Place, is_made: bool) -> Place:
    """The place that a name in a text at ``path`` refers to.

    A name with dots in front is relative to the text. The last part of a name that another
    reference makes is not known, and left out.
    """
    words = [word for word in re.split(r"[.\[\]]+", name) if word]
    if is_made and not name.endswith("."):
        words = words[:-1]
    dots = len(name) - len(name.lstrip("."))
    start = path[: len(path) - dots] if dots else ()
    return (*start, *words)


def _node_at(config: object, place: Place) -> object:
    """The node at a place; None if there is none."""
    node = config
    for word in place:
        if isinstance(node, Mapping):
            node = node.get(word)
        elif isinstance(node, list):
            try:
                node = node[int(word)]
            except (ValueError, IndexError):
                return None
        else:
            return None
    return node


def _parts_of(node: object) -> list[tuple[str, object]]:
    """The parts of a mapping or a list, each with its name or index; none of anything else."""
    if isinstance(node, Mapping):
        return [(str(name), part) for name, part in node.items()]
    if isinstance(node, list):
        return [(str(index), part) for index, part in enumerate(node)]
    return []
