"""The values that expressions of a Python script have, as far as its text alone says them.

Constants become themselves. A call of somebody else's function stays a ``CallValue``, with its
arguments as values. Everything else is ``Code``: nothing is run, and nothing is guessed.
"""

import operator as operators
from ast import (
    AST,
    Add,
    AsyncFunctionDef,
    Div,
    Eq,
    FloorDiv,
    FunctionDef,
    Gt,
    GtE,
    Is,
    IsNot,
    Lambda,
    Lt,
    LtE,
    Mod,
    Mult,
    NotEq,
    Pow,
    Sub,
    unparse,
)
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

MAX_LETTERS = 100_000  # of a text or a list that is put together
MAX_NUMBER = 10**15
MAX_EXPONENT = 16
# What the text of a file can be where it is shown.
MAX_SHOWN = 70

Value = object


@dataclass(frozen=True)
class Code:
    """An expression whose value only a run of the script would tell."""

    text: str
    line: int


@dataclass(frozen=True)
class NameValue:
    """A dotted name of a library, such as ``torch.bfloat16``."""

    path: str
    line: int = 0

    @property
    def text(self) -> str:
        """The name as it is shown."""
        return self.path

    @property
    def last(self) -> str:
        """The last word of the name."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class CallValue:
    """A call of a function, or of a method of its ``receiver``.

    ``[]`` is the name of what a subscript takes, ``for`` of what a comprehension makes of each.
    """

    name: str
    text: str
    line: int
    receiver: Value = None
    positional: tuple[Value, ...] = ()
    keywords: Mapping[str, Value] = field(default_factory=dict)
    names: frozenset[str] = frozenset()  # that its source holds

    @property
    def last(self) -> str:
        """The last word of the name."""
        return self.name.rpartition(".")[2]

    def argument(self, name: str, index: int | None = None) -> Value:
        """The argument of a name, or at an index; None where it is left out."""
        if name in self.keywords:
            return self.keywords[name]
        if index is not None and index < len(self.positional):
            return self.positional[index]
        return None


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the script itself."""

    node: FunctionDef | AsyncFunctionDef | Lambda
    text: str
    line: int


@dataclass(frozen=True, eq=False)
class ClassValue:
    """A class of the script itself, or an object of it: its fields, and the class below it."""

    name: str
    fields: Mapping[str, Value]
    base: str = ""


def is_constant(value: Value) -> bool:
    """True for a value that the text says, also for lists and mappings of such values."""
    if isinstance(value, list | tuple):
        return all(is_constant(entry) for entry in value)
    if isinstance(value, dict):
        return all(is_constant(entry) for entry in value.values())
    return value is None or isinstance(value, str | int | float | bool)


def shown(node: AST) -> str:
    """The source of an expression on one line, shortened."""
    text = " ".join(unparse(node).split())
    if len(text) > MAX_SHOWN:
        text = f"{text[: MAX_SHOWN - 3]}..."
    return text


def as_code(node: AST) -> Code:
    """An expression that stays code."""
    text = shown(node)
    line = getattr(node, "lineno", 0)
    return Code(text, line)


def shown_value(value: Value) -> str:
    """A value as it is shown: the source of what is no constant."""
    if isinstance(value, Code | NameValue | CallValue | Function):
        return value.text
    if isinstance(value, list | tuple):
        return ", ".join(shown_value(entry) for entry in value)
    return str(value)


# --- Arithmetic -----------------------------------------------------------------------------------


OPERATIONS: Mapping[type[AST], Callable[[Any, Any], Any]] = {
    Add: operators.add,
    Sub: operators.sub,
    Mult: operators.mul,
    Div: operators.truediv,
    FloorDiv: operators.floordiv,
    Mod: operators.mod,
    Pow: operators.pow,
    Eq: operators.eq,
    NotEq: operators.ne,
    Gt: operators.gt,
    GtE: operators.ge,
    Lt: operators.lt,
    LtE: operators.le,
    Is: operators.is_,
    IsNot: operators.is_not,
}
# Operations on two texts or two lists.
OF_ALL_KINDS = (Add, Eq, NotEq, Is, IsNot)


def calculate(sign: AST, left: Value, right: Value) -> Value:
    """The result of an operation on two constants; ValueError for one that is not carried out.

    Numbers that are too large are not calculated with, and texts and lists are only joined.
    """
    operation = OPERATIONS.get(type(sign))
    if operation is None:
        raise ValueError("no such operation")
    for value in (left, right):
        is_small = isinstance(value, int | float) and abs(value) <= MAX_NUMBER
        if not is_small and not isinstance(sign, OF_ALL_KINDS):
            raise ValueError("no number, or a large one")
    is_large = isinstance(right, int | float) and abs(right) > MAX_EXPONENT
    if isinstance(sign, Pow) and is_large:
        raise ValueError("a large power")
    try:
        result: Value = operation(left, right)
    except (ArithmeticError, TypeError) as error:
        raise ValueError(str(error)) from None
    if isinstance(result, str | list) and len(result) > MAX_LETTERS:
        raise ValueError("too long")
    return result


# --- Functions whose value the text says ----------------------------------------------------------


def default_of_environment(arguments: tuple[Value, ...]) -> Value:
    """The value of a variable of the environment that is not set."""
    return arguments[1] if len(arguments) > 1 else None


def _convert(kind: type) -> Callable[[tuple[Value, ...]], Value]:
    """A function that converts one constant, as ``int`` does."""

    def convert(arguments: tuple[Value, ...]) -> Value:
        [value] = arguments
        if not isinstance(value, str | int | float):
            raise ValueError("no constant")
        return kind(value)

    return convert


def _all_numbers(arguments: tuple[Value, ...]) -> list[int | float]:
    """Arguments that are numbers, all of them; ValueError for others."""
    numbers = []
    for value in arguments:
        if not isinstance(value, int | float):
            raise ValueError("no number")
        numbers.append(value)
    return numbers


def smallest_number(arguments: tuple[Value, ...]) -> Value:
    """The smallest of several numbers."""
    return min(_all_numbers(arguments))


def largest_number(arguments: tuple[Value, ...]) -> Value:
    """The largest of several numbers."""
    return max(_all_numbers(arguments))


def join_path(arguments: tuple[Value, ...]) -> Value:
    """Parts of a path, joined."""
    return str(PurePosixPath(*map(str, arguments)))


# Functions by their dotted names; each takes the arguments, all of them constants. A variable of
# the environment counts as not set: whoever imports a file need not be the one who ran it, and what
# this machine has set says nothing about the script.
KNOWN_FUNCTIONS: Mapping[str, Callable[[tuple[Value, ...]], Value]] = {
    "os.environ.get": default_of_environment,
    "os.getenv": default_of_environment,
    "environ.get": default_of_environment,
    "getenv": default_of_environment,
    "int": _convert(int),
    "float": _convert(float),
    "str": _convert(str),
    "min": smallest_number,
    "max": largest_number,
    "os.path.join": join_path,
    "pathlib.Path": join_path,
    "Path": join_path,
}
