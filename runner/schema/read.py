"""The parameters of a definition: their names, types and defaults, and what becomes of the rest."""

import ast
import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from runner.schema import source
from runner.schema.source import Definition, Function, Module, bases, find_definition, last_name, member
from runner.schema.type import NONE, PLAIN, TEXT, Type, documented_types, to_type, to_union

NOTE = re.compile(r"^ *(\w+) \(([^()\n]*`[^\n]*?)\) ?:", re.MULTILINE)
UNKNOWN = object()  # the default of a parameter where the source holds no plain value


@dataclass(frozen=True)
class Parameter:
    """One argument of a target."""

    name: str
    required: bool = False
    default: object = UNKNOWN
    annotation: ast.expr | None = None
    module: Module | None = None
    documented: str = ""  # its type in the docstring
    choices: tuple[object, ...] = ()  # that a field's metadata lists
    also: tuple[Type, ...] = ()  # accepted by ``__post_init__`` besides

    @functools.cached_property
    def type(self) -> Type:
        """The values that it accepts; read only now, because following an annotation may open more files."""
        documented, known = documented_types(self.documented), to_type(self.annotation, self.module)
        if self.annotation is None and documented:
            known = to_union(*documented)
        if self.choices:  # to which a text is narrowed
            listed = Type("choice", values=self.choices)
            known = to_union(*(listed if part == TEXT else part for part in known.alternatives))
        kinds = {part.kind for part in known.alternatives} | ({"any", "str"} if known.choices else {"any"})
        wider = [part for part in (*documented, *self.also) if part.kind not in kinds]
        return to_union(known, *wider, *([NONE] if self.default is None else []))

    @property
    def names(self) -> set[str]:
        """Every name that its annotation mentions."""
        nodes = ast.walk(self.annotation) if self.annotation else ()
        return {node.id for node in nodes if isinstance(node, ast.Name)}


@dataclass(frozen=True)
class Signature:
    """The arguments of a target."""

    target: str
    home: str  # where it is defined
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    is_open: bool = False  # it takes other keyword arguments too
    lineage: tuple[str, ...] = ()  # its class and those that this one builds on

    @property
    def name(self) -> str:
        """The name that people use: the last word, or the class of a classmethod."""
        *_, owner, last = ["", *self.target.split(".")]
        return owner if owner[:1].isupper() and not last[:1].isupper() else last

    @property
    def required(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if parameter.required]


@source.once_of_libraries
def read_signature(target: str) -> Signature | None:
    """The arguments of a call of a dotted target; None where it does not exist or is a module."""
    if not isinstance(found := find_definition(target), Definition):
        return None
    parameters, is_open = _takes(found)
    return Signature(target, found.home, parameters, is_open, tuple(_lineage(found)))


def choices_compared(target: str, name: str, least: int = 2) -> tuple[str, ...]:
    """The texts that a class compares ``name`` with, or else those of its nearest base.

    Texts that it refuses (``if x == "old": raise``) are left out; fewer than ``least`` are no choice, and none come.
    """
    found = find_definition(target)
    package = target.partition(".")[0]
    while isinstance(found, Definition) and found.home.split(".")[0] == package:
        module = found.module
        texts = _comparisons(module, module.changed).get(name, ()) if name in module.text else ()
        if len(texts) >= least:
            return texts
        found = next(bases(found), None)
    return ()


# --- the arguments of a definition ---
Taken = tuple[dict[str, Parameter], bool]


@functools.lru_cache(maxsize=1024)  # a definition is another one when its file was written again
def _takes(found: Definition) -> Taken:
    if isinstance(found.node, ast.ClassDef):
        # A decorator or a metaclass may write the constructor, as attrs does.
        return _constructor(found) or ({}, bool(found.node.decorator_list or found.node.keywords))
    if isinstance(found.node, Function):
        marks = {last_name(mark) for mark in found.node.decorator_list}
        return _function(found, bound=found.owner is not None and "staticmethod" not in marks)
    return {}, True


