"""Ranges of numbers: what a type cannot say of a key, such as that it is at least 1.

A key of ours carries its range in its annotation, as in ``num_processes: Processes = 1``, and
``schema.read`` finds it in the source without importing it. Ranges of what libraries take are in
``schema.library_ranges``.
"""

import ast
import builtins
import math
from dataclasses import dataclass
from typing import Annotated

from runner.schema.source import Definition, Module, last_name, resolve_expression


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # without ``low`` itself
    below: bool = False  # without ``high`` itself
    special: float | None = None  # one more value with a meaning of its own, as -1 for "no limit"

    def __contains__(self, value: float) -> bool:
        is_high_enough = value > self.low if self.above else value >= self.low
        is_low_enough = value < self.high if self.below else value <= self.high
        return value == self.special or (is_high_enough and is_low_enough)

    def __str__(self) -> str:
        ends = []
        if not math.isinf(self.low):
            word = "above" if self.above else "at least"
            ends.append(f"{word} {self.low}")
        if not math.isinf(self.high):
            word = "below" if self.below else "at most"
            ends.append(f"{word} {self.high}")
        text = " and ".join(ends)
        if self.special is not None:
            text += f", or {self.special}"
        return text


POSITIVE = Range(low=0, above=True)
STEP_SIZE = Range(low=0, high=100, above=True)
NOT_NEGATIVE = Range(low=0)
COUNT = Range(low=1)
PROCESSES = Range(low=1, high=1024)  # on one machine
WORKERS = Range(low=0, high=1024)  # each is a process
SECONDS = Range(low=0, high=65535)  # what Slurm takes
FRACTION = Range(low=0, high=1)
RATE = Range(low=0, high=1, below=True)
SHARE = Range(low=0, high=1, above=True)
SEED = Range(low=0, high=4294967295)
PORT = Range(low=0, high=65535)
TOP_K = Range(low=0, special=-1)
STEPS = Range(low=1, special=-1)
TWO = Range(low=2)
RANK = Range(low=1, high=16384)  # no matrix of a published model has a higher rank
MORE_THAN_ONE = Range(low=1, above=True)
NEGATIVE = Range(high=0, below=True)
UNDER_A_HALF = Range(low=0, high=0.5, below=True)  # a share of wrong labels

Positive = Annotated[float, POSITIVE]
StepSize = Annotated[float, STEP_SIZE]
NotNegative = Annotated[float, NOT_NEGATIVE]
Natural = Annotated[int, NOT_NEGATIVE]
Count = Annotated[int, COUNT]
Processes = Annotated[int, PROCESSES]
Seconds = Annotated[int, SECONDS]
Fraction = Annotated[float, FRACTION]
Share = Annotated[float, SHARE]
Port = Annotated[int, PORT]
Seed = Annotated[int, SEED]
MoreThanOne = Annotated[float, MORE_THAN_ONE]


def read_range(annotation: ast.expr | None, module: Module | None) -> Range | None:
    """The range that an annotation gives a number, also inside a list or beside None.

    None where it gives none. ``module`` is where the annotation stands, in which its names are
    looked up; without one only what the annotation itself spells out is read.
    """
    match annotation:
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return read_range(left, module) or read_range(right, module)
        case ast.Subscript(slice=ast.Tuple(elts=[kind, *metadata])):
            if last_name(annotation) != "Annotated":
                return read_range(kind, module)
            for item in metadata:
                limits = _evaluate(item, module)
                if limits:
                    return limits
        case ast.Subscript(slice=kind):
            return read_range(kind, module)
        case ast.Name(id=name) if hasattr(builtins, name):
            return None  # following it through a module that imports much would take long
        case ast.Name() | ast.Attribute():
            alias = resolve_expression(annotation, module) if module else None
            if isinstance(alias, Definition) and isinstance(alias.node, ast.Subscript):
                return read_range(alias.node, alias.module)
    return None


def _evaluate(expression: ast.expr, module: Module | None) -> Range | None:
    """The range that is the value of an expression: a name of one, or ``Range(low=1)``."""
    if isinstance(expression, ast.Name) and module:
        constant = resolve_expression(expression, module)
        if isinstance(constant, Definition) and isinstance(constant.node, ast.Call):
            return _evaluate(constant.node, constant.module)
    if isinstance(expression, ast.Call) and last_name(expression) == "Range":
        options = {}
        for word in expression.keywords:
            options[str(word.arg)] = ast.literal_eval(word.value)
        return Range(**options)
    return None
