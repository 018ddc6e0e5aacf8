"""The menu, globbed: every option composes and passes the check, and every run line is a command that composes."""

import shlex
from pathlib import Path

import pytest

from runner.__main__ import read_command_line
from runner.io.files import MENU
from runner.launch.axis import combinations
from runner.launch.stages import compose_runs

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