def _constructor(found: Definition) -> Taken | None:
    own = {node.name: node for node in found.node.body if isinstance(node, Function)}
    made = _is_dataclass(found)
    name = "__init__" if "__init__" in own else "__new__" if "__new__" in own and not made else None
    if name:
        return _function(Definition(found.module, f"{found.name}.{name}", own[name], found), bound=True)
    if made:
        return _fields(found)
    for base in bases(found):
        if base is None:
            return {}, True
        if (taken := _constructor(base)) is not None:
            return taken
    return None


def _function(found: Definition, bound: bool) -> Taken:
    arguments = found.node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    pairs = list(zip(positional, defaults, strict=True))[bound:]
    pairs = [pair for pair in pairs if pair[0] not in arguments.posonlyargs]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    notes = _notes(found)
    parameters = {}
    for argument, default in pairs:
        name, required, documented = argument.arg, default is None, notes.get(argument.arg, "")
        parameters[name] = Parameter(name, required, _literal(default), argument.annotation, found.module, documented)
    if arguments.kwarg is None:
        return parameters, False
    others, is_open = _others(found, arguments.kwarg.arg, notes)
    return others | parameters, is_open


def _others(found: Definition, name: str, notes: Mapping[str, str]) -> Taken:
    """The arguments that ``**kwargs`` adds: names taken out of it, what super takes, whether more is used."""
    nodes = [node for statement in found.node.body for node in ast.walk(statement)]
    names: dict[str, None] = {}
    supers: list[ast.Call] = []
    seen = 0  # of the mentions of the mapping, those that are one of these
    for node in nodes:
        match node:
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Name(id=mapping), attr="pop" | "get" | "setdefault"),
                    args=[ast.Constant(value=key), *_],
                )
                | ast.Subscript(value=ast.Name(id=mapping), slice=ast.Constant(value=key))
                | ast.Compare(left=ast.Constant(value=key), comparators=[ast.Name(id=mapping), *_])
            ) if mapping == name:
                names |= {key: None} if isinstance(key, str) and not key.startswith("_") else {}
                seen += 1
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))), keywords=words) if any(
                word.arg is None and getattr(word.value, "id", "") == name for word in words
            ):
                supers.append(node)
                seen += 1
            case ast.If(test=ast.Name(id=mapping)) if mapping == name:
                seen += 1
            case ast.FormattedValue():  # a text for people: what is only shown is not used
                seen += sum(getattr(each, "id", "") == name for each in ast.walk(node))
    is_open = sum(getattr(node, "id", "") == name for node in nodes) > seen
    inherited: dict[str, Parameter] = {}
    for call in supers:
        parameters, above_open = _of_base(found)
        placed = [value for value in call.args if not isinstance(value, ast.Starred)]
        given = {word.arg for word in call.keywords} | set(list(parameters)[: len(placed)])
        inherited |= {key: value for key, value in parameters.items() if key not in given}
        is_open = is_open or above_open
    return inherited | {key: Parameter(key, documented=notes.get(key, "")) for key in names}, is_open


def _of_base(found: Definition) -> Taken:
    method = found.name.rpartition(".")[2]
    for base in bases(found.owner) if found.owner else ():
        if base is None:
            return {}, True
        if method == "__init__":
            taken = _constructor(base)
        else:
            taken = _takes(above) if (above := member(method, base)) else None
        if taken is not None:
            return taken
    return {}, not (method == "__init__" and found.owner and found.owner.node.bases)  # behind bases is that of object


# --- dataclasses ---
def _is_dataclass(found: Definition) -> bool:
    marks, bases = map(last_name, found.node.decorator_list), map(last_name, found.node.bases)
    return "dataclass" in marks or "NamedTuple" in bases or _is_transformed(found)


def _is_transformed(found: Definition) -> bool:
    """True where a base makes dataclasses of its children (PEP 681), as transformers' configs do."""
    marks = map(last_name, found.node.decorator_list)
    return "dataclass_transform" in marks or any(map(_is_transformed, filter(None, bases(found))))


