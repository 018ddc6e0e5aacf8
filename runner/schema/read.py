"""The parameters that a call of a definition takes, read from its source, with types and defaults.

A constructor that a class inherits counts, and so do the fields of a dataclass. ``**kwargs`` is
followed: into what is taken out of it by name, and into the constructor of the base that gets it.
"""

import ast
import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from runner.schema.ranges import Range, read_range
from runner.schema.source import (
    Definition,
    Function,
    Module,
    bases,
    find_definition,
    last_name,
    member,
    once_of_libraries,
)
from runner.schema.type import NONE, PLAIN, TEXT, Type, documented_types, to_type, to_union

# A line of a docstring that gives a parameter its type: ``name (`int`, *optional*):``
DOCUMENTED = re.compile(r"^ *(\w+) \(([^()\n]*`[^\n]*?)\) ?:", re.MULTILINE)
UNKNOWN = object()  # the default of a parameter where the source holds no plain value


@dataclass(frozen=True)
class Parameter:
    """One argument of a target."""

    name: str
    required: bool = False
    default: object = UNKNOWN
    annotation: ast.expr | None = None
    module: Module | None = None  # in which the annotation stands
    documented: str = ""  # its type in the docstring
    choices: tuple[object, ...] = ()  # that a field's metadata lists
    also: tuple[Type, ...] = ()  # accepted by ``__post_init__`` besides

    @functools.cached_property
    def type(self) -> Type:
        """The values that it accepts.

        Read only now, because following an annotation may open more files.
        """
        documented = documented_types(self.documented)
        if self.annotation is None and documented:
            annotated = to_union(*documented)
        else:
            annotated = to_type(self.annotation, self.module)
        if self.choices:
            choice = Type("choice", values=self.choices)
            # A text is narrowed to the choices.
            narrowed = []
            for part in annotated.alternatives:
                narrowed.append(choice if part == TEXT else part)
            annotated = to_union(*narrowed)
        kinds = {part.kind for part in annotated.alternatives}
        kinds.add("any")
        if annotated.choices:
            kinds.add("str")
        wider = [part for part in (*documented, *self.also) if part.kind not in kinds]
        if self.default is None:
            wider.append(NONE)
        return to_union(annotated, *wider)

    @functools.cached_property
    def range(self) -> Range | None:
        """The range of the number that it takes, where its annotation gives one."""
        return read_range(self.annotation, self.module)

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
    lineage: tuple[str, ...] = ()  # its class and all its bases; empty for a function

    @property
    def name(self) -> str:
        """The name that people use: the last word of the target, or the class of a classmethod."""
        path, _, last = self.target.rpartition(".")
        owner = path.rpartition(".")[2]
        is_classmethod = owner[:1].isupper() and not last[:1].isupper()
        return owner if is_classmethod else last

    @property
    def required(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if parameter.required]


@once_of_libraries
def read_signature(target: str) -> Signature | None:
    """The arguments of a call of a dotted target; None where it does not exist or is a module."""
    definition = find_definition(target)
    if not isinstance(definition, Definition):
        return None
    arguments = _arguments_of(definition)
    return Signature(
        target,
        home=definition.home,
        parameters=arguments.parameters,
        is_open=arguments.is_open,
        lineage=tuple(_lineage(definition)),
    )


# --- Functions and constructors ---


@dataclass(frozen=True)
class Arguments:
    """The arguments that one definition takes."""

    parameters: dict[str, Parameter] = field(default_factory=dict)
    is_open: bool = False


UNREADABLE = Arguments(is_open=True)


