"""Values of expressions in source, worked out from the values of a few names without running it.

An expression that needs anything else is UNKNOWN. Only the operators, functions and tests that
constructors of TRL, transformers and peft check their arguments with are understood.
"""

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

from runner.schema.read import UNKNOWN
from runner.schema.source import last_name

Function = Callable[..., object]
OPERATORS: dict[type[ast.AST], Function] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}
CLASSES: dict[str, type] = {
    "str": str,
    "list": list,
    "dict": dict,
    "int": int,
    "float": float,
    "bool": bool,
}
FUNCTIONS: dict[str, Function] = {
    "len": len,
    "set": set,
    "sorted": sorted,
    "min": min,
    "max": max,
    "abs": abs,
    **CLASSES,
}
# transformers' test for a library, such as is_vllm_available()
LIBRARY_TEST = re.compile(r"is_(\w+)_available")


@dataclass(frozen=True)
class Something:
    """An argument that is not None, and of which no more is known than the names of its classes."""

    classes: frozenset[str] = frozenset()


def dotted_name(node: ast.AST) -> str:
    """``self.beta`` for that expression, ``beta`` for a plain name; empty for all others."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
    return ""


# A node is part of a parsed file, which is cached as well.
@functools.lru_cache(maxsize=8192)
def names_in(node: ast.AST, context: type[ast.expr_context]) -> tuple[str, ...]:
    """The dotted names that a piece of code reads (``ast.Load``) or assigns (``ast.Store``)."""
    names = []
    for part in ast.walk(node):
        if isinstance(getattr(part, "ctx", None), context):
            names.append(dotted_name(part))
    return tuple(filter(None, names))


class Evaluator(ast.NodeVisitor):
    """``visit`` returns the value of an expression, or UNKNOWN.

    ``values`` has the values of dotted names. A name with brackets, such as ``is_peft_model()``,
    has the function to call in place of that of the source.
    """

    def __init__(self, values: Mapping[str, object]):
        self.values = values

    def truth(self, node: ast.expr) -> object:
        """True or False for a test that is decided, else UNKNOWN.

        A part that is unknown does not matter where another one decides.
        """
        if isinstance(node, ast.BoolOp):
            truths = [self.truth(part) for part in node.values]
            return _combined(truths, decisive=isinstance(node.op, ast.Or))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            truth = self.truth(node.operand)
            return UNKNOWN if truth is UNKNOWN else not truth
        value = self.visit(node)
        return UNKNOWN if value is UNKNOWN else bool(value)

    def apply(self, function: object, *parts: ast.expr) -> object:
        """The result of a function of the values of some expressions."""
        arguments = [self.visit(part) for part in parts]
        if not callable(function) or UNKNOWN in arguments:
            return UNKNOWN
        with suppress(TypeError, ValueError, ArithmeticError, AttributeError, LookupError):
            return function(*arguments)
        return UNKNOWN

    def generic_visit(self, node: ast.AST) -> object:
        return UNKNOWN

    def visit_Constant(self, node: ast.Constant) -> object:
        return node.value

    def visit_Name(self, node: ast.Name) -> object:
        return self.values.get(node.id, UNKNOWN)

    def visit_Attribute(self, node: ast.Attribute) -> object:
        return self.values.get(dotted_name(node), UNKNOWN)

    def visit_BoolOp(self, node: ast.BoolOp) -> object:
        """The first operand that decides, else the last, as in Python."""
        decisive = isinstance(node.op, ast.Or)
        value = UNKNOWN
        for operand in node.values:
            value = self.visit(operand)
            if value is UNKNOWN or bool(value) is decisive:
                break
        return value

    def visit_IfExp(self, node: ast.IfExp) -> object:
        truth = self.truth(node.test)
        if truth is UNKNOWN:
            return UNKNOWN
        return self.visit(node.body if truth else node.orelse)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> str:
        """The text of an f-string, with dots for parts that are not known."""
        texts = []
        for part in node.values:
            value = self.visit(part.value if isinstance(part, ast.FormattedValue) else part)
            texts.append("..." if value is UNKNOWN else str(value))
        return "".join(texts)

    def visit_Call(self, node: ast.Call) -> object:
        """The value of a call of a function that is known here; of any other UNKNOWN."""
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[value, classes]):
                return self.apply(functools.partial(_is_instance, classes=classes), value)
            case ast.Call(
                func=ast.Name(id="any"),
                args=[ast.GeneratorExp(elt=test, generators=[ast.comprehension(ifs=[]) as loop])],
            ):
                return self._any(test, loop)
            case ast.Call(func=ast.Name(id=name)):
                library_test = LIBRARY_TEST.fullmatch(name)
                if library_test:
                    # What is no package may be one of another name, or a feature of the machine.
                    return True if find_spec(library_test[1]) else UNKNOWN
                usual = None if node.keywords else FUNCTIONS.get(name)
                return self.apply(self.values.get(f"{name}()", usual), *node.args)
        return UNKNOWN

    def _any(self, test: ast.expr, loop: ast.comprehension) -> object:
        """The value of ``any(test for name in items)``."""
        items = self.apply(list, loop.iter)
        if not isinstance(items, list):
            return UNKNOWN
        name = dotted_name(loop.target)
        truths = []
        for item in items:
            evaluator = Evaluator({**self.values, name: item})
            truths.append(evaluator.truth(test))
        return _combined(truths, decisive=True)

    def visit_Compare(self, node: ast.Compare) -> object:
        """The truth of a chain such as ``a < b < c``, which is that of ``a < b`` and ``b < c``."""
        truths = []
        left = node.left
        for comparison, right in zip(node.ops, node.comparators, strict=True):
            compare = OPERATORS.get(type(comparison))
            truths.append(self.apply(compare, left, right))
            left = right
        return _combined(truths, decisive=False)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> object:
        return self.apply(OPERATORS.get(type(node.op)), node.operand)

    def visit_BinOp(self, node: ast.BinOp) -> object:
        return self.apply(OPERATORS.get(type(node.op)), node.left, node.right)

    def visit_Subscript(self, node: ast.Subscript) -> object:
        """An item of a name, such as ``betas[0]``."""
        if not isinstance(node.value, ast.Name):
            return UNKNOWN
        return self.apply(operator.getitem, node.value, node.slice)

    def visit_List(self, node: ast.List) -> object:
        return self.apply(lambda *items: list(items), *node.elts)

    def visit_Tuple(self, node: ast.Tuple) -> object:
        return self.apply(lambda *items: items, *node.elts)

    def visit_Set(self, node: ast.Set) -> object:
        return self.apply(lambda *items: set(items), *node.elts)


def _combined(truths: list[object], decisive: bool) -> object:
    """The truth of tests joined by ``or`` (True decides) or by ``and`` (False decides)."""
    if decisive in truths:
        return decisive
    return UNKNOWN if UNKNOWN in truths else not decisive


def _is_instance(value: object, classes: ast.expr) -> bool:
    """``isinstance`` with the classes as they stand in source; ValueError where nobody can tell."""
    expressions = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    # All are asked, so that one that nobody can tell is an error though another one fits.
    return any([_is_of_class(value, last_name(expression)) for expression in expressions])


def _is_of_class(value: object, name: str) -> bool:
    """True for an object of the class of this name; ValueError where nobody can tell."""
    if isinstance(value, Something):
        if not value.classes and name in ("list", "dict"):
            raise ValueError(name)
        return name in value.classes
    if name not in CLASSES:
        raise ValueError(name)
    return isinstance(value, CLASSES[name])
