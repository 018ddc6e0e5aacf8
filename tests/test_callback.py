"""The record has every step once, and the first step tells a wrong reference."""

import json
from types import SimpleNamespace

import pytest

from runner.callback import FirstMargin, Record
from runner.errors import SickRun


def state(step, total=10):
    return SimpleNamespace(global_step=step, max_steps=total, is_world_process_zero=True)


def record(path, steps, start=0):
    """What a training from ``start`` writes: a training line and an evaluation at each step."""
    told = []
    callback = Record(path, lambda **changes: told.append(changes))
    callback.on_train_begin(None, state(start), None)
    for step in steps:
        callback.on_log(None, state(step), None, logs={"loss": step / 2})
        callback.on_log(None, state(step), None, logs={"eval_loss": float("nan")})
    return told


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_that_was_logged_at_one_step_is_one_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    told = record(path, [1, 2])
    assert [(line["step"], line["loss"], line["eval_loss"]) for line in lines(path)] == [(1, 0.5, None), (2, 1.0, None)]
    assert [line["percentage"] for line in lines(path)] == [10.0, 20.0]
    assert told[-1] == {"step": 2, "max_steps": 10}


@pytest.mark.parametrize("torn", ["", '{"step": 5, "lo'])
def test_steps_that_are_trained_again_are_written_once(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    record(path, [1, 2, 3, 4])
    with path.open("a") as file:
        file.write(torn)
    record(path, [3, 4, 5], start=2)
    assert [line["step"] for line in lines(path)] == [1, 2, 3, 4, 5]
    elapsed = [line["elapsed_seconds"] for line in lines(path)]
    assert elapsed == sorted(elapsed)


def test_an_evaluation_after_a_resume_joins_the_line_of_its_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record(path, [1, 2])
    callback = Record(path, lambda **changes: None)
    callback.on_train_begin(None, state(2), None)
    callback.on_log(None, state(2), None, logs={"eval_reward": 1.0})
    assert [line["step"] for line in lines(path)] == [1, 2]
    assert lines(path)[-1]["eval_reward"] == 1.0 and lines(path)[-1]["loss"] == 1.0


def test_a_margin_at_the_first_step_stops_the_run():
    callback = FirstMargin(1e-4)
    callback.on_log(None, state(1), None, logs={"rewards/margins": 1e-6})
    callback.on_log(None, state(2), None, logs={"rewards/margins": 0.3})
    callback.on_log(None, state(1), None, logs={"loss": 1.0})
    with pytest.raises(SickRun, match="reference"):
        callback.on_log(None, state(1), None, logs={"rewards/margins": -0.01})
