"""The metadata of a run: the types of what is read again from its files."""

from dataclasses import dataclass
from typing import TypeGuard

from runner.config.groups import GROUPS
from runner.io.files import JsonObject


@dataclass(frozen=True)
class ListOf:
    """The type of a list whose items have a type."""

    item: "Shape"


@dataclass(frozen=True)
class MappingOf:
    """The type of a mapping whose values have a type."""

    value: "Shape"


Shape = type | tuple[type, ...] | ListOf | MappingOf

# The types of the keys that are read again, in whichever file they are; any of them may be null.
SHAPES: dict[str, Shape] = {
    "step": int,
    "max_steps": int,
    "starts": int,
    "state": str,
    "cause": str,
    "started": str,
    "updated": str,
    "python": str,
    "key": str,
    "command": ListOf(str),
    "notes": ListOf(str),
    "versions": MappingOf(str),
    "uses": MappingOf(str),
    "files": MappingOf(str),
    "choices": MappingOf(object),
    "hardware": MappingOf(object),
    "git": MappingOf(object),
    "queued": MappingOf(object),
    "error": MappingOf(object),
    "before": MappingOf(object),
    "after": MappingOf(object),
    **dict.fromkeys(GROUPS, MappingOf(object)),
    "disk": MappingOf(int),
    "inputs": MappingOf(MappingOf(ListOf((int, str)))),
    "adjustments": ListOf((dict, str)),
    "data": MappingOf(MappingOf(object)),
}


def is_shaped(content: object) -> TypeGuard[JsonObject]:
    """True for the content of a file of a run in which each key that is read again has its type."""
    if not isinstance(content, dict):
        return False
    for key, shape in SHAPES.items():
        if key in content and not _fits(content[key], shape):
            return False
    return True


def _fits(value: object, shape: Shape) -> bool:
    """True for a value of this shape, and for None, which any key may have."""
    if value is None:
        return True
    if isinstance(shape, ListOf):
        if not isinstance(value, list):
            return False
        return all(_fits(item, shape.item) for item in value)
    if isinstance(shape, MappingOf):
        if not isinstance(value, dict):
            return False
        # Of a part of the configuration the arguments are a mapping, too.
        has_arguments = isinstance(value.get("args") or {}, dict)
        return has_arguments and all(_fits(item, shape.value) for item in value.values())
    return isinstance(value, shape)
