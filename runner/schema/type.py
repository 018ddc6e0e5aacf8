"""Types as small trees, read from annotations, that accept YAML values and print in plain words.

Names in an annotation are followed to where they are defined.
"""

import ast
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType

from runner.schema.literal import to_text
from runner.schema.source import Definition, Function, Module, last_name, resolve_expression

MAX_LETTERS = 68  # of a printed list of choices, so that a fault fits on a line
MAX_DEPTH = 20  # of an annotation: an alias may mean itself

# Types in plain words, of one value and of several.
WORDS = {
    "any": "anything",
    "instance": "anything",
    "none": "null",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
}
PLURALS = {
    "float": "numbers",
    "int": "whole numbers",
    "str": "texts",
    "any": "anything",
    "instance": "anything",
}
CLASSES: dict[str, type | tuple[type, ...]] = {
    "none": NoneType,
    "bool": bool,
    "int": int,
    "float": (int, float),
    "str": str,
}


@dataclass(frozen=True)
class Type:
    """The values that a parameter accepts."""

    # Any, instance (of some class), none, bool, int, float, str, list, tuple, dict, record, choice,
    # enum or union.
    kind: str
    parts: tuple["Type", ...] = ()  # the types inside: a dict has two, of keys and of values
    values: tuple[object, ...] = ()  # the constants of a choice, or the names of a record's parts

    def accepts(self, value: object) -> bool:
        """True for a value from YAML that fits; a node with a ``_target_`` fits all types."""
        is_node = isinstance(value, dict) and "_target_" in value
        if is_node or self.kind in ("any", "instance"):
            return True
        match self.kind:
            case "union":
                return any(part.accepts(value) for part in self.parts)
            case "choice" | "enum":
                return self._accepts_constant(value)
            case "list" | "tuple":
                return isinstance(value, list) and self._accepts_items(value)
            case "record" | "dict":
                return isinstance(value, dict) and self._accepts_entries(value)
        if isinstance(value, bool):  # which Python takes for a number, too
            return self.kind == "bool"
        return isinstance(value, CLASSES[self.kind])

    def _accepts_constant(self, value: object) -> bool:
        """True for one of the constants; 1 is not True, which Python takes for equal."""
        same_type = [constant for constant in self.values if type(constant) is type(value)]
        if value in same_type:
            return True
        if not isinstance(value, str):
            return False
        # "pissa_niter_[number of iters]" is a pattern, not a value.
        for text in same_type:
            start, bracket, _ = str(text).partition("[")
            if bracket and value.startswith(start):
                return True
        return False

    def _accepts_items(self, items: list[object]) -> bool:
        """True for items of the types of a tuple, one each, or all of the one type of a list."""
        if self.kind == "tuple" and self.parts:
            if len(items) != len(self.parts):
                return False
            return all(map(Type.accepts, self.parts, items))
        if not self.parts:
            return True
        item_type = self.parts[0]
        return all(map(item_type.accepts, items))

    def _accepts_entries(self, entries: Mapping[object, object]) -> bool:
        """True for entries whose keys and values have the types of a dict, or of a record's keys.

        A record, which is a TypedDict, may lack keys, and has no others.
        """
        if self.kind == "record":
            parts = dict(zip(self.values, self.parts, strict=True))
            for key, value in entries.items():
                if key not in parts or not parts[key].accepts(value):
                    return False
            return True
        if not self.parts:
            return True
        key_type, value_type = self.parts
        for key, value in entries.items():
            if not key_type.accepts(key) or not value_type.accepts(value):
                return False
        return True

    def __str__(self) -> str:
        match self.kind:
            case "union":
                alternatives = sorted(self.parts, key=lambda part: part.kind == "none")
                return " or ".join(dict.fromkeys(map(str, alternatives)))
            case "choice" | "enum":
                texts = [to_text(value) for value in self.values]
                return f"one of {shortened(texts)}"
            case "list" | "tuple" if self.parts:
                item = self.parts[0]
                count = ""
                if self.kind == "tuple":
                    count = f"{len(self.parts)} "
                items = PLURALS.get(item.kind) or f"items, each {item}"
                return f"a list of {count}{items}"
            case "record":
                names = [str(name) for name in self.values]
                return f"a mapping with {shortened(names)}"
        return WORDS[self.kind]

    @property
    def alternatives(self) -> tuple["Type", ...]:
        """The parts of a union, or the type itself."""
        return self.parts if self.kind == "union" else (self,)

    @property
    def choices(self) -> tuple[object, ...]:
        """The constants that it accepts, where it is a choice or has one in it."""
        constants: list[object] = []
        for part in self.alternatives:
            constants += part.values
        return tuple(constants)


ANY = Type("any")
NONE = Type("none")
TEXT = Type("str")
# YAML writes an object of some class as a node, so beside plain types it adds nothing.
INSTANCE = Type("instance")

