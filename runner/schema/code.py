"""The user's code behind a part of a training: its package, and whatever else of the user's own that imports.

Caches and fingerprints go by it, because a function works otherwise as soon as anything that it calls does. What is
imported is read in the sources, as far as Python can be read: a name that is only known while the code runs is not
followed, nor is a file that the code opens.
"""

import ast
import functools
import hashlib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path

from runner.errors import is_own
from runner.io.files import sha256
from runner.schema.source import NOT_OF_THE_USER, Module, find_module, parse_module
from runner.schema.text import nodes


def packages_of(node: Mapping[str, object]) -> set[str]:
    """The packages that the targets of a configuration, or of a part of it, name."""
    return {str(inner["_target_"]).partition(".")[0] for _, inner in nodes(node)}


def find_code(packages: Iterable[str]) -> dict[str, dict[str, Path]]:
    """The source files of packages of the user's, by package and by their names, with all packages they import."""
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
                waiting += sorted(_imported_packages(file, file.stat().st_mtime_ns) - code.keys())
    return {package: code[package] for package in sorted(code)}


def code_hash(part: object) -> str:
    """A hash of the code of a function, of a partial of one, or of an object's class: an edited one is another one."""
    part = getattr(part, "func", part)
    part = part if inspect.isroutine(part) or inspect.isclass(part) else type(part)
    package = part.__module__.partition(".")[0]
    source = hash_packages([package])
    if not source and part.__module__ != "builtins":  # of a library, or loaded in a way of its own
        file = inspect.getsourcefile(part)
        source = sha256(Path(file)) if file else ""
    return f"{part.__module__}.{part.__qualname__} {source}"


def hash_packages(packages: Iterable[str]) -> str:
    """A hash of all source files of packages of the user's, and of those they import; empty where there are none."""
    digests = []
    for sources in find_code(packages).values():
        digests += [f"{name} {sha256(file)}" for name, file in sources.items()]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else ""


def _source_files(module: Module) -> dict[str, Path]:
    if not module.folders:
        return {module.file.name: module.file} if module.file else {}
    files: dict[str, Path] = {}
    for folder in map(Path, module.folders):
        for file in sorted(folder.rglob("*.py")):
            files[str(file.relative_to(folder.parent))] = file
    return files


@functools.lru_cache(maxsize=4096)
def _imported_packages(file: Path, changed: int) -> frozenset[str]:
    """The packages and modules that a file imports by an absolute name, anywhere in it, that may be the user's own."""
    packages = set()
    tree = parse_module(file.read_text(encoding="utf-8", errors="replace"))
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    own = set()
    for package in packages - NOT_OF_THE_USER:
        module = find_module(package)
        if module is None:
            continue
        places = [*module.folders, str(module.file)] if module.file else module.folders
        if any(is_own(place) for place in places):
            own.add(package)
    return frozenset(own)
