"""The place where a dotted name is defined, found in the installed source without importing it.

Names are followed the way Python would: through re-exports, ``if TYPE_CHECKING`` blocks, which lazy
packages have, star imports and aliases. Only the top-level package is asked of the import system,
because that imports nothing.
"""

import ast
import contextlib
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, TypeVar

# What a training is made of: its source is not the user's own, and stays as it is while we run.
LIBRARY_PACKAGES = frozenset(
    {"runner", "trl", "transformers", "torch", "peft", "datasets", "accelerate", "numpy"}
)
NOT_OF_THE_USER = LIBRARY_PACKAGES | {
    *sys.stdlib_module_names,
    "hydra",
    "omegaconf",
    "pandas",
    "setuptools",
}
# Marks of a module that makes names while it runs, which cannot be read. Most lazy packages repeat
# those names for type checkers; then reading is enough.
DYNAMIC = re.compile(
    r"^def __getattr__|^ *globals\(\)(\.update\(|\[[^]]+\] = )"
    r"|\A(?!.*TYPE_CHECKING).*^_import_structure\b",
    re.MULTILINE | re.DOTALL,
)
# A method: its indentation, its head, its body. Methods that take ``**`` are left out, because
# their bodies are read for arguments, and so are those whose docstrings are.
METHOD = re.compile(
    r"^( +)((?:async )?def (?!__|from_)\w+\((?:[^\n*]|\*(?!\*))*"
    r"(?:(?<=[(,])\n(?:\1 (?:[^\n*]|\*(?!\*))*\n)+\1\)[^\n]*)?:)\n((?:\1 .*\n|[ \t]*\n)+)",
    re.MULTILINE,
)
# A class or function of a module, with its decorators and all lines that belong to it.
BLOCK = re.compile(
    r"^(?:@.*\n(?:[ \t)#].*\n|\n)*)*(?:async )?(def|class) (\w+).*\n(?:(?:[ \t)#].*)?\n)*",
    re.MULTILINE,
)
# Beyond this number of star imports only those that look likely are opened for a did-you-mean.
MAX_STARS = 20
Answer = TypeVar("Answer")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """A name that another module provides; without ``name`` it is that module itself."""

    module: str
    name: str = ""


Binding = ast.ClassDef | Function | ast.expr | Import


@dataclass
class Bindings:
    """The names that a block of source binds."""

    names: dict[str, Binding] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)  # modules that are imported with a star


@dataclass(frozen=True)
class Module:
    """One module. Without ``file`` it is compiled, built in, or a folder without ``__init__``."""

    name: str
    file: Path | None = None
    folders: tuple[str, ...] = ()

    @property
    def changed(self) -> int:
        """The time at which its file was last written, in nanoseconds; part of keys of caches."""
        if not self.file:
            return 0
        return os.stat(self.file).st_mtime_ns

    @property
    def text(self) -> str:
        if not self.file:
            return ""
        return _read(self.file, self.changed)

    @property
    def bindings(self) -> dict[str, Binding]:
        """The names that this module binds; ``binding`` has all of a class or a function."""
        return _bindings(self, self.changed).names

    def binding(self, name: str) -> Binding | None:
        """The meaning that this module gives to a name; None where it binds no such name."""
        binding = self.bindings.get(name)
        if self.file and isinstance(binding, ast.ClassDef | Function):
            return _parse_block(self.file, self.changed, binding)
        return binding

    @property
    def stars(self) -> list[str]:
        """The modules that this one imports with a star."""
        return _bindings(self, self.changed).stars

    @property
    def tree(self) -> ast.Module:
        if self.file:
            return _parse(self.file, self.changed)
        return ast.Module([], [])


@dataclass(frozen=True)
class Outline:
    """A module whose classes and functions are only named in its tree, to be parsed when asked."""

    tree: ast.Module
    blocks: dict[int, str]  # the source of those by the lines on which they begin


@dataclass(frozen=True)
class Definition:
    """The meaning of a name."""

    module: Module
    name: str
    # A class, a function or another expression; None where there is nothing to read.
    node: Any = None
    owner: "Definition | None" = None  # the class through which a method was reached

    @property
    def home(self) -> str:
        """The dotted name under which it is defined, whatever name led here."""
        return f"{self.module.name}.{self.name}"


def once_of_libraries(read: Callable[[str], Answer]) -> Callable[[str], Answer]:
    """A function of dotted names that remembers its answers for libraries, which do not change."""
    remembered = functools.lru_cache(maxsize=1024)(read)

    @functools.wraps(read)
    def answer(target: str) -> Answer:
        if target.partition(".")[0] in LIBRARY_PACKAGES:
            return remembered(target)
        return read(target)

    return answer


