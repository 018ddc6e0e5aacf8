"""Errors that a constructor raises for its arguments alone: ``if self.beta > 1: raise ...``.

They are found in its source, by following its statements with the values that are known. What
stands below a test that cannot be decided is left out, and what it may assign is unknown from there
on. Only constructors of libraries are read: a user's own code may do more than a reader can follow.
"""

import ast
import functools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from runner.schema.partial_evaluation import Evaluator, Something, dotted_name, names_in
from runner.schema.read import UNKNOWN
from runner.schema.source import (
    LIBRARY_PACKAGES,
    Definition,
    Function,
    bases,
    find_definition,
    last_name,
    member,
)

__all__ = ["Refusal", "Something", "find_refusals"]


@dataclass(frozen=True)
class Refusal:
    """An error that a constructor raises."""

    text: str
    names: tuple[str, ...]  # those of known values on which the tests above it depend


@dataclass(frozen=True)
class Scope:
    """The names that are known at one place of a constructor."""

    values: dict[str, object]
    # The names from which the value of a name was computed; a name without an entry is an argument.
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @functools.cached_property
    def owners(self) -> set[str]:
        """The names whose attributes are known."""
        return {name.partition(".")[0] for name in self.values if "." in name}

    @property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.values)

    def origins_of(self, expression: ast.expr) -> tuple[str, ...]:
        """The arguments on which an expression depends, as far as they are known."""
        arguments: dict[str, None] = {}
        for name in names_in(expression, ast.Load):
            if self.values.get(name, UNKNOWN) is not UNKNOWN:
                arguments |= dict.fromkeys(self.origins.get(name, (name,)))
        return tuple(arguments)

    def forget(self, statement: ast.stmt) -> None:
        """Make unknown whatever a statement may assign, with the attributes of it."""
        for assigned in names_in(statement, ast.Store):
            if assigned in self.values:
                self.values[assigned] = UNKNOWN
            if assigned in self.owners:
                for name in self.values:
                    if name.startswith(f"{assigned}."):
                        self.values[name] = UNKNOWN

    def assign(self, statement: ast.Assign, name: str) -> None:
        """Follow an assignment to one name."""
        origins = self.origins_of(statement.value)
        value = self.evaluator.visit(statement.value)
        self.forget(statement)
        owner, dot, _ = name.partition(".")
        if dot:
            self.owners.add(owner)
        self.values[name] = value
        self.origins[name] = origins


def find_refusals(target: str, method: str, known: dict[str, object]) -> list[Refusal]:
    """The errors that a method of a class raises when dotted names have these values.

    Without a ``method`` the target is a function. ``known`` is changed: it ends as the method
    leaves its names.
    """
    owner = find_definition(target)
    if not isinstance(owner, Definition):
        return []
    definition = member(method, owner) if method else owner
    return list(_follow_function(definition, Scope(known)))


def _follow_function(function: Definition | None, scope: Scope) -> Iterator[Refusal]:
    """Yield the errors of a method, if it is one of the libraries whose source we read.

    The code of a user's own class may do anything to the values, so that afterwards none is known.
    """
    if function is None:
        return
    package = function.module.name.partition(".")[0]
    if isinstance(function.node, Function) and package in LIBRARY_PACKAGES:
        yield from _follow(function.node.body, scope, (), function)
    else:
        for name in scope.values:
            scope.values[name] = UNKNOWN


def _follow(
    body: list[ast.stmt], scope: Scope, names: tuple[str, ...], function: Definition
) -> Generator[Refusal, None, bool]:
    """Yield the errors of a block, whose tests above it depend on ``names``.

    Returns True where the function may have returned within the block.
    """
    for statement in body:
        match statement:
            case ast.Raise(exc=ast.Call(func=error, args=[message, *_])) if last_name(
                error
            ).endswith("Error"):
                text = scope.evaluator.visit(message)
                yield Refusal("..." if text is UNKNOWN else str(text), names)
                # The block ends here, but not the function: later errors are found, too.
                return False
            case ast.If(test=test) if (truth := scope.evaluator.truth(test)) is not UNKNOWN:
                branch = statement.body if truth else statement.orelse
                tested = (*names, *scope.origins_of(test))
                if (yield from _follow(branch, scope, tested, function)):
                    return True
            case ast.Assign(targets=[target]) if name := dotted_name(target):
                scope.assign(statement, name)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name)
                )
            ):
                yield from _follow_function(_inherited(function, name), scope)
            case _:
                scope.forget(statement)
                if _may_return(statement):
                    return True
    return False


# A statement is part of a parsed file, which is cached as well.
@functools.lru_cache(maxsize=8192)
def _may_return(statement: ast.stmt) -> bool:
    """True for a statement that has a ``return`` in it."""
    return any(isinstance(part, ast.Return) for part in ast.walk(statement))


def _inherited(function: Definition, name: str) -> Definition | None:
    """The method that ``super().name`` means in a method."""
    # The class that defines the method, which need not be the one through which it was reached.
    definer = find_definition(function.home.rpartition(".")[0])
    if not isinstance(definer, Definition):
        return None
    for base in bases(definer):
        method = member(name, base) if base else None
        if method:
            return method
    return None
