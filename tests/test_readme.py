"""The READMEs are true.

Their commands compose, their tables agree with the code, the first screen is short.
"""

import ast
import itertools
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from laid import jobs_of

from runner.__main__ import main
from runner.command._option import options_of, split_options
from runner.command._words import read_command_line
from runner.config.choice import find_choice_faults
from runner.config.composition import compose
from runner.config.menu import read_menu
from runner.config.override import parse
from runner.dataset.form import FORMS_FOR
from runner.errors import RunnerError
from runner.launch.compose.stages import compose_runs
from runner.run.folder import write_config

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "conf").rglob("*.md")),
    *sorted((ROOT / "runner").rglob("[A-Z]*.md")),
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "fault" / "README.md",
]
FIRST, *OTHERS = (page.read_text(encoding="utf-8") for page in PAGES)
TEXT = "\n".join([FIRST, *OTHERS])
OF_A_PAGE = 3  # commands of each other page that the suite composes


def lines_of_blocks(text):
    """The lines that pages have for a shell."""
    blocks = re.findall(r"```bash\n(.*?)```", text.replace("\\\n", ""), re.S)
    return "\n".join(blocks).splitlines()


def commands_of(text):
    """The commands in the blocks of a page."""
    lines = [line for line in lines_of_blocks(text) if "python -m runner" in line]
    return [line.rpartition("&& ")[2].partition(" | ")[0] for line in lines]


def commands_of_pages():
    """All commands of the first page and a few of each other one, and then the rest."""
    first = commands_of(FIRST)
    others = []
    for page in OTHERS:
        commands = commands_of(page)
        first += commands[:OF_A_PAGE]
        others += commands[OF_A_PAGE:]
    first = list(dict.fromkeys(first))
    return first, [command for command in dict.fromkeys(others) if command not in first]


LINES_OF_BLOCKS = lines_of_blocks(TEXT)
FIRST_COMMANDS, OTHER_COMMANDS = commands_of_pages()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the rows that commands name."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "2+2?", "completion": "4"}\n')