# The types that names in annotations mean wherever they come from.
PLAIN = {
    "int": Type("int"),
    "float": Type("float"),
    "bool": Type("bool"),
    "None": NONE,
    **dict.fromkeys(("str", "Path", "PathLike"), TEXT),
    **dict.fromkeys(("Any", "object", "Callable"), ANY),
    "dtype": INSTANCE,
    **dict.fromkeys(
        (
            "list",
            "List",
            "set",
            "Set",
            "frozenset",
            "Sequence",
            "Collection",
            "Iterable",
        ),
        Type("list"),
    ),
    **dict.fromkeys(("tuple", "Tuple"), Type("tuple")),
    **dict.fromkeys(("dict", "Dict", "Mapping", "MutableMapping"), Type("dict")),
}


def to_type(annotation: ast.expr | None, module: Module | None, depth: int = 0) -> Type:
    """The type that an annotation means where it is written; what cannot be read is ``any``."""
    if annotation is None or depth > MAX_DEPTH:
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
        case ast.Name() | ast.Attribute() if last_name(annotation) in PLAIN:
            return PLAIN[last_name(annotation)]
    if module is None:
        return ANY
    definition = resolve_expression(annotation, module)
    if not isinstance(definition, Definition):
        return ANY
    return _to_named_type(definition, depth)


def _to_named_type(definition: Definition, depth: int) -> Type:
    """The type that a name means: an alias, a TypedDict, an enum, or just some class."""
    if isinstance(definition.node, ast.Call | Function):
        return ANY
    if not isinstance(definition.node, ast.ClassDef):
        return to_type(definition.node, definition.module, depth + 1)
    body = definition.node.body
    base_names = {last_name(base) for base in definition.node.bases}
    if "TypedDict" in base_names:
        names = []
        parts = []
        for node in body:
            if isinstance(node, ast.AnnAssign):
                names.append(last_name(node.target))
                parts.append(to_type(node.annotation, definition.module, depth + 1))
        return Type("record", tuple(parts), tuple(names))
    if any(name.endswith("Enum") for name in base_names):
        members = [node.value for node in body if isinstance(node, ast.Assign)]
        return Type("enum", values=_constants(members))
    return INSTANCE


def to_union(*types: Type) -> Type:
    """One type that accepts what any of these accepts, flat and without repeats."""
    flat: list[Type] = []
    for alternative in types:
        flat += alternative.alternatives
    parts = [part for part in dict.fromkeys(flat) if part != INSTANCE]
    is_instance_or_none = INSTANCE in flat and all(part == NONE for part in parts)
    if ANY in parts or is_instance_or_none:
        return ANY
    kinds = {part.kind for part in parts}
    if "enum" in kinds:  # "an enum or text" means the enum: its values are how YAML writes it
        parts = [part for part in parts if part != TEXT]
    if "float" in kinds:
        parts = [part for part in parts if part.kind != "int"]
    if len(parts) == 1:
        return parts[0]
    return Type("union", tuple(parts))


def documented_types(text: str) -> list[Type]:
    """The types that a docstring gives a parameter: ``(`str` or `list[str]`, *optional*)``."""
    alternatives = re.split(r",\s*\*?optional|,\s*default|\.\s", text)[0]
    types = []
    for name in re.split(r" or |, | \| ", alternatives):
        if name:
            annotation = expression(name.strip("` "))
            types.append(to_type(annotation, None))
    return types


def expression(text: str) -> ast.expr | None:
    """A text as Python source, or None where it is none."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None


def shortened(words: list[str], width: int = MAX_LETTERS) -> str:
    """Words with commas, as many as fit."""
    text = ", ".join(words)
    count = len(words)
    while len(text) > width and count > 1:
        count -= 1
        text = f"{', '.join(words[:count])}, ... ({len(words)})"
    return text


def _to_generic(head: str, items: list[ast.expr], inner: Callable[[ast.expr], Type]) -> Type:
    """The type of ``head[items]``; ``inner`` reads the type of an item."""
    match head:
        case "Optional":
            return to_union(inner(items[0]), NONE)
        case "Union":
            return to_union(*map(inner, items))
        case "Literal":
            return Type("choice", values=_constants(items))
        case "Annotated" | "Final" | "Required" | "NotRequired" | "InitVar":
            return inner(items[0])
    container = PLAIN.get(head, ANY)
    last = items[-1]
    if container.kind == "tuple" and isinstance(last, ast.Constant) and last.value is ...:
        return Type("list", (inner(items[0]),))
    is_mapping = container.kind == "dict" and len(items) == 2
    if is_mapping or container.kind in ("list", "tuple"):
        return Type(container.kind, tuple(map(inner, items)))
    return container


def _constants(expressions: list[ast.expr]) -> tuple[object, ...]:
    return tuple(node.value for node in expressions if isinstance(node, ast.Constant))
