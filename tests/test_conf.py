"""The menu, globbed: every option composes and passes the check, and every run line is a command that composes."""

import re
import shlex
from pathlib import Path

import pytest

from runner.__main__ import read_command_line
from runner.io.files import MENU
from runner.launch.axis import combinations
from runner.launch.stages import compose_runs
from runner.schema.source import find_definition

FILES = sorted(MENU.rglob("*.yaml"))


def run_lines(path: Path) -> list[str]:
    return [line.removeprefix("# run:").strip() for line in path.read_text().splitlines() if line.startswith("# run:")]


LINES = [(path, line) for path in FILES for line in run_lines(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(MENU)))
def test_every_option_says_what_it_is_and_how_to_run_it(path):
    head = path.read_text().splitlines()
    head = head[1:] if head[0].startswith("# @package") else head
    assert head[0].startswith("# ") and head[0].rstrip().endswith("."), head[0]
    assert run_lines(path), "no `# run:` line"


@pytest.mark.slow
@pytest.mark.parametrize(("path", "line"), LINES, ids=lambda value: getattr(value, "stem", None))
def test_every_run_line_composes_and_passes_the_check(path, line):
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "runner"]
    for job in combinations(read_command_line(words[3:]).overrides):
        group = path.parent.name
        for composed in compose_runs(job):
            if group not in ("conf", "experiment") and composed.choices.get(group) != path.stem:
                assert path.stem in ("none", "local", "config", *composed.choices.values())


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "experiment"], ids=lambda path: path.stem)
def test_every_experiment_says_what_it_costs_and_what_came_out(path):
    text = path.read_text()
    assert "# cost:" in text and "# result:" in text
    assert f"experiment={path.stem}" in text


def listed_names() -> set[str]:
    """The targets that conf/README.md promises; a name without dots is of the module of the one before it."""
    text = (MENU / "README.md").read_text().partition("## Names that your files may hold")[2].partition("## Changes")[0]
    found: list[str] = []
    for name in re.findall(r"`([A-Za-z][\w.]+)`", text):
        if "." in name:
            found.append(name)
        elif found:
            found.append(f"{found[-1].rpartition('.')[0]}.{name}")
    return set(found)


def test_every_target_of_the_menu_is_a_promised_name_and_every_promised_name_is_there():
    used = {name for path in FILES for name in re.findall(r"_target_: (runner\.[\w.]+)", path.read_text())}
    assert used <= listed_names()
    assert not [name for name in listed_names() if find_definition(name) is None]
