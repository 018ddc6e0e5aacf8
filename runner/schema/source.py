"""The place where a dotted name is defined, found in the installed source without importing any of it.

Names are followed the way Python would: through re-exports, ``if TYPE_CHECKING`` blocks, which lazy packages have, star
imports and aliases. Only the top-level package is asked of the import system, because that imports nothing.
"""

import ast
import contextlib
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, TypeVar

from runner.io.temporary import uncollected

# Packages whose source is nobody's own: those that a training is made of, with the runner, and those beside them.
LIBRARY_PACKAGES = frozenset({"runner", "trl", "transformers", "torch", "peft", "datasets", "accelerate", "numpy"})
NOT_OF_THE_USER = LIBRARY_PACKAGES | {*sys.stdlib_module_names, "hydra", "omegaconf", "pandas", "setuptools"}
# A module that makes names while it runs, which cannot be read; most lazy packages repeat them for type checkers.
DYNAMIC = re.compile(
    r"^def __getattr__|^ *globals\(\)(\.update\(|\[[^]]+\] = )|\A(?!.*TYPE_CHECKING).*^_import_structure\b",
    re.MULTILINE | re.DOTALL,
)
# A method that takes no ``**``, so that its body adds no argument, and whose docstring is not read: its head, its body.
METHOD = re.compile(
    r"^( +)((?:async )?def (?!__|from_)\w+\((?:[^\n*]|\*(?!\*))*"
    r"(?:(?<=[(,])\n(?:\1 (?:[^\n*]|\*(?!\*))*\n)+\1\)[^\n]*)?:)\n((?:\1 .*\n|[ \t]*\n)+)",
    re.MULTILINE,
)
Found = TypeVar("Found")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """A name that another module provides; without ``name`` it is that module itself."""

    module: str
    name: str = ""


Binding = ast.ClassDef | Function | ast.expr | Import


@dataclass(frozen=True)
class Module:
    """One module. Without ``file`` it is compiled, built in, or a folder without ``__init__``."""

    name: str
    file: Path | None = None
    folders: tuple[str, ...] = ()

    @property
    def changed(self) -> int:
        """When its file was last written, in nanoseconds: what caches go by."""
        return os.stat(self.file).st_mtime_ns if self.file else 0

    @property
    def text(self) -> str:
        return _read(self.file, self.changed) if self.file else ""

    @property
    def bindings(self) -> dict[str, Binding]:
        return _bindings(self, self.changed)[0]

    @property
    def stars(self) -> list[str]:
        """The modules that this one imports with a star."""
        return _bindings(self, self.changed)[1]

    @property
    def tree(self) -> ast.Module:
        return _parse(self.file, self.changed) if self.file else ast.Module([], [])


@dataclass(frozen=True)
class Definition:
    """The meaning of a name."""

    module: Module
    name: str
    node: Any = None  # a class or function, another expression, or None where there is nothing to read
    owner: "Definition | None" = None  # the class through which a method was reached

    @property
    def home(self) -> str:
        """The dotted name under which it is defined, whatever name led here."""
        return f"{self.module.name}.{self.name}"


def once_of_libraries(read: Callable[[str], Found]) -> Callable[[str], Found]:
    """A reading of dotted names that is done once for those of libraries, which do not change while a process runs."""
    known = functools.lru_cache(maxsize=1024)(read)

    @functools.wraps(read)
    def choose(target: str) -> Found:
        return (known if target.partition(".")[0] in LIBRARY_PACKAGES else read)(target)

    return choose


@once_of_libraries
def find_definition(target: str) -> Definition | Module | None:
    """The definition (or module) that a dotted name leads to; None where there is no such name."""
    top, *names = target.split(".")
    found: Definition | Module | None = find_module(top)
    for name in names:
        if found is None or not name.isidentifier():
            return None
        found = look_up(name, found) if isinstance(found, Module) else member(name, found)
    return found


def find_module(name: str) -> Module | None:
    """The module of this dotted name, or None. Imports nothing, not even its parents."""
    top, *rest = name.split(".")
    if not top.isidentifier():
        return None
    module = _find_top(top)
    for part in rest:
        module = _submodule(module, part) if module else None
    return module


