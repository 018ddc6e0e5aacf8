"""Samples have the same prompts each time, come once a step, and leave the training unchanged."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.io.files import files_of, read_json
from runner.training.callback import Samples

PROMPTS = ["Why is\nthe sky blue? " * 9, [{"role": "user", "content": "And the sea?"}], "third"]


def state(step, total=10, first=True):
    return SimpleNamespace(global_step=step, max_steps=total, is_world_process_zero=first)


def write(model, prompts, **how):
    return [f"answer to {number}" for number in range(len(prompts))]


def samples(folder, **how):
    return Samples(write, iter(PROMPTS), folder, count=2, **{"every": 4, "shown": 0} | how)


def rows(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def go(callback, start, end):
    model = object()
    callback.on_train_begin(None, state(start), None, model=model)
    for step in range(start + 1, end + 1):
        callback.on_step_end(None, state(step), None, model=model)


def test_the_same_prompts_at_the_start_on_the_way_and_at_the_end(tmp_path):
    go(samples(tmp_path), 0, 10)
    assert [row["step"] for row in rows(tmp_path)] == [0, 0, 4, 4, 8, 8, 10, 10]
    assert {json.dumps(row["prompt"]) for row in rows(tmp_path)} == {
        json.dumps(prompt) for prompt in PROMPTS[:2]
    }
    assert [row["completion"] for row in rows(tmp_path)[:2]] == ["answer to 0", "answer to 1"]


@pytest.mark.parametrize("checkpoint", [0, 3, 4, 6])
def test_a_resumed_training_logs_each_step_once(tmp_path, checkpoint):
    go(samples(tmp_path), 0, 9)
    go(samples(tmp_path), checkpoint, 10)
    assert [row["step"] for row in rows(tmp_path)] == [0, 0, 4, 4, 8, 8, 10, 10]


def test_two_that_sample_at_the_same_step_keep_the_rows_of_both(tmp_path):
    for _ in range(2):  # again, as after a kill before the first checkpoint
        for name in ("one", "two"):
            go(samples(tmp_path, callback_name=name), 0, 0)
    assert [row["callback"] for row in rows(tmp_path)] == ["one", "one", "two", "two"]


def test_only_the_first_process_writes(tmp_path):
    samples(tmp_path).on_train_begin(None, state(0, first=False), None, model=object())
    assert not (tmp_path / "samples.jsonl").exists()


def test_the_table_has_the_end_of_a_prompt_and_the_begin_of_an_answer(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "50")
    go(samples(tmp_path, shown=2), 0, 0)
    title, first, second = capsys.readouterr().out.splitlines()
    assert title.split() == ["sample", "of", "step", "0", "completion"]
    assert first.endswith("  answer to 0")
    assert first.startswith("  ...")
    assert "sky blue?" in first
    assert second.split() == ["And", "the", "sea?", "answer", "to", "1"]
    for line in (title, first, second):
        assert len(line) <= 50


# --- Whole runs ---------------------------------------------------------------------------------

WORDS = (
    *("metric=none", "dataset.limit.train=40", "dataset.limit.eval=6", "trainer.args.max_steps=4"),
    *(
        "trainer.args.per_device_train_batch_size=4",
        "trainer.args.logging_steps=1",
        "learning_rate=1e-3",
    ),
)
WATCHED = (
    "callback=samples",
    "callback.samples.every=1",
    "callback.samples.count=3",
    "callback.samples.shown=0",
)
RUNS = {
    "dropout": ("trainer=sft", "peft=lora", "peft.lora_dropout=0.3"),
    "grpo": ("trainer=grpo", "trainer.args.num_generations=2"),
    "ppo with an adapter": ("trainer=ppo", "peft=lora"),
}


def weights(folder):
    return {
        name: digest for name, digest in files_of(folder).items() if name.endswith(".safetensors")
    }


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_a_training_that_is_watched_ends_with_the_same_bits(train, words):
    watched = train(*words, *WORDS, *WATCHED, name="watched")
    alone = train(*words, *WORDS, name="alone")
    assert watched.code == alone.code == 0
    assert weights(watched.run.model) == weights(alone.run.model) != {}
    sample_rows = rows(watched.run.folder)
    assert [row["step"] for row in sample_rows] == sorted([*range(5)] * 3)
    assert [row["prompt"] for row in sample_rows[:3]] == [row["prompt"] for row in sample_rows[-3:]]
    assert sample_rows[0]["prompt"] == [{"role": "user", "content": "Sort these digits: 0 1 1 5"}]


STOPS = """
import os, signal
from transformers import TrainerCallback

class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3 and os.path.exists("stops"):
            os.remove("stops")
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_stopped_run_resumes_with_its_samples(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("callbacks.py").write_text(STOPS)
    words = (
        *("trainer=sft", *WORDS[:3], "trainer.args.max_steps=4", "trainer.args.save_steps=2"),
        *("trainer.args.logging_steps=1", *WATCHED, "allow=[callbacks]"),
        "callback.stops._target_=callbacks.Stops",
        "callback.greedy._target_=runner.training.callback.Samples",
        *("callback.greedy.every=2", "callback.greedy.count=2", "callback.greedy.temperature=0"),
    )
    Path("stops").touch()
    assert train(*words, name="stopped").code == 143
    stopped = train(*words, name="stopped").run.folder
    uninterrupted = train(*words, name="whole").run.folder
    assert read_json(stopped / "manifest.json")["starts"] == 2
    assert rows(stopped) == rows(uninterrupted)
    often = [row for row in rows(uninterrupted) if row["callback"] == "samples"]
    seldom = [row for row in rows(uninterrupted) if row["callback"] == "greedy"]
    assert [row["step"] for row in often] == sorted([0, 1, 2, 3, 4] * 3)
    assert [row["step"] for row in seldom] == sorted([0, 2, 4] * 2)
    assert [row["prompt"] for row in seldom[:2]] == [row["prompt"] for row in often[:2]]