# A definition is another one as soon as its file was written again.
@functools.lru_cache(maxsize=1024)
def _arguments_of(definition: Definition) -> Arguments:
    """The arguments of a function, or of the constructor of a class."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        # A decorator or a metaclass may write the constructor, as attrs does.
        may_be_written = bool(node.decorator_list or node.keywords)
        return _constructor(definition) or Arguments(is_open=may_be_written)
    if isinstance(node, Function):
        decorators = {last_name(decorator) for decorator in node.decorator_list}
        is_bound = definition.owner is not None and "staticmethod" not in decorators
        return _function(definition, is_bound)
    return UNREADABLE


def _constructor(cls: Definition) -> Arguments | None:
    """The arguments of the constructor of a class, or of its nearest base that has one.

    None where that is ``object``.
    """
    methods = {node.name: node for node in cls.node.body if isinstance(node, Function)}
    is_dataclass = _is_dataclass(cls)
    constructor = methods.get("__init__")
    if constructor is None and not is_dataclass:
        constructor = methods.get("__new__")
    if constructor is not None:
        name = f"{cls.name}.{constructor.name}"
        return _function(Definition(cls.module, name, constructor, cls), is_bound=True)
    if is_dataclass:
        return _fields(cls)
    for base in bases(cls):
        inherited = _constructor(base) if base else UNREADABLE
        if inherited is not None:
            return inherited
    return None


def _function(function: Definition, is_bound: bool) -> Arguments:
    """The arguments of a function that can be given by name; without the first if it is bound."""
    arguments = function.node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    # Defaults belong to the last of the positional arguments.
    defaults = dict(zip(reversed(positional), reversed(arguments.defaults), strict=False))
    defaults |= zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    named = arguments.args
    if is_bound and not arguments.posonlyargs:
        named = named[1:]
    notes = _documented_parameters(function)
    parameters = {}
    for argument in [*named, *arguments.kwonlyargs]:
        default = defaults.get(argument)
        parameters[argument.arg] = Parameter(
            name=argument.arg,
            required=default is None,
            default=_literal(default),
            annotation=argument.annotation,
            module=function.module,
            documented=notes.get(argument.arg, ""),
        )
    if arguments.kwarg is None:
        return Arguments(parameters)
    passed_on = _followed_kwargs(function, arguments.kwarg.arg, notes)
    return Arguments(passed_on.parameters | parameters, passed_on.is_open)


@dataclass(frozen=True)
class KwargsUse:
    """The use that the body of a function makes of its ``**kwargs``."""

    names: list[str]  # that are taken out of it
    super_calls: list[ast.Call]  # that get all of it
    is_open: bool  # it is used in yet another way


def _use_of_kwargs(body: list[ast.stmt], kwargs: str) -> KwargsUse:
    """The use that the statements of a function make of the mapping of this name.

    Each mention of the mapping has to be of a kind that is understood. One that is not, such as a
    call that gets all of it, may read any name: then every argument has to be taken for possible.
    """
    names: list[str] = []
    super_calls: list[ast.Call] = []
    mentions = 0
    understood = 0  # of the mentions
    for node in chain.from_iterable(map(ast.walk, body)):
        match node:
            case ast.Name() if _is_name(node, kwargs):
                mentions += 1
            case (
                ast.Call(
                    func=ast.Attribute(value=mapping, attr="pop" | "get" | "setdefault"),
                    args=[ast.Constant(value=key), *_],
                )
                | ast.Subscript(value=mapping, slice=ast.Constant(value=key))
                | ast.Compare(left=ast.Constant(value=key), comparators=[mapping, *_])
            ) if _is_name(mapping, kwargs):
                understood += 1
                if isinstance(key, str) and not key.startswith("_"):
                    names.append(key)
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")))):
                unpacked = [word.value for word in node.keywords if word.arg is None]
                if any(_is_name(mapping, kwargs) for mapping in unpacked):
                    understood += 1
                    super_calls.append(node)
            case ast.If(test=test) if _is_name(test, kwargs):
                understood += 1
            case ast.FormattedValue():  # only shown, in a text for people
                understood += sum(_is_name(part, kwargs) for part in ast.walk(node))
    return KwargsUse(names, super_calls, is_open=mentions > understood)


def _followed_kwargs(function: Definition, kwargs: str, notes: Mapping[str, str]) -> Arguments:
    """The arguments that ``**kwargs`` adds to a function."""
    use = _use_of_kwargs(function.node.body, kwargs)
    is_open = use.is_open
    parameters: dict[str, Parameter] = {}
    for call in use.super_calls:
        inherited = _inherited_arguments(function)
        positional = [value for value in call.args if not isinstance(value, ast.Starred)]
        given = {word.arg for word in call.keywords}
        given |= set(list(inherited.parameters)[: len(positional)])
        for name, parameter in inherited.parameters.items():
            if name not in given:
                parameters[name] = parameter
        is_open = is_open or inherited.is_open
    for name in use.names:
        parameters[name] = Parameter(name, documented=notes.get(name, ""))
    return Arguments(parameters, is_open)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _inherited_arguments(method: Definition) -> Arguments:
    """The arguments of what ``super()`` calls in a method."""
    name = method.name.rpartition(".")[2]
    owner = method.owner
    for base in bases(owner) if owner else ():
        if base is None:
            return UNREADABLE
        arguments = None
        if name == "__init__":
            arguments = _constructor(base)
        elif inherited := member(name, base):
            arguments = _arguments_of(inherited)
        if arguments is not None:
            return arguments
    # Behind the bases stands ``object``, whose constructor takes nothing. A class without bases is
    # one to be mixed in, which may stand before any other.
    is_of_object = name == "__init__" and owner is not None and owner.node.bases
    return Arguments(is_open=not is_of_object)


# --- Dataclasses ---


def _is_dataclass(cls: Definition) -> bool:
    """True for a class whose fields are the arguments of its constructor."""
    decorators = map(last_name, cls.node.decorator_list)
    base_names = map(last_name, cls.node.bases)
    return "dataclass" in decorators or "NamedTuple" in base_names or _is_transformed(cls)


def _is_transformed(cls: Definition) -> bool:
    """True where a base makes dataclasses of its children (PEP 681), as in transformers."""
    decorators = map(last_name, cls.node.decorator_list)
    if "dataclass_transform" in decorators:
        return True
    return any(_is_transformed(base) for base in bases(cls) if base)


@functools.lru_cache(maxsize=1024)
def _fields(cls: Definition) -> Arguments:
    """The fields of a dataclass, and of those on which it builds."""
    parameters: dict[str, Parameter] = {}
    is_open = _is_transformed(cls)
    for base in reversed(list(bases(cls))):
        inherited = _fields(base) if base else UNREADABLE
        parameters = parameters | inherited.parameters
        is_open = is_open or inherited.is_open
    if _is_dataclass(cls):
        notes = _documented_parameters(cls)
        for node in cls.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                parameter = _field_parameter(name, node, cls.module, notes.get(name, ""))
                if parameter is None:
                    parameters.pop(name, None)
                else:
                    parameters[name] = parameter
    for name, accepted in _types_asked_for(cls):
        if name in parameters:
            also = (*parameters[name].also, accepted)
            parameters[name] = replace(parameters[name], also=also)
    return Arguments(parameters, is_open)


def _field_parameter(
    name: str, node: ast.AnnAssign, module: Module, documented: str
) -> Parameter | None:
    """The parameter that a field adds to the constructor; None where it adds none."""
    if last_name(node.annotation) in ("ClassVar", "KW_ONLY"):
        return None
    if not isinstance(node.value, ast.Call) or last_name(node.value) != "field":
        is_required = node.value is None
        default = _literal(node.value)
        return Parameter(name, is_required, default, node.annotation, module, documented)
    options = {word.arg: word.value for word in node.value.keywords if word.arg}
    if _literal(options.get("init")) is False:
        return None
    expression = options.get("default")
    factory = options.get("default_factory")
    if isinstance(factory, ast.Lambda):  # such as of a list, which is made anew each time
        expression = factory.body
    return Parameter(
        name=name,
        required=expression is None and factory is None,
        default=_literal(expression),
        annotation=node.annotation,
        module=module,
        documented=documented,
        choices=_metadata_choices(options.get("metadata")),
    )


def _metadata_choices(metadata: ast.expr | None) -> tuple[object, ...]:
    """The values under ``choices`` in the metadata of a field."""
    if not isinstance(metadata, ast.Dict):
        return ()
    for key, value in zip(metadata.keys, metadata.values, strict=True):
        if _literal(key) == "choices":
            choices = _literal(value)
            if not isinstance(choices, list | tuple):
                return ()
            return tuple(choices)
    return ()


def _types_asked_for(cls: Definition) -> Iterator[tuple[str, Type]]:
    """The fields whose types ``__post_init__`` asks for: ``isinstance(self.beta, list)``."""
    for method in cls.node.body:
        if not isinstance(method, Function) or method.name != "__post_init__":
            continue
        for node in ast.walk(method):
            match node:
                case ast.Call(
                    func=ast.Name(id="isinstance"),
                    args=[ast.Attribute(value=ast.Name(id="self"), attr=name), type_name],
                ) if last_name(type_name) in PLAIN:
                    yield name, PLAIN[last_name(type_name)]


# --- Source ---


def _lineage(definition: Definition) -> Iterator[str]:
    """The name of a class, of its bases and of theirs, as far as their source is found."""
    if isinstance(definition.node, ast.ClassDef):
        yield definition.name.rpartition(".")[2]
        for base in bases(definition):
            if base:
                yield from _lineage(base)


def _documented_parameters(definition: Definition) -> dict[str, str]:
    """The types that a docstring gives parameters; for a method also that of its class."""
    owner = definition.owner.node if definition.owner else None
    docstrings = []
    for node in (definition.node, owner):
        if isinstance(node, ast.ClassDef | Function):
            docstrings.append(ast.get_docstring(node, clean=False) or "")
    return dict(DOCUMENTED.findall("\n".join(docstrings)))


def _literal(node: ast.expr | None) -> object:
    """The plain value that an expression writes down, else UNKNOWN."""
    if node is not None:
        with contextlib.suppress(ValueError, TypeError, SyntaxError):
            return ast.literal_eval(node)
    return UNKNOWN
