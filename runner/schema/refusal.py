"""Refusals of a constructor by its arguments alone, read from its source: ``if self.beta > 1: raise ValueError(...)``.

Statements are followed with the values that are known. A test that asks for anything else is not decided: what stands
below it is left out, and what it may assign is unknown. A user's own code may do more than a reader can follow.
"""

import ast
import functools
import operator
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from runner.schema.read import UNKNOWN
from runner.schema.source import LIBRARY_PACKAGES, Definition, Function, bases, find_definition, last_name, member

OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda one, all: one in all,
    ast.NotIn: lambda one, all: one not in all, ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Not: operator.not_,
    ast.USub: operator.neg,
}  # fmt: skip
KINDS: dict[str, type] = {"str": str, "list": list, "dict": dict, "int": int, "float": float, "bool": bool}
CALLED: dict[str, Callable[..., Any]] = {"len": len, "set": set, "sorted": sorted, "min": min, "max": max, "abs": abs}
CALLED |= KINDS


@dataclass(frozen=True)
class Something:
    """An argument of which is known that it is there, and of which classes it is."""

    classes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Refusal:
    """An error that a constructor raises: what it says, and the names that its test asks for."""

    text: str
    names: tuple[str, ...]


def find_refusals(target: str, method: str, known: dict[str, Any]) -> list[Refusal]:
    """The errors that a method raises with these values of dotted names; ``known`` is then as it leaves them.

    Without a ``method`` the target is a function.
    """
    owner = find_definition(target)
    if not isinstance(owner, Definition):
        return []
    return list(_follow_method(member(method, owner) if method else owner, known))


def _follow_method(found: Definition | None, known: dict[str, Any]) -> Iterator[Refusal]:
    if found and isinstance(found.node, Function) and found.module.name.partition(".")[0] in LIBRARY_PACKAGES:
        yield from _follow(found.node.body, known, (), found)
    elif found:
        known.update(dict.fromkeys(known, UNKNOWN))


def _follow(
    body: list[ast.stmt], known: dict[str, Any], names: tuple[str, ...], method: Definition
) -> Generator[Refusal, None, bool]:
    """The errors of a block that changes ``known``, then True where it may return; ``names`` were asked for."""
    for node in body:
        match node:
            case ast.Raise(exc=ast.Call(func=kind, args=[text, *_])) if last_name(kind).endswith("Error"):
                yield Refusal(str(_value(text, known)), names)
                return False  # what it raises after this one is found, too
            case ast.If(test=test) if (holds := _holds(test, known)) is not UNKNOWN:
                asked = (*names, *_asked(test, known))
                if (yield from _follow(node.body if holds else node.orelse, known, asked, method)):
                    return True
            case ast.Assign(targets=[target], value=ast.expr() as value) if name := _dotted(target):
                origins, found = _asked(value, known), _value(value, known)
                _forget(node, known)
                known |= {f"{name} from": origins, name: found}
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name))):
                definer = find_definition(method.home.rpartition(".")[0])  # and not the class through which it came
                owners = bases(definer) if isinstance(definer, Definition) else ()
                above = filter(None, (member(name, base) for base in owners if base))
                yield from _follow_method(next(above, None), known)
            case _:
                _forget(node, known)
                if any(isinstance(part, ast.Return) for part in ast.walk(node)):
                    return True
    return False


def _asked(node: ast.expr, known: Mapping[str, Any]) -> tuple[str, ...]:
    """The known names of which an expression is made, those that others come from in their place."""
    found = [name for name in _names(node, ast.Load) if known.get(name, UNKNOWN) is not UNKNOWN]
    return tuple(dict.fromkeys(origin for name in found for origin in known.get(f"{name} from", (name,))))


@functools.lru_cache(maxsize=8192)  # a node is that of a file as it was, which is kept as long
def _names(node: ast.AST, context: type) -> tuple[str, ...]:
    dotted = (_dotted(part) for part in ast.walk(node) if isinstance(getattr(part, "ctx", 0), context))
    return tuple(filter(None, dotted))