@functools.lru_cache(maxsize=1024)
def _fields(found: Definition) -> Taken:
    parameters: dict[str, Parameter] = {}
    is_open = _is_transformed(found)
    for base in reversed(list(bases(found))):
        inherited, inherited_open = _fields(base) if base else ({}, True)
        parameters, is_open = parameters | inherited, is_open or inherited_open
    if _is_dataclass(found):
        notes = _notes(found)
        for node in found.node.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            name, words = node.target.id, None  # the keywords of ``= field(...)``, None where the value is no such call
            if isinstance(node.value, ast.Call) and last_name(node.value) == "field":
                words = {word.arg: word.value for word in node.value.keywords if word.arg}
            is_parameter = last_name(node.annotation) not in ("ClassVar", "KW_ONLY")
            if is_parameter and (words is None or _literal(words.get("init")) is not False):
                default = node.value if words is None else words.get("default")
                factory = (words or {}).get("default_factory")
                if isinstance(factory, ast.Lambda):  # such as of a list, which is made anew each time
                    default = factory.body
                metadata = (words or {}).get("metadata")
                entries = zip(metadata.keys, metadata.values, strict=True) if isinstance(metadata, ast.Dict) else ()
                choices = next((_literal(value) for key, value in entries if _literal(key) == "choices"), None)
                required = default is None and "default_factory" not in (words or {})
                listed = tuple(choices) if isinstance(choices, list | tuple) else ()
                known = (node.annotation, found.module, notes.get(name, ""))
                parameters[name] = Parameter(name, required, _literal(default), *known, listed)
            else:
                parameters.pop(name, None)
    # What ``__post_init__`` takes too: ``if isinstance(self.loss_type, str)``.
    after = next((n for n in found.node.body if getattr(n, "name", "") == "__post_init__"), None)
    for node in ast.walk(after) if after else ():
        match node:
            case ast.Call(
                func=ast.Name(id="isinstance"), args=[ast.Attribute(value=ast.Name(id="self"), attr=name), kind]
            ) if name in parameters and (accepted := PLAIN.get(last_name(kind))):
                parameters[name] = replace(parameters[name], also=(*parameters[name].also, accepted))
    return parameters, is_open


# --- reading source ---
@functools.lru_cache(maxsize=64)
def _comparisons(module: Module, changed: int) -> dict[str, tuple[str, ...]]:
    refused: set[int] = set()  # the ids of tests such as ``if x == "no longer supported": raise``
    items: dict[str, str] = {}  # the name of a loop's items, and of what it loops over, in the singular
    nodes = list(ast.walk(source.parse_module(module.text) or ast.Module([], [])))
    for node in nodes:
        match node:
            case ast.If(test=ast.Compare(ops=[ast.Eq() | ast.In()]) as test, body=[ast.Raise()]):
                refused.add(id(test))
            case ast.For(target=ast.Name(id=name)) | ast.comprehension(target=ast.Name(id=name)):
                items[name] = last_name(node.iter).removesuffix("s")
    texts: dict[str, dict[str, None]] = {}
    for node in nodes:
        if isinstance(node, ast.Compare) and id(node) not in refused:
            left = last_name(node.left)
            for value in node.comparators:
                options = value.elts if isinstance(value, ast.List | ast.Tuple | ast.Set) else [value]
                found = [option.value for option in options if isinstance(option, ast.Constant)]
                for name in {left, items.get(left, left)}:
                    texts.setdefault(name, {}).update((text, None) for text in found if isinstance(text, str))
    return {name: tuple(found) for name, found in texts.items()}


def _lineage(found: Definition) -> Iterator[str]:
    if isinstance(found.node, ast.ClassDef):
        yield found.name.rpartition(".")[2]
        for base in filter(None, bases(found)):
            yield from _lineage(base)


def _notes(found: Definition) -> dict[str, str]:
    """Types of parameters in the docstring: what stands in ``name (`int`, *optional*):``."""
    nodes = [found.node, found.owner.node if found.owner else None]
    texts = [ast.get_docstring(node, clean=False) or "" for node in nodes if isinstance(node, ast.ClassDef | Function)]
    return dict(NOTE.findall("\n".join(texts)))


def _literal(node: ast.expr | None) -> object:
    if node is not None:
        with contextlib.suppress(ValueError, TypeError, SyntaxError):
            return ast.literal_eval(node)
    return UNKNOWN
