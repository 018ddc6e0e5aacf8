"""The house holds its shape: who imports whom, what stays light, what stays small."""

import ast
import collections
import io
import itertools
import re
import subprocess
import sys
import tokenize
import traceback
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from runner.errors import ConfigError, Fault

ROOT = Path(__file__).parent.parent
# Each room imports only rooms of the lines before its own; those of one line do not know each
# other.
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
    "__init__",
]
LEVEL: dict[str, int] = {}
for level, rooms in enumerate(ORDER):
    LEVEL |= dict.fromkeys(rooms.split(), level)
VERBS = ("launch", "command")  # the worker starts a verb by its name
HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "matplotlib")
OLD_WORDS = (
    r"\b(tray|papers?|vouched|uphill|amendments?|theatre|told|cures?|cured|door|hear_loss)\b"
)

FILES = sorted((ROOT / "runner").rglob("*.py"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in TEXTS.items()}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "runner").parts[0].removesuffix(".py")


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno} {getattr(node, 'name', '')}"


# --- Who imports whom -----------------------------------------------------------------------------


def imports(path: Path) -> set[str]:
    """The rooms of the package that a file imports anywhere, by a statement or a name in a text."""
    rooms = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "runner":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("runner.")}
        elif isinstance(node, ast.Constant) and re.fullmatch(
            r"runner\.\w+\.[\w.]*", str(node.value)
        ):
            rooms.add(node.value.split(".")[1])
    return rooms & set(LEVEL)


@pytest.mark.slow
def test_imports_point_down():
    upward = []
    for path in FILES:
        room = room_of(path)
        for imported in imports(path) - {room}:
            starts_a_verb = (room, imported) == VERBS and path.name == "worker.py"
            if LEVEL[imported] >= LEVEL[room] and not starts_a_verb:
                upward.append(f"{path} imports {imported}")
    assert upward == []


@cache
def graph() -> dict[str, set[str]]:
    """The modules that each module imports anywhere in it."""
    modules = {module_of(path) for path in FILES}
    imported = {module: set() for module in modules}
    for path, tree in trees().items():
        named = imported[module_of(path)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = (f"{node.module}.{alias.name}" for alias in node.names)
                named |= {name if name in modules else node.module for name in inside}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        named &= modules - {module_of(path), "runner"}
    return imported


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle():
    """Importing a module of a package runs its ``__init__`` first, which may import in turn."""
    loaded = {module: set(imported) for module, imported in graph().items()}
    for module, circular in loaded.items():
        for parts in [target.split(".") for target in circular]:
            packages = {".".join(parts[:depth]) for depth in range(2, len(parts))} & loaded.keys()
            circular |= {
                package for package in packages if not f"{module}.".startswith(f"{package}.")
            }
    TopologicalSorter(loaded).prepare()


def test_every_file_belongs_to_a_room():
    assert {room_of(path) for path in FILES} == {*LEVEL, "__init__"}


@pytest.mark.slow
def test_the_command_line_is_light():
    """Each verb, too, except two files that only the worker imports."""
    verbs = [
        f"runner.command.{path.stem}"
        for path in FILES
        if path.parent.name == "command" and path.stem not in ("train", "_finish")
    ]
    light = ["runner.__main__", "runner.run.record", "runner.ppo", *verbs]
    code = f"import importlib, sys; [*map(importlib.import_module, {light})]"
    code += f"; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_place_builds_from_config():
    assert not [path for path, text in TEXTS.items() if "instantiate(" in text], (
        "config.build is the only one"
    )


def test_top_level_is_fixed():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    names = {name.split("/")[0] for name in tracked}
    visible = {name for name in names if not name.startswith(".")}
    assert visible <= {
        "pyproject.toml",
        "conf",
        "runner",
        "tests",
        "outputs",
        "README.md",
        "LICENSE",
    }


def test_the_map_of_changes_names_existing_files():
    text = (ROOT / "runner" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"(?:runner|conf)/[\w/<>.]*|pyproject\.toml", text)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name.split("<")[0]).exists()] == []


