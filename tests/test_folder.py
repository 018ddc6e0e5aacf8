"""One folder, one run: a part of ``tests/fault/folder.py``."""

import random
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from folder import KINDS

from runner.run import Run

pytestmark = pytest.mark.slow


# A dead driver is tried in ``test_sweep``.
@pytest.mark.parametrize(("kind", "count"), [("pairs", 2), ("starts", 4), ("again", 1)])
def test_a_folder_has_one_run(tmp_path, warm, kind, count):
    assert list(KINDS[kind](tmp_path, warm, count, random.Random(0))) == []


@pytest.mark.parametrize(("part", "said"), [("", "it was moved or deleted meanwhile"), ("metrics.jsonl", "rm -r")])
def test_a_run_whose_folder_is_moved_ends_in_words_and_makes_no_half_of_it_again(runner, part, said):
    words = ("trainer=sft", "trainer.args.max_steps=500", "trainer.args.save_steps=5", "dataset.limit.eval=8")
    started = runner.start(*words, "metric=none", "trainer.args.logging_steps=1", "name=run")
    while not any(Run(folder).status()["step"] > 5 for folder in runner.runs("run")):
        assert not started.ended()
        time.sleep(0.02)
    (folder,) = runner.runs("run")
    moved = (folder / part).rename(runner.folder / "moved")
    if part == "metrics.jsonl":
        (folder / part).mkdir()
    done = started.wait()
    assert done.returncode == 4 and said in done.stderr
    assert part or (not folder.exists() and (moved / "config.yaml").exists())
