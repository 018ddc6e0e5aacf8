"""The user's code behind a part of a training: its package, and what that imports of theirs.

Caches and fingerprints include it, because a function changes as soon as anything that it calls
does. Imports are read in the sources, as far as Python can be read: a name that is only known while
the code runs is not followed, nor is a file that the code opens.
"""

import ast
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from runner.io.files import sha256
from runner.io.own_code import is_own
from runner.schema.source import (
    NOT_OF_THE_USER,
    Module,
    find_module,
    imported_module,
    parse_module,
)
from runner.schema.text import nodes


def packages_of(node: Mapping[str, object]) -> set[str]:
    """The packages that the targets of a configuration, or of a part of it, name."""
    packages = set()
    for _, part in nodes(node):
        package, _, _ = str(part["_target_"]).partition(".")
        packages.add(package)
    return packages


def find_code(packages: Iterable[str]) -> dict[str, dict[str, Path]]:
    """The source files of the user's packages, and of all packages that they import.

    By package, then by the name of a file in it.
    """
    code: dict[str, dict[str, Path]] = {}
    waiting = sorted(packages)
    while waiting:
        package = waiting.pop(0)
        if package in code or package in NOT_OF_THE_USER:
            continue
        module = find_module(package)
        code[package] = _source_files(module) if module else {}
        for file in code[package].values():
            if is_own(file):  # an installed package imports no code of the user's
                imported = _imported_packages(file, file.stat().st_mtime_ns)
                waiting += sorted(imported - code.keys())
    return {package: code[package] for package in sorted(code)}


def code_hash(part: object) -> str:
    """A name with a hash of the code of a function, a partial of one, or an object's class.

    It changes when any source file of its package, or of a package that this imports, does.
    """
    code = getattr(part, "func", part)
    if not inspect.isroutine(code) and not inspect.isclass(code):
        code = type(code)
    module = code.__module__
    package, _, _ = module.partition(".")
    source = hash_packages([package])
    if not source and module != "builtins":  # of a library, or loaded in a special way
        file = inspect.getsourcefile(code)
        if file:
            source = sha256(Path(file))
    return f"{module}.{code.__qualname__} {source}"


def arguments_of(call: Callable[..., object]) -> frozenset[str] | None:
    """The names of the arguments that a part asks for; None if ``**kwargs`` asks for all."""
    parameters = inspect.signature(call).parameters
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return None
    return frozenset(parameters)


def hash_packages(packages: Iterable[str]) -> str:
    """A hash of all source files that ``find_code`` finds; empty where there are none."""
    digests = []
    for sources in find_code(packages).values():
        for name, file in sources.items():
            digests.append(f"{name} {sha256(file)}")
    if not digests:
        return ""
    listed = "\n".join(digests)
    return hashlib.sha256(listed.encode()).hexdigest()


def _source_files(module: Module) -> dict[str, Path]:
    """The source files of a module, or of a package with all below it, by their names in it."""
    files: dict[str, Path] = {}
    if not module.folders and module.file:
        files[module.file.name] = module.file
    for folder in map(Path, module.folders):
        for file in sorted(folder.rglob("*.py")):
            name = file.relative_to(folder.parent)
            files[str(name)] = file
    return files


@functools.lru_cache(maxsize=4096)
def _imported_packages(file: Path, changed: int) -> frozenset[str]:
    """The packages of the user's that a file imports by an absolute name, anywhere in it."""
    tree = parse_module(file.read_text(encoding="utf-8", errors="replace"))
    if tree is None:
        return frozenset()
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    packages = {name.partition(".")[0] for name in names}
    return frozenset(filter(_is_users_package, packages - NOT_OF_THE_USER))


def _is_users_package(package: str) -> bool:
    module = find_module(package)
    return module is not None and _is_of_user(module)


def _is_of_user(module: Module) -> bool:
    """True for a module whose file, or one of whose folders, is the user's own."""
    paths = [path for path in (module.file, *module.folders) if path]
    return any(is_own(path) for path in paths)


def find_absent_imports(
    name: str, place: str = "", visited: set[str] | None = None
) -> Iterator[tuple[str, str]]:
    """The place and the name of each absent module that the user's own files import with this one.

    Under an ``if`` or a ``try`` it may be meant to be absent; a file that changes ``sys.path`` is
    believed.
    """
    visited = set() if visited is None else visited
    words = name.split(".")
    for size in range(1, len(words) + 1):
        part = ".".join(words[:size])
        module = find_module(part)
        is_new = part not in visited
        visited.add(part)
        if module is None:
            if is_new and "sys.path" not in visited:
                yield place, part
            return
        if not _is_of_user(module):
            # Of another's package only the first name counts: it may make the others itself.
            return
        if "sys.path" in module.text:
            visited.add("sys.path")
        if not is_new:
            continue
        for node in module.tree.body:
            place_of_import = f"{module.file}:{node.lineno}"
            for imported in _list_imports(node, module):
                yield from find_absent_imports(imported, place_of_import, visited)


def _list_imports(node: ast.stmt, module: Module) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [imported_module(node, module)]
    return []
