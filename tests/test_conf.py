"""Every option of the menu composes and passes the check, and every run line composes."""

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from laid import jobs_of
from needs import TRAINERS

from runner.__main__ import main
from runner.command._words import read_command_line
from runner.config.choice import find_choice_faults
from runner.config.menu import read_menu
from runner.config.override import parse
from runner.errors import ConfigError
from runner.io.files import MENU
from runner.launch.compose.stages import compose_runs
from runner.schema.read import read_signature
from runner.schema.source import find_definition
from runner.validate import libraries

sys.path.append(str(Path(__file__).parent / "fault"))

from pairs import fitting_pairs, words_of

FILES = sorted(MENU.rglob("*.yaml"))


def run_lines(path: Path) -> list[str]:
    return [
        line.removeprefix("# run:").strip()
        for line in path.read_text().splitlines()
        if line.startswith("# run:")
    ]


def all_lines() -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """The run lines of experiments and of one option of each other group, and all others."""
    first = []
    others = []
    groups = set()
    for path in FILES:
        lines = [(path, line) for line in run_lines(path)]
        if path.parent.name == "experiment" or path.parent not in groups:
            first += lines
        else:
            others += lines
        groups.add(path.parent)
    return first, others


FIRST, OTHERS = all_lines()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(MENU)))
def test_every_option_says_what_it_is_and_how_to_run_it(path):
    head = path.read_text().splitlines()
    head = head[1:] if head[0].startswith("# @package") else head
    assert head[0].startswith("# ") and head[0].rstrip().endswith("."), head[0]
    assert run_lines(path), "no `# run:` line"


@pytest.mark.slow
def test_every_run_line_chooses_options_that_there_are():
    menu = read_menu([])
    for path, line in [*FIRST, *OTHERS]:
        for job in jobs_of(read_command_line(shlex.split(line)[3:]).overrides):
            assert list(find_choice_faults(parse(job), menu)) == [], path


@pytest.mark.grid(len(FIRST))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "line"), [*FIRST, *OTHERS], ids=lambda value: getattr(value, "stem", None)
)
def test_every_run_line_composes_and_passes_the_check(path, line):
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "runner"]
    for job in jobs_of(read_command_line(words[3:]).overrides):
        group = path.parent.name
        for composed in compose_runs(job):
            if group not in ("conf", "experiment") and composed.choices.get(group) != path.stem:
                assert path.stem in ("none", "local", "config", *composed.choices.values())


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.parent.name == "experiment"], ids=lambda path: path.stem
)
def test_every_experiment_says_what_it_costs_and_what_came_out(path):
    text = path.read_text()
    assert "# cost:" in text
    assert "# result:" in text
    assert f"experiment={path.stem}" in text


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", sorted({trainer for trainer, _ in fitting_pairs()}))
def test_every_trainer_runs_as_typed_on_every_dataset_whose_rows_fit(trainer):
    """Shipped rows are trained elsewhere; ``tests/fault/pairs.py`` trains all pairs."""
    datasets = [
        dataset
        for name, dataset in fitting_pairs()
        if name == trainer and not dataset.startswith("toy")
    ]
    assert len(datasets) >= 4
    for dataset in datasets:
        (composed,) = compose_runs(words_of(trainer, dataset))
        takes_rewards = "reward_funcs" in read_signature(TRAINERS[trainer]["_target_"]).parameters
        assert bool(composed.cfg["reward"]) is takes_rewards, dataset


MISSION = ["trainer=ppo", "model=pythia_1b", "dataset=tldr"]


@pytest.mark.slow
def test_the_missions_line_needs_nothing_but_bitsandbytes(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        libraries, "find_spec", lambda name: None if name == "bitsandbytes" else find_spec(name)
    )
    assert main([*MISSION, "peft=lora", "quant=4bit"]) == 5
    stderr = capsys.readouterr().err
    assert stderr.count("found") == 1
    assert "pip install 'bitsandbytes>=" in stderr
    assert main(["trainer=grpo", "dataset=gsm8k", "quant=none", "--dry-run"]) == 0
    monkeypatch.setattr(
        libraries, "find_spec", lambda name: None if name == "math_verify" else find_spec(name)
    )
    assert main(["trainer=grpo", "dataset=gsm8k"]) == 5
    stderr = capsys.readouterr().err
    assert stderr.count("found") == 1
    assert "pip install 'math-verify>=" in stderr
    assert not Path("outputs").exists()


