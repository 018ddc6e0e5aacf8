"""Annotations as small trees that accept YAML values and print in plain words; names in them are followed."""

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any

from runner.schema.source import Definition, Function, Module, last_name, resolve_expression
from runner.schema.text import read_tables, to_text

MAX_LETTERS = 68  # of a printed list of choices, so that a fault fits on a line


@dataclass(frozen=True)
class Type:
    """The values that a parameter accepts."""

    # Any, instance (of some class), none, bool, int, float, str, list, tuple, dict, record, choice, enum or union.
    kind: str
    parts: tuple["Type", ...] = ()  # the types inside: a dict has two, of keys and of values
    values: tuple[object, ...] = ()  # the constants of a choice, or the names of a record's parts

    def accepts(self, value: object) -> bool:
        """True for a value that YAML can hold and that fits; a node with a ``_target_`` fits everywhere."""
        if self.kind in ("any", "instance") or (isinstance(value, dict) and "_target_" in value):
            return True
        match self.kind:
            case "union":
                return any(part.accepts(value) for part in self.parts)
            case "choice" | "enum":
                alike = [known for known in self.values if type(value) is type(known)]
                # "pissa_niter_[number of iters]" is a pattern, not a value.
                starts = tuple(known.partition("[")[0] for known in alike if isinstance(known, str) and "[" in known)
                return value in alike or (isinstance(value, str) and value.startswith(starts))
            case "tuple" if self.parts and isinstance(value, list):
                return len(value) == len(self.parts) and all(map(Type.accepts, self.parts, value))
            case "list" | "tuple":
                return isinstance(value, list) and all(part.accepts(each) for part in self.parts for each in value)
            case "record":
                inner = dict(zip(self.values, self.parts, strict=True))
                return isinstance(value, dict) and all(key in inner and inner[key].accepts(value[key]) for key in value)
            case "dict":
                name, entry = self.parts or (ANY, ANY)
                return isinstance(value, dict) and all(name.accepts(k) and entry.accepts(v) for k, v in value.items())
        return isinstance(value, CLASSES[self.kind]) and (self.kind == "bool" or not isinstance(value, bool))

    def __str__(self) -> str:
        match self.kind:
            case "union":
                return " or ".join(dict.fromkeys(map(str, sorted(self.parts, key=lambda part: part.kind == "none"))))
            case "choice" | "enum":
                return f"one of {shortened(list(map(to_text, self.values)))}"
            case "list" | "tuple" if self.parts:
                count = f"{len(self.parts)} " if self.kind == "tuple" else ""
                part = self.parts[0]
                return f"a list of {count}{PLURALS.get(part.kind) or f'items, each {part}'}"
            case "record":
                return f"a mapping with {shortened([str(name) for name in self.values])}"
        return WORDS[self.kind]

    @property
    def alternatives(self) -> tuple["Type", ...]:
        """The parts of a union, or the type itself."""
        return self.parts if self.kind == "union" else (self,)

    @property
    def choices(self) -> tuple[object, ...]:
        """The constants that it accepts, where it is a choice or has one in it."""
        return tuple(value for part in self.alternatives for value in part.values)


_TABLES = read_tables(__file__)
WORDS: dict[str, str] = _TABLES["words"]
PLURALS: dict[str, str] = _TABLES["plurals"]
PLAIN = {name: Type(kind) for kind, names in _TABLES["plain"].items() for name in names}
CLASSES: dict[str, Any] = {"none": NoneType, "bool": bool, "int": int, "float": (int, float), "str": str}
ANY, NONE, TEXT = map(Type, ("any", "none", "str"))
INSTANCE = Type("instance")  # of some class: YAML writes one as a node, so beside plain types it adds nothing