@once_of_libraries
def _find_top(name: str) -> Module | None:
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
    if spec is None:  # perhaps in the folder of the command, which is not on the path of a console script
        return _submodule(Module("", folders=(os.getcwd(),)), name)
    file = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    return Module(name, file, tuple(spec.submodule_search_locations or ()))


def look_up(
    name: str, module: Module, submodules: bool = True, seen: frozenset[str] = frozenset()
) -> Definition | Module | None:
    """The meaning of a name inside a module; None where it has none."""
    key = f"{module.name}:{name}"
    if key in seen:  # ``from torch import optim`` inside torch means the submodule
        return _submodule(module, name) if submodules else None
    seen |= {key}
    if module.file is None and not module.folders:
        return Definition(module, name)
    if (binding := module.bindings.get(name)) is not None:
        if isinstance(binding, Import):
            if (source := find_module(binding.module)) is None:  # an optional library that is not installed
                return Definition(Module(binding.module), binding.name or name)
            return look_up(binding.name, source, True, seen) if binding.name else source
        if isinstance(binding, ast.Name) and binding.id != name:
            return look_up(binding.id, module, True, seen) or Definition(module, name, binding)
        if isinstance(binding, ast.Attribute):
            return resolve_expression(binding, module) or Definition(module, name, binding)
        return Definition(module, name, binding)
    if submodules and (submodule := _submodule(module, name)):
        return submodule
    # The stars that are named like the name come first, the longest of them before the others.
    for star in sorted(module.stars, key=lambda star: -len(star.rpartition(".")[2]) if _likely(name, star) else 0):
        source = find_module(star)
        may_bind = source and (name in source.text or "import *" in source.text)
        if source and may_bind and (found := look_up(name, source, False, seen)):
            return found
    return Definition(module, name) if DYNAMIC.search(module.text) else None


def member(name: str, owner: Definition) -> Definition | None:
    """The meaning of an attribute of a class, its bases included; None where there is none."""
    if owner.node is None or isinstance(owner.node, ast.expr):
        return Definition(owner.module, f"{owner.name}.{name}")
    if not isinstance(owner.node, ast.ClassDef):
        return None
    names, _ = _collect(owner.node.body, owner.module)
    if (node := names.get(name)) is not None and not isinstance(node, Import):
        return Definition(owner.module, f"{owner.name}.{name}", node, owner)
    for base in bases(owner):
        if base is None:
            return Definition(owner.module, f"{owner.name}.{name}")
        if found := member(name, base):
            return Definition(found.module, found.name, found.node, found.owner and owner)
    return None


def has_method(target: object, name: str) -> bool:
    """True for a dotted name of a class that is seen to have a method of this name."""
    found = find_definition(target) if isinstance(target, str) else None
    method = member(name, found) if isinstance(found, Definition) else None
    return method is not None and method.node is not None


def bases(owner: Definition) -> Iterator[Definition | None]:
    """The classes that a class names as its bases; None for one that cannot be read."""
    for expression in owner.node.bases if isinstance(owner.node, ast.ClassDef) else ():
        if last_name(expression) not in ("object", "Generic", "Protocol", "ABC"):
            found = resolve_expression(expression, owner.module)
            yield (found if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef) else None)


def resolve_expression(expression: ast.expr, module: Module) -> Definition | Module | None:
    """The definition that a name, dotted or subscripted expression in a module refers to."""
    match expression:
        case ast.Name(id=name):
            return look_up(name, module)
        case ast.Attribute(value=value, attr=name):
            if (found := resolve_expression(value, module)) is None:
                return None
            return look_up(name, found) if isinstance(found, Module) else member(name, found)
        case ast.Subscript(value=value):
            return resolve_expression(value, module)
    return None


