"""Every cell of the table of parts and trainers in conf/PARTS.md is composed and checked."""

import itertools
import re
from pathlib import Path

import pytest
from needs import needed

from runner.errors import ConfigError
from runner.launch.compose.stages import compose_runs

TEXT = (Path(__file__).parent.parent / "conf" / "PARTS.md").read_text(encoding="utf-8")
BEST = (
    *("trainer.args.eval_strategy=steps", "trainer.args.save_strategy=steps"),
    *("trainer.args.load_best_model_at_end=true", "trainer.args.metric_for_best_model=eval_loss"),
)
# What stands in a row of the table, as a user would type it; of a loss one that fits the trainer.
WORDS = {
    "reward": ("reward=length",),
    "loss": (
        "loss=focal",
        "loss=length_normalised",
        "loss=margin",
        "loss._target_=steps.of_scores",
        "loss._target_=steps.of_rows",
        "loss._target_=steps.of_advantages",
    ),
    "weight": ("weight=answers",),
    "metric of sampled answers": ("metric=exact",),
    "metric of tokens": ("metric=perplexity",),
    "metric of scores": ("metric=auc",),
    "optimizer": ("optimizer=adamw",),
    "callback": ("callback=early_stopping",),
    "peft": ("peft=lora",),
    "template": ("template=hermes",),
    "collator": ("collator=buckets",),
    "dataset.map": ("dataset.map._target_=steps.keep",),
}
STEPS = """
def keep(row):
    return row


def of_scores(chosen_rewards, rejected_rewards):
    return rejected_rewards - chosen_rewards


def of_rows(logps, ref_logps):
    return ref_logps - logps


def of_advantages(log_probs, old_log_probs, advantages, mask):
    return -advantages * (log_probs - old_log_probs).exp()
"""


def split_row(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def cells():
    """Each cell of the table as (kind, trainer, whether it says yes)."""
    table = next(part for part in re.split(r"\n\n", TEXT) if part.startswith("| part | sft"))
    head, _, *lines = table.splitlines()
    head_cells = split_row(head)
    for kind, *row in map(split_row, lines):
        for names, cell in zip(head_cells[1:], row, strict=True):
            for trainer in names.split(", "):
                yield kind.replace("`", ""), trainer, cell == "yes" or trainer in cell


CELLS = list(cells())


@pytest.fixture
def steps(tmp_path, monkeypatch):
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def refused(trainer, part):
    """The faults of a trainer with a part."""
    words = [f"trainer={trainer}", "model=tiny", "allow=[steps]", part]
    words += needed(trainer)
    words += BEST if part.startswith("callback") else []
    try:
        compose_runs(words)
    except ConfigError as error:
        return error.faults
    return []


@pytest.mark.dear("each trainer is composed with each loss until one fits")
@pytest.mark.grid(1)
@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.slow
def test_a_cell_says_what_the_command_does(steps, kind):
    rows = [(trainer, verdict) for row, trainer, verdict in CELLS if row == kind]
    assert len(rows) == 12
    for trainer, fits in rows:
        faults_of_words = []
        for part in WORDS[kind]:
            faults_of_words.append(refused(trainer, part))
            if not faults_of_words[-1]:
                break
        assert ([] in faults_of_words) == fits, (kind, trainer, faults_of_words)
        # A fault comes before anything loads, under the key of the part.
        group = kind.split()[0].split(".")[0]
        for fault in itertools.chain(*faults_of_words):
            assert fault.where.startswith(group), fault


def test_every_kind_is_in_the_table():
    assert {kind for kind, _, _ in CELLS} == set(WORDS)