def to_type(annotation: ast.expr | None, module: Module | None, depth: int = 0) -> Type:
    """The type that an annotation means where it is written; what cannot be read is ``any``."""
    if annotation is None or depth > 20:
        return ANY
    inner = functools.partial(to_type, module=module, depth=depth + 1)
    match annotation:
        case ast.Constant(value=None):
            return NONE
        case ast.Constant(value=str() as text):
            return inner(expression(text))
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return to_union(inner(left), inner(right))
        case ast.Subscript(value=head, slice=ast.Tuple(elts=items)):
            return _to_generic(last_name(head), items, inner)
        case ast.Subscript(value=head, slice=item):
            return _to_generic(last_name(head), [item], inner)
        case ast.Name() | ast.Attribute() if plain := PLAIN.get(last_name(annotation)):
            return plain
    # A name of one's own: an enum, a TypedDict, an alias, or just some class.
    found = resolve_expression(annotation, module) if module else None
    if not isinstance(found, Definition) or isinstance(found.node, ast.Call | Function):
        return ANY
    if not isinstance(found.node, ast.ClassDef):
        return to_type(found.node, found.module, depth + 1)
    if "TypedDict" in (names := {last_name(base) for base in found.node.bases}):
        entries = [node for node in found.node.body if isinstance(node, ast.AnnAssign)]
        parts = tuple(to_type(entry.annotation, found.module, depth + 1) for entry in entries)
        return Type("record", parts, tuple(last_name(entry.target) for entry in entries))
    if any(name.endswith("Enum") for name in names):
        members = [entry.value for entry in found.node.body if isinstance(entry, ast.Assign)]
        return Type("enum", values=tuple(member.value for member in members if isinstance(member, ast.Constant)))
    return INSTANCE


def to_union(*types: Type) -> Type:
    """One type that accepts what any of these accepts, flat and without repeats."""
    flat = [part for each in types for part in each.alternatives]
    parts = [part for part in dict.fromkeys(flat) if part != INSTANCE]
    if ANY in parts or (INSTANCE in flat and all(part == NONE for part in parts)):
        return ANY
    kinds = {part.kind for part in parts}
    if "enum" in kinds:  # "an enum or text" means the enum: its values are how YAML writes it
        parts = [part for part in parts if part != TEXT]
    if "float" in kinds:
        parts = [part for part in parts if part.kind != "int"]
    return parts[0] if len(parts) == 1 else Type("union", tuple(parts))


def documented_types(text: str) -> list[Type]:
    """The types that a docstring gives a parameter: ``(`str` or `list[str]`, *optional*)``."""
    words = re.split(r",\s*\*?optional|,\s*default|\.\s", text)[0]
    found = [expression(word.strip("` ")) for word in re.split(r" or |, | \| ", words) if word]
    return [to_type(each, None) for each in found]


def expression(text: str) -> ast.expr | None:
    """A text as Python source, or None where it is none."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None


def shortened(words: list[str], width: int = MAX_LETTERS) -> str:
    """Words with commas, as many as fit."""
    text, count = ", ".join(words), len(words)
    while len(text) > width and count > 1:
        count -= 1
        text = f"{', '.join(words[:count])}, ... ({len(words)})"
    return text


def _to_generic(head: str, items: list[ast.expr], inner: Callable[[ast.expr], Type]) -> Type:
    match head:
        case "Optional":
            return to_union(inner(items[0]), NONE)
        case "Union":
            return to_union(*map(inner, items))
        case "Literal":
            return Type("choice", values=tuple(item.value for item in items if isinstance(item, ast.Constant)))
        case "Annotated" | "Final" | "Required" | "NotRequired" | "InitVar":
            return inner(items[0])
    plain = PLAIN.get(head, ANY)
    if plain.kind == "tuple" and isinstance(items[-1], ast.Constant) and items[-1].value is ...:
        return Type("list", (inner(items[0]),))
    if plain.kind in ("list", "tuple") or (plain.kind == "dict" and len(items) == 2):
        return Type(plain.kind, tuple(map(inner, items)))
    return plain