# --- Budgets --------------------------------------------------------------------------------------
# Each figure is a list of what counts for it, so that a failure shows where to look.


def lines() -> list[str]:
    return list(itertools.chain(*map(str.splitlines, TEXTS.values())))


def names_at_the_top() -> list[str]:
    return sorted({path.relative_to(ROOT / "runner").parts[0] for path in FILES})


def longest_import_chain() -> list[str]:
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(graph()).static_order():
        chains[module] = [
            module,
            *max((chains[target] for target in graph()[module]), key=len, default=[]),
        ]
    return max(chains.values(), key=len)


# They introduce the parts to each other.
INTRODUCERS = {"runner.training.components.assembly", "runner.launch.start_runs"}


def modules_that_import_over_15_of_ours() -> list[str]:
    counts = {module: len(imported) for module, imported in graph().items()}
    return [name for name in counts if counts[name] > 15 and name not in INTRODUCERS]


def arrows_between_rooms() -> list[str]:
    rooms = {module_of(path): room_of(path) for path in FILES}
    arrows = set()
    for module, imported in graph().items():
        arrows |= {(rooms[module], rooms[target]) for target in imported}
    return [f"{room} -> {target}" for room, target in arrows if room != target]


def nodes_of(kind) -> Iterator[tuple[Path, ast.AST]]:
    """Each node of a kind in the package, with its file."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield path, node


def private_functions_with_one_caller() -> list[str]:
    """Private functions, methods and inner functions that are used once in their file."""
    names = []
    for path, tree in trees().items():
        used = collections.Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
        inner = set()
        for function in ast.walk(tree):
            if isinstance(function, FUNCTIONS):
                inner |= {node for node in function.body if isinstance(node, FUNCTIONS)}
        for node in ast.walk(tree):
            is_private = isinstance(node, FUNCTIONS) and re.match(r"_(?!_)", node.name)
            if (is_private or node in inner) and used[node.name] <= 1:
                names.append(where(path, node))
    return names


def public_names_defined_twice() -> list[str]:
    """Functions and classes with one name in several modules, apart from the verbs' ``main`` and
    their own functions.
    """
    homes = collections.defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body if room_of(path) != "command" else ():
            if (
                isinstance(node, FUNCTIONS | ast.ClassDef)
                and not node.name.startswith("_")
                and node.name != "main"
            ):
                homes[node.name].append(str(path.relative_to(ROOT)))
    return [f"{name}: {', '.join(modules)}" for name, modules in homes.items() if len(modules) > 1]


def docstrings_that_begin_with_a_question() -> list[str]:
    """Docstrings that do not begin with what comes out."""
    question = re.compile(r"(What|Whether|Where|Who|How|Which|That)\b")
    places = []
    for path, node in nodes_of(FUNCTIONS | ast.ClassDef):
        if question.match(ast.get_docstring(node) or ""):
            places.append(where(path, node))
    return places


def functions_over_80_lines() -> list[str]:
    places = []
    for path, node in nodes_of(FUNCTIONS):
        if node.end_lineno - node.lineno >= 80:
            places.append(where(path, node))
    return places


def modules_over_600_lines() -> list[str]:
    return [str(path) for path, text in TEXTS.items() if len(text.splitlines()) > 600]


def lines_over_100_characters() -> list[str]:
    places = []
    for path, text in TEXTS.items():
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > 100:
                places.append(f"{path.relative_to(ROOT)}:{number}")
    return places


def old_words() -> list[str]:
    """Words of our own that have given way to the field's."""
    places = []
    for path, text in TEXTS.items():
        for number, line in enumerate(text.splitlines(), 1):
            places += [
                f"{path.relative_to(ROOT)}:{number} {word}"
                for word in re.findall(OLD_WORDS, line, re.I)
            ]
    return places


