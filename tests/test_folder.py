"""One folder, one run: a part of ``tests/fault/folder.py``."""

import random
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from folder import KINDS

from runner.run import Run
from runner.run.history import read_metrics

pytestmark = pytest.mark.slow


# ``test_sweep`` covers a dead driver.
def test_a_folder_has_one_run(tmp_path, warm):
    assert list(KINDS["starts"](tmp_path, warm, 4, random.Random(0))) == []


MOVES = """
from pathlib import Path
from transformers import TrainerCallback

class Moves(TrainerCallback):
    def __init__(self, folder, moment, levels):
        self.moment, self.place = moment, [folder, *folder.parents][levels]

    def move(self, moment, state):
        if (moment, state.global_step) == (self.moment, 4) and Path("move").exists():
            Path("move").unlink()
            self.place.rename("moved")

    def on_step_end(self, args, state, control, **_):
        self.move("step", state)

    def on_log(self, args, state, control, **_):
        self.move("log", state)

    def on_evaluate(self, args, state, control, **_):
        self.move("evaluation", state)

    def on_save(self, args, state, control, **_):
        self.move("save", state)

class Puts(TrainerCallback):
    def __init__(self, folder):
        self.file = folder / "metrics.jsonl"

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 2:
            self.file.unlink()
            self.file.mkdir()
"""
SMALL = (
    "trainer=sft",
    "trainer.args.max_steps=6",
    "trainer.args.save_steps=2",
    "dataset.limit.eval=4",
    "metric=none",
)
SMALL += (
    "trainer.args.eval_strategy=steps",
    "trainer.args.eval_steps=2",
    "trainer.args.logging_steps=1",
)
SMALL += (
    "dataset.limit.train=64",
    "trainer.args.per_device_train_batch_size=4",
    "allow=[mine]",
    "name=run",
)


@pytest.mark.grid(1)
@pytest.mark.parametrize(("moment", "levels"), [("evaluation", 0), ("save", 1), ("log", 2)])
def test_a_run_whose_folder_is_moved_ends_cleanly_and_resumes_when_it_is_back(
    runner, moment, levels
):
    (runner.folder / "mine.py").write_text(MOVES)
    (runner.folder / "move").touch()
    words = (
        "callback.x._target_=mine.Moves",
        f"callback.x.moment={moment}",
        f"callback.x.levels={levels}",
    )
    done = runner(*SMALL, *words, code=4)
    assert "it was moved or deleted in the meantime" in done.stderr
    (folder,) = re.findall(r"^run +(\S+)", done.stdout, re.MULTILINE)
    run = Run(runner.folder / folder)
    old = [run.folder, *run.folder.parents][levels]
    assert not old.exists()
    assert old.parent.is_dir()
    (runner.folder / "moved").rename(old)
    again = runner(*SMALL, *words)
    assert "resumes   from step 2 (checkpoint-2)" in again.stdout
    assert [line["step"] for line in read_metrics(run.metrics)] == list(range(7))
    assert run.status()["state"] == "finished"


def test_a_folder_in_the_place_of_a_file_is_reported_with_a_fix(runner):
    (runner.folder / "mine.py").write_text(MOVES)
    done = runner(*SMALL, "callback.x._target_=mine.Puts", code=4)
    assert "rm -r" in done.stderr
    assert "metrics.jsonl" in done.stderr


def test_checkpoints_without_a_run_are_not_gone_on_from(runner):
    words = ("trainer=sft", "name=run", "--dry-run")
    folder = runner.folder / runner(*words).stdout.split("new ")[1].split()[0]
    (folder / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    done = runner(*words[:-1], code=4)
    assert "checkpoints without a run" in done.stderr
    assert f"rm -r {folder}" in done.stderr
