"""The texts that a class knows for an argument whose annotation only says that it is a text.

They are those that its source compares the argument with: ``if self.loss_type == "sigmoid"``.
"""

import ast
import functools
from collections.abc import Iterator

from runner.schema.source import (
    Definition,
    Module,
    bases,
    find_definition,
    last_name,
    parse_module,
    without_bodies,
)


def choices_compared(target: str, name: str, least: int = 2) -> tuple[str, ...]:
    """The texts that a class compares ``name`` with, or else those of its nearest base.

    Texts that it refuses (``if x == "old": raise``) are left out. Fewer than ``least`` are no
    choice: then the result is empty.
    """
    definition = find_definition(target)
    package = target.partition(".")[0]
    while isinstance(definition, Definition) and definition.home.split(".")[0] == package:
        module = definition.module
        texts: tuple[str, ...] = ()
        if name in module.text:
            texts = _texts_compared(module, module.changed, name)
        if len(texts) >= least:
            return texts
        definition = next(bases(definition), None)
    return ()


@functools.lru_cache(maxsize=256)
def _texts_compared(module: Module, changed: int, name: str) -> tuple[str, ...]:
    """The texts that a module compares a name with, in the order of its source.

    What holds for an item of a loop (``for loss_type in loss_types``) holds for the singular of
    what the loop goes over, whatever the item is called.
    """
    tree = parse_module(without_bodies(module.text, name)) or parse_module(module.text)
    nodes = list(ast.walk(tree)) if tree else []
    refused = set()  # the ids of tests such as ``if x == "no longer supported": raise``
    singulars = {}  # by the name of a loop's items
    for node in nodes:
        match node:
            case ast.If(test=ast.Compare(ops=[ast.Eq() | ast.In()]) as test, body=[ast.Raise()]):
                refused.add(id(test))
            case ast.For(target=ast.Name(id=item)) | ast.comprehension(target=ast.Name(id=item)):
                singulars[item] = last_name(node.iter).removesuffix("s")
    texts: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, ast.Compare) and id(node) not in refused:
            left = last_name(node.left)
            if name in (left, singulars.get(left)):
                texts |= dict.fromkeys(_texts_in(node.comparators))
    return tuple(texts)


def _texts_in(expressions: list[ast.expr]) -> Iterator[str]:
    """The constant texts among some expressions, and inside of those that are lists."""
    for expression in expressions:
        match expression:
            case ast.Constant(value=str() as text):
                yield text
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                for item in items:
                    if isinstance(item, ast.Constant) and isinstance(item.value, str):
                        yield item.value
