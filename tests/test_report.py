"""Curves are drawn from what the run logged, and from nothing else."""

import json

from runner.report.plot import write_plots
from runner.report.read import read_metrics


def test_one_picture_for_each_kind_of_metric(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": n, "loss": 1 / n, "learning_rate": 0.1, "eval_one_rewards/margins": n} for n in (1, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "lo')
    written = write_plots(path, tmp_path / "plots")
    assert {file.stem for file in written} == {"loss", "learning_rate", "reward"}
    for file in written:
        assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 5000
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_nothing_logged_draws_nothing(tmp_path):
    assert write_plots(tmp_path / "missing.jsonl", tmp_path / "plots") == []
    assert not (tmp_path / "plots").exists()


def test_the_curves_of_ppo_are_drawn_too(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logged = ("objective/scores", "objective/kl", "policy/entropy_avg", "loss/value_avg", "val/explained_variance")
    rows = [{"step": n} | dict.fromkeys(logged, n) | {"eval_objective/scores": n} for n in (1, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = write_plots(path, tmp_path / "plots")
    assert {file.stem for file in written} == {"reward", "kl", "entropy", "loss", "critic"}
