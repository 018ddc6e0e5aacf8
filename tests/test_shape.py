"""The house holds its shape: who imports whom, what stays light, what stays small."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each room imports only rooms of the lines before its own; those of one line do not know each other.
ORDER = [
    "io",
    "errors",
    "schema",
    "config",
    "run",
    "dataset model reward metric tracker loss optimizer collator report",
    "generate",
    "ppo",
    "validate training importers",
    "launch",
    "estimate",
    "command",
    "__main__",
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms.split()}
VERBS = ("launch", "command")  # the worker starts a verb by its name
HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "matplotlib")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "runner").parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms of the package that a file imports anywhere in it, by a statement or by a name in a text."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "runner":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("runner.")}
        elif isinstance(node, ast.Constant) and re.fullmatch(r"runner\.\w+\.[\w.]*", str(node.value)):
            found.add(node.value.split(".")[1])
    return found & set(LEVEL)


FILES = sorted((ROOT / "runner").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    room = room_of(path)
    for other in imports(path) - {room}:
        allowed = LEVEL[other] < LEVEL[room] or ((room, other) == VERBS and path.name == "worker.py")
        assert allowed, f"{path} imports {other}"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle():
    modules = {module_of(path) for path in FILES}
    graph = {module: set() for module in modules}
    for path in FILES:
        named = graph[module_of(path)]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = (f"{node.module}.{alias.name}" for alias in node.names)
                named |= {name if name in modules else node.module for name in inside}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        named &= modules - {module_of(path)}
    TopologicalSorter(graph).prepare()


def test_docstrings_begin_with_what_comes_out():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
                assert not re.match(r"(What|Whether|Where|Who|How|Which|That)\b", text), f"{path}: {text[:60]}"


def test_every_file_belongs_to_a_room():
    assert {room_of(path) for path in FILES} == {*LEVEL, "__init__"}


def test_every_module_says_what_lives_there():
    for path in (ROOT / "runner").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_the_door_is_light():
    light = "import sys, runner.__main__, runner.command.train, runner.run.read, runner.ppo"
    code = f"{light}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_place_builds_from_config():
    users = {path for path in FILES if "instantiate(" in path.read_text(encoding="utf-8")}
    assert users == set(), "config.build is the only one"


def test_functions_are_small():
    lengths = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                lengths.append((node.end_lineno - node.lineno + 1, f"{path}:{node.name}"))
    lengths.sort()
    assert lengths[len(lengths) // 2][0] <= 12
    assert lengths[-1][0] <= 60, lengths[-1]


def test_top_level_is_fixed():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    names = {name.split("/")[0] for name in tracked}
    visible = {name for name in names if not name.startswith(".")}
    assert visible <= {"pyproject.toml", "conf", "runner", "tests", "outputs", "README.md", "LICENSE"}