@once_of_libraries
def find_definition(target: str) -> Definition | Module | None:
    """The definition (or module) that a dotted name leads to; None where there is no such name."""
    top, *names = target.split(".")
    place: Definition | Module | None = find_module(top)
    for name in names:
        if place is None or not name.isidentifier():
            return None
        if isinstance(place, Module):
            place = look_up(name, place)
        else:
            place = member(name, place)
    return place


def find_module(name: str) -> Module | None:
    """The module of this dotted name, or None. Imports nothing, not even its parents."""
    top, *parts = name.split(".")
    if not top.isidentifier():
        return None
    module = _find_top(top)
    for part in parts:
        module = _submodule(module, part) if module else None
    return module


@once_of_libraries
def _find_top(name: str) -> Module | None:
    """The module or package of a name without dots, which is found and not imported."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
    if spec is None:
        # The folder of the command is not on the path of a console script.
        return _submodule(Module("", folders=(os.getcwd(),)), name)
    is_source = spec.origin is not None and spec.origin.endswith(".py")
    file = Path(str(spec.origin)) if is_source else None
    return Module(name, file, tuple(spec.submodule_search_locations or ()))


def look_up(
    name: str, module: Module, submodules: bool = True, visited: frozenset[str] = frozenset()
) -> Definition | Module | None:
    """The meaning of a name inside a module; None where it has none.

    ``visited`` holds the names that led here, as ``module:name``.
    """
    key = f"{module.name}:{name}"
    if key in visited:  # ``from torch import optim`` inside torch means the submodule
        return _submodule(module, name) if submodules else None
    visited |= {key}
    if module.file is None and not module.folders:
        return Definition(module, name)
    binding = module.binding(name)
    if binding is not None:
        return _follow_binding(name, binding, module, visited)
    submodule = _submodule(module, name) if submodules else None
    if submodule is not None:
        return submodule

    def rank(star: str) -> int:
        if not _is_likely(name, star):
            return 0
        return -len(star.rpartition(".")[2])

    # Modules that are called like the name come first, and of these those with a longer name.
    for star in sorted(module.stars, key=rank):
        source = find_module(star)
        if source and (name in source.text or "import *" in source.text):
            definition = look_up(name, source, False, visited)
            if definition is not None:
                return definition
    return Definition(module, name) if DYNAMIC.search(module.text) else None


def _follow_binding(
    name: str, binding: Binding, module: Module, visited: frozenset[str]
) -> Definition | Module | None:
    """The definition behind an import, an alias or a definition that a module binds to a name."""
    definition: Definition | Module | None = None
    if isinstance(binding, Import):
        source = find_module(binding.module)
        if source is None:  # an optional library that is not installed
            return Definition(Module(binding.module), binding.name or name)
        if not binding.name:
            return source
        return look_up(binding.name, source, True, visited)
    if isinstance(binding, ast.Name) and binding.id != name:
        definition = look_up(binding.id, module, True, visited)
    elif isinstance(binding, ast.Attribute):
        definition = resolve_expression(binding, module)
    return definition or Definition(module, name, binding)


def member(name: str, owner: Definition) -> Definition | None:
    """The meaning of an attribute of a class, its bases included; None where there is none."""
    unreadable = Definition(owner.module, f"{owner.name}.{name}")
    if owner.node is None or isinstance(owner.node, ast.expr):
        return unreadable
    if not isinstance(owner.node, ast.ClassDef):
        return None
    node = _collect(owner.node.body, owner.module).names.get(name)
    if node is not None and not isinstance(node, Import):
        return Definition(owner.module, f"{owner.name}.{name}", node, owner)
    for base in bases(owner):
        if base is None:
            return unreadable
        inherited = member(name, base)
        if inherited:
            reached_through = owner if inherited.owner else None
            return Definition(inherited.module, inherited.name, inherited.node, reached_through)
    return None


def has_method(target: object, name: str) -> bool:
    """True for a dotted name of a class that is seen to have a method of this name."""
    definition = find_definition(target) if isinstance(target, str) else None
    if not isinstance(definition, Definition):
        return False
    method = member(name, definition)
    return method is not None and method.node is not None


def bases(owner: Definition) -> Iterator[Definition | None]:
    """The classes that a class names as its bases; None for one that cannot be read."""
    if not isinstance(owner.node, ast.ClassDef):
        return
    for expression in owner.node.bases:
        if last_name(expression) in ("object", "Generic", "Protocol", "ABC"):
            continue
        base = resolve_expression(expression, owner.module)
        is_class = isinstance(base, Definition) and isinstance(base.node, ast.ClassDef)
        yield base if isinstance(base, Definition) and is_class else None


def resolve_expression(expression: ast.expr, module: Module) -> Definition | Module | None:
    """The definition that a name, dotted or subscripted expression in a module refers to."""
    match expression:
        case ast.Name(id=name):
            return look_up(name, module)
        case ast.Attribute(value=value, attr=name):
            owner = resolve_expression(value, module)
            if owner is None:
                return None
            if isinstance(owner, Module):
                return look_up(name, owner)
            return member(name, owner)
        case ast.Subscript(value=value):
            return resolve_expression(value, module)
    return None


def public_names(target: str, like: str = "") -> list[str]:
    """The names that a module or class offers, for a did-you-mean.

    ``like`` is the name that was looked for.
    """
    definition = find_definition(target)
    names: set[str] = set()
    if isinstance(definition, Module):
        names = set(definition.bindings)
        for star in definition.stars:
            if _is_likely(like, star) or len(definition.stars) < MAX_STARS:
                names |= set(public_names(star, like))
        for folder in definition.folders:
            for path in Path(folder).iterdir():
                if path.suffix == ".py" or (path / "__init__.py").is_file():
                    names.add(path.stem)
    elif definition is not None and isinstance(definition.node, ast.ClassDef):
        names = set(_collect(definition.node.body, definition.module).names)
        for base in bases(definition):
            if base is not None:
                names |= set(public_names(base.home))
    return sorted(name for name in names if not name.startswith("_"))


def names_by_subpackage(package: str) -> Iterator[list[str]]:
    """The full names that each package below another one offers."""
    for name in public_names(package):
        subpackage = f"{package}.{name}"
        yield [f"{subpackage}.{inner}" for inner in public_names(subpackage)]


def last_name(expression: ast.expr | None) -> str:
    """``Config`` of ``Config``, ``a.Config``, ``Config[int]`` and ``Config()``; else nothing."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return last_name(inner)
    return ""