# Where a goal is not yet reached, the bound is today's figure; lower it with the figure.
BUDGETS = {
    names_at_the_top: 24,
    longest_import_chain: 13,
    modules_that_import_over_15_of_ours: 0,
    arrows_between_rooms: 120,
    private_functions_with_one_caller: 13 * len(lines()) // 1000,
    public_names_defined_twice: 0,
    docstrings_that_begin_with_a_question: 0,
    functions_over_80_lines: 0,
    modules_over_600_lines: 0,
    lines_over_100_characters: 0,
    old_words: 0,
}


# --- Density --------------------------------------------------------------------------------------
# How much a reader must take in at once: figures per line, statement or name, with their bounds.
# Nothing is folded to save lines, nor split to please a figure.

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
SYNTAX = ast.expr | ast.stmt | ast.comprehension | ast.keyword | ast.arg
# Statements that hold others, and imports.
COMPOUND = FUNCTIONS | ast.ClassDef | ast.If | ast.For | ast.While | ast.With | ast.Try
COMPOUND |= ast.Import | ast.ImportFrom
# Names that say that something was encountered, not what it is.
VAGUE_NAMES = set(
    [
        "each",
        "found",
        "own",
        "known",
        "given",
        "whole",
        "said",
        "other",
        "others",
        "seen",
        "taken",
        "left",
        "kept",
        "one",
        "of",
        "at",
        "here",
        "there",
        "more",
    ]
)


def docstring_lines(path: Path) -> set[int]:
    numbers = set()
    for node in ast.walk(trees()[path]):
        has_docstring = isinstance(node, FUNCTIONS | ast.ClassDef | ast.Module)
        if has_docstring and ast.get_docstring(node) is not None:
            numbers |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return numbers


@cache
def lines_of_code(path: Path) -> frozenset[int]:
    """The numbers of the lines that hold more than a comment or a docstring."""
    numbers = set()
    for token in tokenize.generate_tokens(io.StringIO(TEXTS[path]).readline):
        if token.type in (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP):
            numbers |= set(range(token.start[0], token.end[0] + 1))
    return frozenset(numbers - docstring_lines(path))


@cache
def syntax() -> list[ast.AST]:
    """All nodes of all files."""
    return list(itertools.chain(*map(ast.walk, trees().values())))


def per_1000_lines(count: int) -> float:
    return 1000 * count / sum(len(lines_of_code(path)) for path in FILES)


def syntax_nodes_per_line() -> float:
    return per_1000_lines(sum(isinstance(node, SYNTAX) for node in syntax())) / 1000


def statement_sizes() -> list[int]:
    """The expression nodes of each statement that holds no other, the smallest first."""
    sizes = []
    for node in syntax():
        if isinstance(node, ast.stmt) and not isinstance(node, COMPOUND):
            sizes.append(sum(isinstance(inner, ast.expr) for inner in ast.walk(node)))
    return sorted(sizes)