def public_names(target: str, like: str = "") -> list[str]:
    """The names that a module or class offers, for a did-you-mean; ``like`` is the name that was looked for."""
    found, names = find_definition(target), list[str]()
    if isinstance(found, Definition):
        body = found.node.body if isinstance(found.node, ast.ClassDef) else []
        inherited = [name for base in bases(found) if base for name in public_names(base.home)]
        names = [*_collect(body, found.module)[0], *inherited]
    elif found:
        stars = [star for star in found.stars if _likely(like, star) or len(found.stars) < 20]
        names = [*found.bindings, *(name for star in stars for name in public_names(star, like))]
        entries = [entry for folder in found.folders for entry in Path(folder).iterdir()]
        names += [entry.stem for entry in entries if entry.suffix == ".py" or (entry / "__init__.py").is_file()]
    return sorted({name for name in names if not name.startswith("_")})


def last_name(expression: ast.expr | None) -> str:
    """``Config`` of ``Config``, ``a.Config``, ``Config[int]`` and ``Config()``; else nothing."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return last_name(inner)
    return ""


def _submodule(module: Module, name: str) -> Module | None:
    full = f"{module.name}.{name}".lstrip(".")
    for folder in module.folders:
        inner = os.path.join(folder, name)
        if os.path.isfile(file := os.path.join(inner, "__init__.py")):
            return Module(full, Path(file), (inner,))
        if os.path.isfile(file := f"{inner}.py"):
            return Module(full, Path(file))
        if any(os.path.isfile(inner + suffix) for suffix in EXTENSION_SUFFIXES):
            return Module(full)
        if os.path.isdir(inner) and any(name.endswith(".py") for name in os.listdir(inner)):
            return Module(full, None, (inner,))
    return None


@functools.lru_cache(maxsize=4096)
def _read(file: Path, changed: int) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def parse_module(text: str) -> ast.Module | None:
    """The tree of a module, or None where it has no valid syntax: the import reports this better, with its line."""
    with uncollected(), contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(text)
    return None


@functools.lru_cache(maxsize=256)
def _parse(file: Path, changed: int) -> ast.Module:
    """The tree of a file, at its lines, without what most methods do: that is two thirds of the time."""
    text = _read(file, changed)
    bare = METHOD.sub(lambda found: f"{found[1]}{found[2]} ..." + "\n" * (found[3].count("\n") + 1), text)
    return parse_module(bare) or parse_module(text) or ast.Module([], [])


@functools.lru_cache(maxsize=4096)
def _bindings(module: Module, changed: int) -> tuple[dict[str, Binding], list[str]]:
    return _collect(module.tree.body, module)


def _collect(body: list[ast.stmt], module: Module) -> tuple[dict[str, Binding], list[str]]:
    """The names that a block binds, and its star imports; the first branch of an ``if`` wins."""
    names: dict[str, Binding] = {}
    stars: list[str] = []
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names[node.name] = node
            case ast.Import():
                for alias in node.names:  # ``import a.b`` binds a, ``import a.b as c`` binds a.b
                    bound = alias.name if alias.asname else alias.name.partition(".")[0]
                    names[alias.asname or bound] = Import(bound)
            case ast.ImportFrom():
                source = imported_module(node, module)
                stars += [source for alias in node.names if alias.name == "*"]
                named = {alias.asname or alias.name: alias.name for alias in node.names if alias.name != "*"}
                names.update({bound: Import(source, name) for bound, name in named.items()})
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                # ``Model = decorate(Model)`` is still that class for our purposes.
                if not (isinstance(value, ast.Call) and isinstance(names.get(name), ast.ClassDef | Function)):
                    names[name] = value
            case ast.If() | ast.Try() | ast.With():
                handlers = [handler.body for handler in getattr(node, "handlers", [])]
                names.update(_collect(node.body, module)[0])
                for block in (node.body, getattr(node, "orelse", []), *handlers, getattr(node, "finalbody", [])):
                    inner, more = _collect(block, module)
                    names = inner | names
                    stars += more
    return names, stars


def imported_module(node: ast.ImportFrom, module: Module) -> str:
    """The module that an import names; its first dot is the package of its module, or that module where it is one."""
    if not node.level:
        return node.module or ""
    package = (module.name if module.folders else module.name.rpartition(".")[0]).split(".")
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


def _likely(name: str, star: str) -> bool:
    """True where ``Qwen2Config`` may well come from ``...models.qwen2``."""
    stem = re.sub(r"\W|_", "", star.rpartition(".")[2]).lower()
    return bool(stem) and name.lower().startswith(stem)