def _submodule(module: Module, name: str) -> Module | None:
    """The module or package of this name in the folders of a package; None where there is none.

    As Python does, it prefers a package to a module, and takes a folder without ``__init__.py``
    for a package. Here such a folder has to hold source.
    """
    dotted = f"{module.name}.{name}".lstrip(".")
    for folder in module.folders:
        path = os.path.join(folder, name)
        package_file = os.path.join(path, "__init__.py")
        if os.path.isfile(package_file):
            return Module(dotted, Path(package_file), (path,))
        if os.path.isfile(f"{path}.py"):
            return Module(dotted, Path(f"{path}.py"))
        if any(os.path.isfile(path + suffix) for suffix in EXTENSION_SUFFIXES):
            return Module(dotted)
        if os.path.isdir(path):
            has_source = any(file.endswith(".py") for file in os.listdir(path))
            if has_source:
                return Module(dotted, None, (path,))
    return None


@functools.lru_cache(maxsize=4096)
def _read(file: Path, changed: int) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def parse_module(text: str) -> ast.Module | None:
    """The tree of a module, or None where its syntax is wrong: the import reports this better."""
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(text)
    return None


@functools.lru_cache(maxsize=256)
def _parse(file: Path, changed: int) -> ast.Module:
    """The tree of a file, with the right line numbers, but without the bodies of most methods."""
    text = _read(file, changed)
    return parse_module(without_bodies(text)) or parse_module(text) or ast.Module([], [])


@functools.lru_cache(maxsize=4096)
def _read_outline(file: Path, changed: int) -> Outline:
    """The outline of a file, for most of what it defines is never asked for."""
    text = _read(file, changed)
    blocks: dict[int, str] = {}
    parts = []
    line = 1
    end = 0
    for match in BLOCK.finditer(text):
        before = text[end : match.start()]
        block = match[0]
        if _cuts_text(before) or _cuts_text(block):
            return Outline(_parse(file, changed), {})
        line += before.count("\n")
        blocks[line] = block
        kind, name = match.groups()
        stub = f"class {name}: ..." if kind == "class" else f"def {name}(): ..."
        lines = block.count("\n")
        parts += [before, stub, "\n" * lines]
        line += lines
        end = match.end()
    parts.append(text[end:])
    outline = "".join(parts)
    tree = parse_module(without_bodies(outline)) or parse_module(outline)
    if tree is None:
        return Outline(_parse(file, changed), {})
    for statement in tree.body:
        # A decorator that was not taken for a part of its block.
        if isinstance(statement, ast.ClassDef | Function) and statement.decorator_list:
            return Outline(_parse(file, changed), {})
    return Outline(tree, blocks)