@pytest.mark.slow
def test_the_missions_sweep_is_four_jobs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["-m", *MISSION, "kl_coef=0.01,0.05", "learning_rate=1e-6,3e-6", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("new  ") == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ('{"question": "1+1", "answer": "2"}', "exact_match"),
        ('{"prompt": "1+1"}', "chat_model"),
        ('{"prompt": "1+1", "chosen": "2", "rejected": "3"}', "chat_model"),
    ],
)
def test_the_reward_to_type_fits_the_rows(rows, first, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{rows}\n")
    words = ["trainer=grpo", "dataset=local", f"dataset.path={file}"]
    with pytest.raises(ConfigError) as error:
        compose_runs(words)
    assert error.value.faults[0].fix == f"reward={first}"
    compose_runs([*words, error.value.faults[0].fix])


@pytest.mark.slow
def test_a_typed_reward_replaces_that_of_the_dataset():
    (composed,) = compose_runs(["trainer=grpo", "reward._target_=runner.reward.rule.length"])
    assert composed.cfg["reward"] == {"_target_": "runner.reward.rule.length"}
    with pytest.raises(ConfigError) as error:
        compose_runs(
            ["trainer=grpo", "reward=sentiment", "reward._target_=runner.reward.rule.length"]
        )
    (fault,) = error.value.faults
    (composed,) = compose_runs(
        ["trainer=grpo", "reward=sentiment", fault.fix.partition(" in place of ")[0]]
    )
    assert set(composed.cfg["reward"]) == {"sentiment", "mine"}


def listed_names() -> set[str]:
    """The targets promised in conf/PARTS.md; a name without dots is of the module before it."""
    page = (MENU / "PARTS.md").read_text()
    _, _, text = page.partition("## Names that your files may hold")
    names: list[str] = []
    for name in re.findall(r"`([A-Za-z][\w.]+)`", text):
        if "." in name:
            names.append(name)
        elif names:
            names.append(f"{names[-1].rpartition('.')[0]}.{name}")
    return set(names)


def test_targets_of_the_menu_are_promised_and_promised_names_exist():
    text = "\n".join(path.read_text() for path in FILES)
    used = set(re.findall(r"_target_: (runner\.[\w.]+)", text))
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
        self, model=None, args: NextConfig = None, train_dataset=None, eval_dataset=None,
        processing_class=None, callbacks=None, reward_funcs=None, peft_config=None
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["reward=length", "kl_coef=0.2", "trainer.args.sharpness=3", "peft=lora"], ""),
        (["reward=length", "trainer.args.sharpnes=3"], "trainer.args.sharpness=3"),
        (["reward=none"], "reward="),
        (["reward=length", "collator=buckets"], "collator=none"),
        (["reward=length", "weight=answers"], "weight=none"),
        (
            ["reward=length", "dataset=local", "dataset.path=rows.jsonl", "dataset.form=text"],
            "dataset=<",
        ),
    ],
)
def test_a_trainer_that_comes_next_month_is_one_file(tmp_path, monkeypatch, words, fix):
    """A new trainer with a new config is composed and checked from its YAML and signature alone."""
    monkeypatch.chdir(tmp_path)
    Path("next_month.py").write_text(NEXT_MONTH)
    option = tmp_path / "folder" / "trainer" / "next.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(NEXT_YAML)
    faults = []
    try:
        compose_runs(["trainer=next", "allow=[next_month]", *words], [tmp_path / "folder"])
    except ConfigError as error:
        faults = error.faults
    assert [fault.fix.startswith(fix) for fault in faults] == ([True] if fix else []), faults
