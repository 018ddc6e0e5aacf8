"""The YAML of frozen configurations, of which thousands differ in a few numbers.

A text in which only plain numbers are others than in a text that was read before needs no parser:
these are put in their places. Any other text is read as every YAML is.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runner.config.conversion import MAX_DIGITS
from runner.io.fast_yaml import LOADER
from runner.io.files import open_own

# Numbers that YAML 1.1 reads as Python does.
WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
BROKEN = re.compile(r"-?[0-9]+\.[0-9]*(?:e[-+][0-9]+)?")
MAX_TEMPLATES = 64
MAX_BYTES = 1 << 18  # of a text that is kept as a template

Place = tuple[str | int, ...]  # the names and indices that lead to a value


@dataclass
class Slots:
    """The places of a number that stands at the end of a line."""

    column: int  # where it begins
    places: list[Place] = field(default_factory=list)  # several where YAML has aliases


@dataclass(frozen=True)
class Template:
    """A text that was read, with its numbers."""

    lines: list[str]
    content: Any
    slots: dict[int, Slots]  # by the number of the line

    def read(self, lines: list[str]) -> Any:
        """The content of a text of as many lines; None where more than numbers is different."""
        content = dict(self.content)
        for number, (old, new) in enumerate(zip(self.lines, lines, strict=True)):
            if old == new:
                continue
            slots = self.slots.get(number)
            if slots is None or old[: slots.column] != new[: slots.column]:
                return None
            value = _to_number(new[slots.column :])
            if value is None:
                return None
            for place in slots.places:
                _put(content, place, value)
        return content


_templates: dict[int, Template] = {}  # by the count of their lines


def read_frozen(path: Path, read: Callable[[Path], Any]) -> Any:
    """The content of a YAML file, which shares its parts with that of another one.

    ``read`` reads a file that is not like another one, and raises what there is to say of it.
    """
    try:
        with open_own(path, "rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError):
        return read(path)
    lines = text.split("\n")
    template = _templates.get(len(lines))
    content = template.read(lines) if template else None
    if content is not None:
        return content
    content = read(path)
    # Other signs that end a line would be counted by YAML.
    has_plain_lines = len(text.splitlines()) == len(lines) - 1
    if isinstance(content, dict) and has_plain_lines and len(text) <= MAX_BYTES:
        if len(_templates) >= MAX_TEMPLATES:
            _templates.clear()
        _templates[len(lines)] = Template(lines, content, _find_slots(lines, text))
        return dict(content)
    return content


def _find_slots(lines: list[str], text: str) -> dict[int, Slots]:
    """The places of the plain numbers of a text that stand at the ends of lines."""
    slots: dict[int, Slots] = {}
    for place, node in _scalar_nodes(yaml.compose(text, LOADER)):
        line = node.start_mark.line
        column = node.start_mark.column
        if not node.style and _to_number(lines[line][column:]) is not None:
            slots.setdefault(line, Slots(column)).places.append(place)
    return slots


def _scalar_nodes(node: yaml.Node, place: Place = ()) -> Iterator[tuple[Place, yaml.ScalarNode]]:
    """Each value that is neither a mapping nor a list, where all keys above it are texts."""
    if isinstance(node, yaml.ScalarNode):
        yield place, node
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _scalar_nodes(item, (*place, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:str":
                yield from _scalar_nodes(value, (*place, key.value))


def _to_number(text: str) -> float | None:
    """The number that a text is; None for any other text."""
    if len(text) > MAX_DIGITS:
        return None
    if WHOLE.fullmatch(text):
        return int(text)
    if BROKEN.fullmatch(text):
        return float(text)
    return None


def _put(content: dict[str, Any], place: Place, value: float) -> None:
    """Put a number at a place of a content, whose parts on the way are copied."""
    *outer_names, last_name = place
    node: Any = content
    for name in outer_names:
        node[name] = node[name].copy()
        node = node[name]
    node[last_name] = value