def _cuts_text(part: str) -> bool:
    """True for a part of a module that may begin or end within a text of several lines."""
    return part.count('"""') % 2 == 1 or part.count("'''") % 2 == 1


@functools.lru_cache(maxsize=4096)
def _parse_block(
    file: Path, changed: int, binding: ast.ClassDef | Function
) -> ast.ClassDef | Function | None:
    """All of a class or function that may only be named in the outline of its file.

    None where the file is no Python.
    """
    block = _read_outline(file, changed).blocks.get(binding.lineno)
    if block is None:  # it stands below an ``if``, and is there
        return binding
    above = "\n" * (binding.lineno - 1)
    tree = parse_module(above + without_bodies(block)) or parse_module(above + block)
    statements = tree.body if tree else _parse(file, changed).body
    for statement in statements:
        if isinstance(statement, ast.ClassDef | Function) and statement.name == binding.name:
            return statement
    return None


def without_bodies(text: str, kept: str | None = None) -> str:
    """The text of a module, line by line as it was, but without the bodies of most methods.

    Parsing those would take two thirds of the time. Bodies that contain ``kept`` stay.
    """

    def without_body(method: re.Match[str]) -> str:
        indent, head, body = method.groups()
        if kept is not None and kept in body:
            return method[0]
        lines = body.count("\n") + 1
        return f"{indent}{head} ..." + "\n" * lines

    return METHOD.sub(without_body, text)


@functools.lru_cache(maxsize=4096)
def _bindings(module: Module, changed: int) -> Bindings:
    tree = _read_outline(module.file, changed).tree if module.file else module.tree
    return _collect(tree.body, module)


def _collect(body: list[ast.stmt], module: Module) -> Bindings:
    """The names that a block binds, and its star imports; the first branch of an ``if`` wins."""
    bindings = Bindings()
    names = bindings.names
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names[node.name] = node
            case ast.Import() | ast.ImportFrom():
                _collect_imports(node, module, bindings)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                is_defined = isinstance(names.get(name), ast.ClassDef | Function)
                # ``Model = decorate(Model)`` is still that class for our purposes.
                if not (is_defined and isinstance(value, ast.Call)):
                    names[name] = value
            case ast.If() | ast.Try() | ast.With():
                _collect_branches(node, module, bindings)
    return bindings


def _collect_imports(
    statement: ast.Import | ast.ImportFrom, module: Module, bindings: Bindings
) -> None:
    """Add the names that an import binds in a module."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:  # ``import a.b`` binds a, ``import a.b as c`` binds a.b
            imported = alias.name if alias.asname else alias.name.partition(".")[0]
            bindings.names[alias.asname or imported] = Import(imported)
        return
    source = imported_module(statement, module)
    for alias in statement.names:
        if alias.name == "*":
            bindings.stars.append(source)
        else:
            bindings.names[alias.asname or alias.name] = Import(source, alias.name)


def _collect_branches(
    statement: ast.If | ast.Try | ast.With, module: Module, bindings: Bindings
) -> None:
    """Add what the blocks of a statement bind.

    The first block wins over what came before it, the others do not.
    """
    first = _collect(statement.body, module)
    bindings.names |= first.names
    bindings.stars += first.stars
    blocks = []
    if isinstance(statement, ast.If | ast.Try):
        blocks.append(statement.orelse)
    if isinstance(statement, ast.Try):
        blocks += [handler.body for handler in statement.handlers]
        blocks.append(statement.finalbody)
    for block in blocks:
        branch = _collect(block, module)
        for name, binding in branch.names.items():
            bindings.names.setdefault(name, binding)
        bindings.stars += branch.stars


def imported_module(node: ast.ImportFrom, module: Module) -> str:
    """The module that an import names.

    Its first dot is the package of its module, or that module where it is a package.
    """
    if not node.level:
        return node.module or ""
    package = module.name if module.folders else module.name.rpartition(".")[0]
    parents = package.split(".")
    parts = parents[: len(parents) - node.level + 1]
    if node.module:
        parts.append(node.module)
    return ".".join(parts)


def _is_likely(name: str, star: str) -> bool:
    """True where ``Qwen2Config`` may well come from ``...models.qwen2``."""
    last = star.rpartition(".")[2]
    stem = re.sub(r"\W|_", "", last).lower()
    return bool(stem) and name.lower().startswith(stem)
