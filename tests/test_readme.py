"""The READMEs cannot lie: their commands compose_runs, their tables agree with the code, the first screen is short."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from runner import config
from runner.__main__ import main, read_command_line
from runner.command._option import split_options
from runner.command.preview import OWN
from runner.dataset.form import FORMS_FOR
from runner.errors import RunnerError
from runner.launch.axis import combinations
from runner.launch.stages import compose_runs

ROOT = Path(__file__).parent.parent
FIRST, *OTHERS = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "conf/README.md", "tests/README.md")
)
TEXT = "\n".join([FIRST, *OTHERS])
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, re.S)
COMMANDS = [line.rpartition("&& ")[2] for block in BLOCKS for line in block.splitlines() if "python -m runner" in line]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes_and_passes_the_check(command, capsys):
    words = shlex.split(command, comments=True)[3:]
    line = read_command_line(words)
    if line.inspect:
        assert main(words) == 0
        return
    if line.verb not in ("train", "preview"):
        return  # a name that does not exist would not have been taken for a verb
    words = split_options(line.overrides, OWN)[1] if line.verb == "preview" else line.overrides
    for job in combinations(words):
        assert compose_runs(job, line.folders)


def test_the_first_screen_is_short():
    assert len(FIRST.split("```")[0].split()) < 100 and len(FIRST.splitlines()) <= 200


def test_the_exit_codes_are_those_of_the_code():
    listed = {int(code) for code in re.findall(r"^\| (\d+)", TEXT, re.M)}
    assert listed == {0, 1, 130} | {kind.code for kind in RunnerError.__subclasses__()}
    assert "| 130, 143 |" in TEXT


def test_the_table_of_rows_agrees_with_the_arrows():
    rows = {
        cells[0].strip(): [bool(cell.strip()) for cell in cells[1:6]]
        for cells in (line.strip("|").split("|") for line in TEXT.splitlines() if line.count("|") == 7)
        if not set(cells[0].strip()) <= {"-"}
    }
    columns = ("demonstration", "preference", "unpaired", "messages", "prompt")
    named = {
        "preference": "preference",
        "prompt and completion, messages": "prompt_completion",
        "unpaired (label)": "unpaired",
        "prompt": "prompt",
        "text": "text",
    }
    for title, form in named.items():
        assert rows[title] == [form in FORMS_FOR[column] for column in columns], title


def test_the_test_command_is_what_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    command = next(line for block in BLOCKS for line in block.splitlines() if line.endswith("pytest"))
    for part in re.sub(r"python3\.\d+", "python3", command).split(" && "):
        assert part in ci.replace(" --quiet", ""), part


def test_every_option_group_is_in_the_table():
    groups = set(config.read_menu()) - {"experiment"}
    assert groups <= set(re.findall(r"`(\w+)=`", TEXT))


def test_the_python_versions_are_those_of_the_project():
    """pyproject.toml says it for pip, ruff and mypy; the pages that repeat it agree."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, tools = whole["project"], whole["tool"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    beyond = int(versions[-1].removeprefix("3.")) + 1
    assert project["requires-python"] == f">={versions[0]},<3.{beyond}"
    pages = [ROOT / "README.md", ROOT / "conf" / "README.md", ROOT / "tests" / "README.md"]
    for page in pages:
        named = set(re.findall(r"[Pp]ython ?(3\.\d+)", page.read_text(encoding="utf-8")))
        assert named <= {*versions} and named, page
    assert "target-version" not in tools["ruff"] and "python_version" not in tools["mypy"]