def _holds(node: ast.expr, known: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(op=op, values=parts):
            found, ends = [_holds(part, known) for part in parts], isinstance(op, ast.Or)
            return ends if ends in found else UNKNOWN if UNKNOWN in found else not ends
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return UNKNOWN if (found := _holds(inner, known)) is UNKNOWN else not found
    return UNKNOWN if (value := _value(node, known)) is UNKNOWN else bool(value)


def _forget(node: ast.stmt, known: dict[str, Any]) -> None:
    changed = _names(node, ast.Store)
    known |= {name: UNKNOWN for name in known if name in changed or name.partition(".")[0] in changed}


def _dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
    return ""


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    def apply(function: Callable[..., Any] | None, *parts: ast.expr) -> Any:
        values = [_value(part, known) for part in parts]
        if function is None or any(value is UNKNOWN for value in values):
            return UNKNOWN
        with suppress(TypeError, ValueError, ArithmeticError, AttributeError, LookupError):
            return function(*values)
        return UNKNOWN

    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return known.get(_dotted(node), UNKNOWN)
        case ast.BoolOp(op=op, values=[first, *others]):
            value = _value(first, known)
            is_last = not others or value is UNKNOWN or bool(value) is isinstance(op, ast.Or)
            return value if is_last else _value(ast.BoolOp(op, others), known)
        case ast.IfExp(test=test, body=one, orelse=other):
            return UNKNOWN if (holds := _holds(test, known)) is UNKNOWN else _value(one if holds else other, known)
        case ast.JoinedStr(values=parts):
            texts = [_value(part.value if isinstance(part, ast.FormattedValue) else part, known) for part in parts]
            return "".join("..." if text is UNKNOWN else str(text) for text in texts)
        case ast.Call(func=ast.Name(id="isinstance"), args=[what, kind]):
            kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
            return apply(lambda value: any([_is_a(value, last_name(each)) for each in kinds]), what)
        case ast.Call(func=ast.Name(id="any"), args=[ast.GeneratorExp(elt=test, generators=[each])]) if not each.ifs:
            items, name = apply(list, each.iter), _dotted(each.target)
            found = UNKNOWN if items is UNKNOWN else [_holds(test, {**known, name: item}) for item in items]
            return found if found is UNKNOWN else True if True in found else UNKNOWN if UNKNOWN in found else False
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=words):
            if library := re.fullmatch(r"is_(\w+)_available", name):  # which may be called otherwise, or be no package
                return True if find_spec(library[1]) else UNKNOWN
            return apply(known.get(f"{name}()", None if words else CALLED.get(name)), *parts)
        case ast.Compare(left=left, ops=ops, comparators=others):
            pairs = zip(ops, [left, *others], others, strict=False)
            found = [apply(OPERATORS.get(type(op)), one, other) for op, one, other in pairs]
            return False if False in found else UNKNOWN if UNKNOWN in found else True
        case ast.UnaryOp(op=op, operand=inner):
            return apply(OPERATORS.get(type(op)), inner)
        case ast.BinOp(left=left, op=op, right=right):
            return apply(OPERATORS.get(type(op)), left, right)
        case ast.Subscript(value=ast.Name() as owner, slice=index):  # such as betas[0]
            return apply(operator.getitem, owner, index)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return apply(lambda *values: {ast.List: list, ast.Set: set}.get(type(node), tuple)(values), *parts)
    return UNKNOWN


def _is_a(value: Any, kind: str) -> bool:
    """True for a value of a class of this name; ValueError where nobody can tell."""
    if isinstance(value, Something) and (value.classes or kind not in ("list", "dict")):
        return kind in value.classes
    if isinstance(value, Something) or kind not in KINDS:
        raise ValueError(kind)
    return isinstance(value, KINDS[kind])
