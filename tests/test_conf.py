"""The menu, globbed: every option composes and passes the check, and every run line is a command that composes."""

import re
import shlex
from pathlib import Path

import pytest

from runner.__main__ import read_command_line
from runner.errors import ConfigError
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


NEXT_MONTH = """
from dataclasses import dataclass
from transformers import Trainer, TrainingArguments

@dataclass
class NextConfig(TrainingArguments):
    beta: float = 0.1
    sharpness: float = 2.0

class NextTrainer(Trainer):
    def __init__(
        self, model=None, args: NextConfig = None, train_dataset=None, eval_dataset=None, processing_class=None,
        callbacks=None, reward_funcs=None, peft_config=None
    ):
        ...
"""
NEXT_YAML = """# @package _global_
learning_rate: 1e-6
kl_coef: 0.1
trainer:
  _target_: next_month.NextTrainer
  form: prompt
  head: lm
  args:
    _target_: next_month.NextConfig
    learning_rate: ${learning_rate}
    beta: ${kl_coef}
"""


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["reward=length", "kl_coef=0.2", "trainer.args.sharpness=3", "peft=lora"], ""),
        (["reward=length", "trainer.args.sharpnes=3"], "trainer.args.sharpness=3"),
        (["reward=none"], "reward="),
        (["reward=length", "collator=buckets"], "collator=none"),
        (["reward=length", "weight=answers"], "weight=none"),
        (["reward=length", "dataset=local", "dataset.path=rows.jsonl", "dataset.form=text"], "dataset=<"),
    ],
)
def test_a_trainer_that_comes_next_month_is_one_file(tmp_path, monkeypatch, words, fix):
    """A new trainer of a new config is composed and checked like the others, from its YAML and its signature alone."""
    monkeypatch.chdir(tmp_path)
    Path("next_month.py").write_text(NEXT_MONTH)
    option = tmp_path / "folder" / "trainer" / "next.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(NEXT_YAML)
    found = []
    try:
        compose_runs(["trainer=next", "allow=[next_month]", *words], [tmp_path / "folder"])
    except ConfigError as error:
        found = error.faults
    assert [fault.fix.startswith(fix) for fault in found] == ([True] if fix else []), found
