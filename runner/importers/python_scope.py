"""The names that a script has set, and what had to be taken on trust about them.

A condition or a loop is a doubt only where a call of the training depends on a name that it sets.
"""

from ast import AST, Name, walk
from collections.abc import Iterator
from dataclasses import dataclass, field

from runner.importers.foreign_config import Remark
from runner.importers.python_values import (
    CallValue,
    Code,
    Function,
    Value,
    is_constant,
    shown_value,
)

CONDITION_REMARK = "a condition: what it sets is taken as if it held"
LOOP_REMARK = "a loop, whose first turn this is"

Scope = dict[str, Value]


@dataclass(frozen=True)
class Doubt:
    """A condition or a loop whose course nobody knows, and the names that depend on it."""

    text: str
    remark: Remark
    names: frozenset[str]


@dataclass
class Script:
    """The calls that a script makes, and what had to be taken on trust."""

    calls: list[CallValue] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    # The functions of the script, those that nobody has called among them.
    functions: dict[str, Function] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    # The defaults of the flags that it takes, as argparse names them.
    flags: Scope = field(default_factory=dict)


# --- Branches -------------------------------------------------------------------------------------


def differing_names(first: Scope, second: Scope) -> set[str]:
    """The names that have another value after one branch than after the other."""
    names = set()
    for name in first.keys() | second.keys():
        value = first.get(name)
        other = second.get(name)
        is_same = value is other
        if is_constant(value):
            is_same = is_constant(other) and value == other
        if not is_same:
            names.add(name)
    return names


def merge_branches(before: Scope, first: Scope, second: Scope, name: str, line: int) -> Value:
    """The value of a name after two branches, of which nobody knows which one is taken.

    That of the branch that sets it; of two constants neither.
    """
    value = first.get(name)
    other = second.get(name)
    earlier = before.get(name)
    if value is earlier:
        return other
    is_set_twice = name in second and other is not earlier
    if is_set_twice and is_constant(value):
        text = f"{shown_value(value)} or {shown_value(other)}"
        return Code(text, line)
    return value


def names_of(node: AST) -> Iterator[str]:
    """The names in an expression."""
    for part in walk(node):
        if isinstance(part, Name):
            yield part.id


def field_default(value: Value) -> Value:
    """The default of a field of a dataclass."""
    if isinstance(value, CallValue) and value.last in ("field", "Field"):
        default = value.keywords.get("default", value.positional[0] if value.positional else None)
        if default is not None or "default" in value.keywords:
            return default
        return Code(value.text, value.line)
    return value