def write_experiment_files(command):
    """Write the files of experiments that a command names."""
    page = (ROOT / "conf" / "experiment" / "README.md").read_text(encoding="utf-8")
    Path("own.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.S)[1])
    shutil.copy(ROOT / "tests" / "importers" / "axolotl_dpo.yaml", "axolotl.yml")
    shutil.copy(ROOT / "tests" / "importers" / "swift_sft.sh", "train.sh")
    if "RUN/config.yaml" in command:
        write_config(Path("outputs/NAME/RUN"), compose([]).cfg)


def jobs_of_command(line):
    """The words of each run that a command starts; none if it starts none."""
    if line.inspect or line.verb not in ("preview", "rehearse", "train"):
        return []  # a missing name would not be read as a verb
    return jobs_of(split_options(line.overrides, options_of(line.verb), line.verb).overrides)


@pytest.mark.slow
def test_every_command_chooses_options_that_there_are(folder):
    menu = read_menu()
    for command in [*FIRST_COMMANDS, *OTHER_COMMANDS]:
        write_experiment_files(command)
        line = read_command_line(shlex.split(command, comments=True)[3:])
        if line.folders:
            continue
        for job in jobs_of_command(line):
            assert list(find_choice_faults(parse(job), menu)) == [], command


@pytest.mark.grid(len(FIRST_COMMANDS))
@pytest.mark.slow
@pytest.mark.parametrize("command", [*FIRST_COMMANDS, *OTHER_COMMANDS])
def test_every_command_composes_and_passes_the_check(command, capsys, folder):
    write_experiment_files(command)
    assert not set("<>") & set(command), "a shell would redirect"
    words = shlex.split(command, comments=True)[3:]
    line = read_command_line(words)
    if line.inspect:
        assert main(words) == 0
        return
    for job in jobs_of_command(line):
        assert compose_runs(job, line.folders)


def test_the_first_page_is_short():
    assert len(FIRST.split("```")[0].split()) < 120
    assert len(FIRST.splitlines()) <= 200
    assert len(FIRST.split()) <= 2000
    assert not [line for line in FIRST.splitlines() if len(line) > 120]


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page get on a forge."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_links_of_the_pages_lead_somewhere():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for link, anchor in re.findall(r"\]\(([^)#:]*)#?([^)#:]*)\)", text):
            target = page.parent / link if link else page
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in anchors(target), f"{page}: {link}#{anchor}"


def test_every_page_of_the_menu_is_in_its_index():
    index = (ROOT / "conf" / "README.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "conf").rglob("*.md")):
        place = page.relative_to(ROOT / "conf").as_posix()
        assert place == "README.md" or f"]({place})" in index, place


def test_options_named_on_the_first_page_exist():
    rows = re.findall(r"^\| ((?:`\w+=` ?)+)\| (.*) \|$", FIRST, re.M)
    menu = read_menu()
    assert rows
    for groups, options in rows:
        names = set(itertools.chain(*(menu[group] for group in re.findall(r"`(\w+)=`", groups))))
        assert set(re.findall(r"`(\w+)`", options)) <= names, groups


def test_the_error_of_the_first_page_is_what_is_printed(capsys):
    (block,) = re.findall(r"```\n\$ python -m runner (.*?)```", FIRST, re.S)
    command, _, printed = block.partition("\n")
    assert main(shlex.split(command)) == 2
    assert capsys.readouterr().err == printed


def test_the_settings_of_ppo_are_those_of_the_code():
    tree = ast.parse((ROOT / "runner" / "ppo" / "config.py").read_text(encoding="utf-8"))
    (body,) = (
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "PPOConfig"
    )
    fields = {
        node.target.id: repr(ast.literal_eval(node.value))
        for node in body
        if isinstance(node, ast.AnnAssign)
    }
    fields_of_ppo = dict(list(fields.items())[list(fields).index("total_episodes") :])
    page = (ROOT / "runner" / "ppo" / "README.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", page, re.M)) == fields_of_ppo


def test_the_exit_codes_are_those_of_the_code():
    listed = {int(code) for code in re.findall(r"^\| (\d+)", TEXT, re.M)}
    assert listed == {0, 1, 130} | {kind.code for kind in RunnerError.__subclasses__()}
    assert "| 130, 143 |" in TEXT


def test_the_table_of_rows_agrees_with_the_arrows():
    rows = {}
    for line in TEXT.splitlines():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if line.count("|") == 8 and not set(name) <= {"-"}:
            rows[name] = [bool(cell) for cell in cells[:6]]
    columns = ("demonstration", "preference", "triple", "unpaired", "messages", "prompt")
    named = {
        "preference": "preference",
        "triple: preference and `reference`": "triple",
        "prompt and completion, messages": "prompt_completion",
        "unpaired (label)": "unpaired",
        "prompt": "prompt",
        "text, or tokens (`input_ids`, perhaps `labels`)": "text",
        "tokens of a pair (`chosen_ids`, `rejected_ids`)": "token_pair",
    }
    for title, form in named.items():
        assert rows[title] == [form in FORMS_FOR[column] for column in columns], title


def test_the_test_command_is_what_ci_runs():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    command = next(line for line in LINES_OF_BLOCKS if line.endswith("pytest"))
    for part in re.sub(r"python3\.\d+", "python3", command).split(" && "):
        assert part in ci.replace(" --quiet", ""), part


def test_the_container_is_built_by_the_first_command():
    steps = (ROOT / ".devcontainer" / "Dockerfile").read_text(encoding="utf-8")
    command = next(line for line in LINES_OF_BLOCKS if line.endswith("python -m runner"))
    *build, start = command.replace("pip install", "pip install --no-cache-dir").split(" && ")
    assert f"RUN {' && '.join(build)}\n" in steps
    assert f"CMD {json.dumps(start.split())}\n" in steps
    editor = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    tested = next(line for line in LINES_OF_BLOCKS if line.endswith("pytest"))
    assert f"{editor['postCreateCommand']} && pytest" == tested


def test_every_option_group_is_in_the_table():
    groups = set(read_menu()) - {"experiment"}
    assert groups <= set(re.findall(r"`(\w+)=`", TEXT))


def test_the_python_versions_are_those_of_the_project():
    """pyproject.toml has it for pip, ruff and mypy; the pages that repeat it agree."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    tools = settings["tool"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    beyond = int(versions[-1].removeprefix("3.")) + 1
    assert project["requires-python"] == f">={versions[0]},<3.{beyond}"
    pages = [ROOT / "README.md", ROOT / "conf" / "launcher" / "README.md"]
    pages.append(ROOT / "tests" / "README.md")
    for page in pages:
        named = set(re.findall(r"[Pp]ython ?(3\.\d+)", page.read_text(encoding="utf-8")))
        assert named <= {*versions} and named, page
    assert "target-version" not in tools["ruff"]
    assert "python_version" not in tools["mypy"]


@pytest.mark.slow
def test_the_chain_of_the_first_page_runs(tmp_path, monkeypatch):
    """Each training of the block, in two steps; what comes after it is tested by its verbs."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```\n(python -m runner name=first.*?)```", FIRST, re.S)
    commands = [shlex.split(line, comments=True)[3:] for line in block.splitlines()]
    trainings = [words for words in commands if words[0].startswith("name=")]
    assert len(trainings) == 2
    few = ("trainer.args.max_steps=2", "dataset.limit.train=32", "dataset.limit.eval=4")
    for words in trainings:
        assert main([*words, *few]) == 0
