"""The note on a finished run that has moved nothing beyond the noise of its steps."""

import math
import random
from pathlib import Path

import pytest
from laid import lay_run

from runner.__main__ import main
from runner.report.standstill import has_moved, scatter_of
from runner.report.verdict import describe_outcome
from runner.run.record import RunRecord, read_run

SFT = {"form": "demonstration", "head": "lm", "args": {"learning_rate": 2e-5}}
GRPO = {"form": "prompt", "head": "lm", "args": {"learning_rate": 1e-6}}


def noise(count, drift=0.0, early=0.0, seed=0):
    """Values around 2 with a scatter of 0.1, a drift in scatters, and a fall in the first steps."""
    draw = random.Random(seed)
    values = []
    for i in range(count):
        fall = early * math.exp(-i / (0.03 * count))
        values.append(2 - 0.1 * drift * i / count + fall + draw.gauss(0, 0.1))
    return values


def share_that_moved(**shape):
    return sum(has_moved(noise(50, seed=seed, **shape)) for seed in range(200)) / 200


def test_the_scatter_ignores_a_trend_and_outliers():
    assert scatter_of(noise(2000)) == pytest.approx(0.1, rel=0.1)
    assert scatter_of(noise(2000, drift=20)) == pytest.approx(0.1, rel=0.1)
    assert scatter_of([*noise(2000), 50.0, *noise(50)]) == pytest.approx(0.1, rel=0.1)


def test_a_trend_or_an_early_fall_has_moved_and_noise_mostly_not():
    assert share_that_moved() < 0.4
    assert share_that_moved(drift=2) > 0.95
    assert share_that_moved(early=0.5) > 0.95


def run_of(tmp_path, trainer, figure, values, before=None, after=None, **cfg):
    lines = [{"step": 10 * i, figure: value} for i, value in enumerate(values, 1)]
    folder = lay_run(tmp_path / "a" / "b", lines=lines, trainer=trainer, **cfg)
    run = read_run(folder)
    data = {"data": {"eval": {"rows": 200}}}
    return RunRecord(folder, run.cfg, run.status, data, before or {}, after or {})


FLAT = [2.0, 2.1] * 10


def test_a_flat_loss_is_told_with_what_to_type(tmp_path):
    line = describe_outcome(run_of(tmp_path, SFT, "loss", FLAT, learning_rate=2e-5))
    assert line == (
        "the loss has not moved beyond its noise in 4 steps, 2.05 -> 2.05 with a scatter of 0.1: "
        "learning_rate=0.0002, ten times its rate, or more steps"
    )


@pytest.mark.parametrize(
    ("trainer", "figure", "values", "scores"),
    [
        (SFT, "loss", [3 - 0.05 * i for i in range(20)], None),
        (SFT, "loss", FLAT[:14], None),  # too short to tell
        (SFT, "loss", FLAT, ("eval_loss", 2.0, 1.9)),
        (SFT, "loss", FLAT, ("eval_exact", 0.1, 0.9)),
        (GRPO, "loss", FLAT, None),  # its loss does not fall
        (GRPO, "reward", [0.02 * i for i in range(20)], None),
        ({**GRPO, "head": "score", "form": "stepwise"}, "loss", FLAT, None),
    ],
)
def test_a_run_that_has_learnt_or_may_have_is_not_told(tmp_path, trainer, figure, values, scores):
    before = after = None
    if scores:
        name, first, last = scores
        before = {name: first}
        after = {name: last}
    metric = {"exact": {"_target_": "runner.metric.exact"}}
    run = run_of(tmp_path, trainer, figure, values, before, after, metric=metric)
    assert describe_outcome(run) is None


def test_a_flat_reward_and_a_held_out_loss_that_stays_are_told(tmp_path):
    assert "the reward has not" in describe_outcome(run_of(tmp_path, GRPO, "reward", FLAT))
    scores = ({"eval_loss": 2.0}, {"eval_loss": 1.995})
    run = run_of(tmp_path / "c", SFT, "loss", FLAT, *scores)
    assert "trainer.args.learning_rate=0.0002" in describe_outcome(run)


@pytest.mark.slow
@pytest.mark.dear("it trains a run of its own, because no other learns nothing")
def test_a_training_at_almost_no_rate_ends_with_the_note(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["learning_rate=1e-9", "trainer.args.max_steps=20", "trainer.args.logging_steps=1"]
    assert main([*words, "trainer.args.per_device_train_batch_size=4", "dataset.limit.eval=8"]) == 0
    note = "the loss has not moved beyond its noise in 20 steps"
    out = capsys.readouterr().out
    assert f"note      {note}" in out
    assert "learning_rate=1e-8, ten times its rate" in out
    (folder,) = Path("outputs").glob("*/*-*")
    assert main(["report", str(folder)]) == 0
    assert f"cause     {note}" in capsys.readouterr().out
    assert note in (folder / "report.html").read_text()


def test_a_run_whose_last_groups_were_all_alike_is_told_when_it_stopped_to_learn(tmp_path):
    def line_of(*shares):
        run = run_of(tmp_path / str(shares), GRPO, "frac_reward_zero_std", shares)
        for line in run.lines:
            line["reward"] = 0.25
        return describe_outcome(run)

    alike = "all completions of each prompt earned the same, 0.25 on average"
    end = f"nothing was learnt in the last 20 steps: {alike}: trainer.args.max_steps=20, or"
    assert line_of(0.5, 0.9, 1.0, 1.0).startswith(end)
    assert f"nothing was learnt in 4 steps: {alike}: prompts" in line_of(1.0, 1.0)
    assert line_of(1.0, 0.99) is None
    assert line_of(0.5, 0.5, 0.5) is None


def test_a_run_that_no_held_out_score_judges_is_told_where_it_became_worse(tmp_path):
    fallen = [1 - 0.04 * i for i in range(20)]
    told = describe_outcome(run_of(tmp_path / "1", GRPO, "reward", fallen))
    assert told.startswith("the model seems worse than it was: reward 0.9 -> 0.34")
    risen = [2 + 0.05 * i + 0.1 * (i % 2) for i in range(24)]
    told = describe_outcome(run_of(tmp_path / "2", SFT, "loss", risen))
    assert told.startswith("the model seems worse than it was: loss ")
    # A loss that rises again after its fall is still lower than it was.
    fallen_first = [5.0, 3.0, 2.0, *risen]
    assert describe_outcome(run_of(tmp_path / "3", SFT, "loss", fallen_first)) is None
    # A held-out score that is better has the last word.
    scores = ({"eval_loss": 2.0}, {"eval_loss": 1.5})
    assert describe_outcome(run_of(tmp_path / "4", SFT, "loss", risen, *scores)) is None
