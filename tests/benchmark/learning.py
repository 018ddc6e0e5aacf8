"""Checks that the shipped toys learn what they teach: whole trainings, too long for the suite.

python tests/benchmark/learning.py                about six minutes of one processor
python tests/benchmark/learning.py -k prices      the words are those of pytest
"""

import json
import random
import sys
from pathlib import Path

import pytest

from runner.io.files import PACKAGE, read_json, read_rows, shipped, write_text

TINY = Path(shipped("runner://model/tiny"))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_toy_learns_to_ask_for_what_it_cannot_know(runner, seed):
    runner("experiment=toy_tool", f"seed={seed}")
    [folder] = runner.runs("toy-tool-grpo")
    scores = read_json(folder / "scores.json")
    assert scores["before"]["eval_price"] <= 0.2
    assert scores["after"]["eval_price"] >= 0.7


def test_the_toy_learns_nothing_from_rewards_that_say_nothing(runner):
    """The rewards expect the prices of other rows."""
    folder = runner.folder / "rows"
    for name in ("train", "eval"):
        rows = list(read_rows(PACKAGE / "dataset" / "toy_prices" / f"{name}.jsonl"))
        if name == "train":
            prices = [row["price"] for row in rows]
            random.Random(0).shuffle(prices)
            rows = [row | {"price": other} for row, other in zip(rows, prices, strict=True)]
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    runner("experiment=toy_tool", "grpo.dataset.path=rows")
    [folder] = runner.runs("toy-tool-grpo")
    scores = read_json(folder / "scores.json")
    assert scores["after"]["eval_price"] <= scores["before"]["eval_price"] + 0.1


def test_the_toy_task_is_learned(train):
    words = ("trainer.args.max_steps=24", "learning_rate=3e-4", "dataset.limit.eval=100")
    done = train(
        "trainer=ppo", "trainer.args.num_ppo_epochs=2", "trainer.args.num_mini_batches=2", *words
    )
    first, *_, last = [line for line in done.lines if "eval_objective/scores" in line]
    assert last["eval_objective/scores"] > first["eval_objective/scores"] + 0.03
    assert last["eval_objective/kl"] > 0.02 > abs(first["eval_objective/kl"])


def test_ppo_learns_from_a_reward_for_each_step(train):
    words = (
        "trainer.args.max_steps=12",
        "trainer.args.logging_steps=1",
        "learning_rate=3e-4",
        "metric=none",
    )
    done = train("trainer=ppo", "reward=sorted_steps", "trainer.args.step_separator=' '", *words)
    assert (done.code, done.state()) == (0, "finished")
    scores = [
        line["eval_objective/scores"] for line in done.lines if "eval_objective/scores" in line
    ]
    assert scores[-1] > scores[0]


def test_the_base_model_is_what_its_experiment_trains(train):
    done = train("experiment=tiny_base")
    assert done.code == 0
    # Other processors round differently, so the weights need not have the same bits.
    assert done.scores["after"]["eval_loss"] == pytest.approx(0.403, abs=0.03)
    mine, theirs = (
        json.loads((folder / "config.json").read_text()) for folder in (done.run.model, TINY)
    )
    assert mine | {"use_cache": True} == theirs


if __name__ == "__main__":
    # The fixtures are those of ``tests/conftest.py``.
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