def median_statement() -> float:
    sizes = statement_sizes()
    return sizes[len(sizes) // 2]


def statement_at_90_percent() -> float:
    sizes = statement_sizes()
    return sizes[len(sizes) * 9 // 10]


def conditional_expressions() -> float:
    return per_1000_lines(sum(isinstance(node, ast.IfExp) for node in syntax()))


def comprehensions() -> float:
    return per_1000_lines(sum(isinstance(node, COMPREHENSIONS) for node in syntax()))


def comprehensions_inside_others() -> float:
    inner = set()
    for node in syntax():
        if isinstance(node, COMPREHENSIONS):
            inner |= {n for n in ast.walk(node) if isinstance(n, COMPREHENSIONS) and n is not node}
    return per_1000_lines(len(inner))


def assignments_in_expressions() -> float:
    return per_1000_lines(sum(isinstance(node, ast.NamedExpr) for node in syntax()))


def uses_of_any() -> float:
    return per_1000_lines(sum(isinstance(n, ast.Name) and n.id == "Any" for n in syntax()))


def percent_of_pairs() -> float:
    """Assignments such as ``a, b = x, y``."""
    assignments = [node for node in syntax() if isinstance(node, ast.Assign)]
    pairs = [node for node in assignments if isinstance(node.value, ast.Tuple)]
    unpacked = [node for node in pairs if isinstance(node.targets[0], ast.Tuple)]
    return 100 * len(unpacked) / len(assignments)


def percent_of_vague_names() -> float:
    bound = []
    for node in syntax():
        if isinstance(node, ast.arg):
            bound.append(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.append(node.id)
    return 100 * sum(name in VAGUE_NAMES for name in bound) / len(bound)


DENSITIES = {
    syntax_nodes_per_line: 5.2,
    median_statement: 6,
    statement_at_90_percent: 13,
    conditional_expressions: 20,
    comprehensions: 30,
    comprehensions_inside_others: 0.5,
    assignments_in_expressions: 0.5,
    uses_of_any: 10,
    percent_of_pairs: 1,
    percent_of_vague_names: 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("figure", DENSITIES, ids=lambda figure: figure.__name__)
def test_the_code_is_not_dense(figure):
    value = round(figure(), 2)
    print(f"{figure.__name__.replace('_', ' ')}: {value} (at most {DENSITIES[figure]})")
    assert value <= DENSITIES[figure]


@pytest.mark.quick(4)
@pytest.mark.parametrize("figure", BUDGETS, ids=lambda figure: figure.__name__)
def test_a_budget_holds(figure):
    measured = figure()
    print(f"{figure.__name__.replace('_', ' ')}: {len(measured)} (at most {BUDGETS[figure]})")
    assert len(measured) <= BUDGETS[figure], "\n".join(map(str, measured[-200:]))


@pytest.mark.slow
def test_functions_are_small():
    lengths = sorted(node.end_lineno - node.lineno + 1 for _, node in nodes_of(FUNCTIONS))
    assert lengths[len(lengths) // 2] <= 12


@pytest.mark.slow
def test_a_part_of_the_lines_explains():
    """Docstrings and comments, a line each however many tokens stand on it."""
    count = 0
    for path, text in TEXTS.items():
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        explained = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
        for node in ast.walk(trees()[path]):
            if isinstance(node, FUNCTIONS | ast.ClassDef | ast.Module) and ast.get_docstring(node):
                explained |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        count += len(explained)
    print(f"docstrings and comments: {count / len(lines()):.1%} of the lines (at least 15 %)")
    assert count >= 0.15 * len(lines())


@pytest.mark.slow
def test_a_training_is_few_calls_below_the_command_line(train, monkeypatch):
    """Own frames from the command line to ``trainer.train()``; at most 9."""
    import transformers

    stacks = []

    def stop(self, *args, **named):
        stacks.append(
            [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_stack()]
        )
        raise ConfigError(Fault("trainer", "seen enough"))

    monkeypatch.setattr(transformers.Trainer, "train", stop)
    assert (
        train("trainer=sft", "metric=none", "dataset.limit.train=32", "dataset.limit.eval=8").code
        == 2
    )
    frames = [frame for frame in stacks[0] if frame.startswith(str(ROOT / "runner"))]
    print(f"own frames above trainer.train(): {len(frames)} (at most 9)")
    assert len(frames) <= 9, "\n".join(frames)


def test_every_module_has_a_docstring():
    assert not [path for path, tree in trees().items() if not ast.get_docstring(tree)]


@pytest.mark.dear("all types are checked")
@pytest.mark.slow
def test_the_types_are_right(tmp_path):
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_of_the_package_is_ignored():
    """A wheel leaves out what git ignores, and so does ruff."""
    names = [str(path.relative_to(ROOT)) for path in FILES]
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", *names], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == []
