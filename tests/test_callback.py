"""The record has every step once, and callbacks of one's own hear of it all."""

import json
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from transformers import TrainerState

from runner.__main__ import main
from runner.config.composition import compose
from runner.config.experiment import Experiment
from runner.errors import ConfigError
from runner.io.files import read_json
from runner.run.continuation import computes_once
from runner.training.callback import Anomaly
from runner.training.callback.step_record import Record
from runner.training.callback.user import build_callbacks

EXAMPLE = Path(__file__).parent / "example_project"


def state(step, total=10, logged=()):
    return TrainerState(global_step=step, max_steps=total, log_history=list(logged))


def record(path, steps, start=0):
    """Write what a training from ``start`` logs: a training line and an evaluation at each step."""
    statuses = []
    callback = Record(path, lambda **changes: statuses.append(changes))
    callback.on_train_begin(None, state(start), None)
    for step in steps:
        callback.on_log(None, state(step), None, logs={"loss": step / 2})
        callback.on_log(None, state(step), None, logs={"eval_loss": float("nan")})
    return statuses


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_that_was_logged_at_one_step_is_one_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    statuses = record(path, [1, 2])
    # the first of several in a second
    assert statuses == [{"step": step, "max_steps": 10} for step in (0, 1)]
    assert record(path, [10], start=9)[-1]["step"] == 10  # and the last of all
    record(path, [1, 2])
    assert [(line["step"], line["loss"], line["eval_loss"]) for line in lines(path)] == [
        (1, 0.5, None),
        (2, 1.0, None),
    ]
    assert [line["percentage"] for line in lines(path)] == [10.0, 20.0]


def test_values_outside_json_are_written_as_text(tmp_path):
    callback = Record(tmp_path / "metrics.jsonl", lambda **changes: None)
    callback.on_train_begin(None, state(0), None)
    callback.on_log(
        None, state(1), None, logs={"odd": {1}, "loss": numpy.float32(0.5), "norms": torch.ones(2)}
    )
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert (line["odd"], line["loss"], line["norms"]) == ("{1}", 0.5, [1.0, 1.0])


def test_tokens_of_a_second_are_those_since_the_line_before(tmp_path, monkeypatch):
    times = iter([0.0, 10.0, 14.0, 15.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    callback = Record(tmp_path / "metrics.jsonl", lambda **changes: None)
    callback.started = 0.0
    callback.on_train_begin(None, state(0), None)
    callback.on_log(None, state(1), None, logs={"loss": 1.0, "num_tokens": 100.0})
    callback.on_log(None, state(2), None, logs={"loss": 1.0, "num_tokens": 300.0})
    assert [line["tokens_per_second"] for line in lines(tmp_path / "metrics.jsonl")] == [
        25.0,
        200.0,
    ]


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


def test_a_resume_deletes_what_later_steps_had_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    samples = tmp_path / "samples.jsonl"
    record(path, [1, 2, 3, 4])
    samples.write_text("".join(json.dumps({"step": step}) + "\n" for step in (0, 2, 4)))
    Record(path, lambda **changes: None).on_train_begin(None, state(2), None)
    assert [line["step"] for line in lines(path)] == [1, 2]
    assert [line["step"] for line in lines(samples)] == [0, 2]


def test_an_evaluation_after_a_resume_joins_the_line_of_its_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record(path, [1, 2])
    callback = Record(path, lambda **changes: None)
    callback.on_train_begin(None, state(2), None)
    callback.on_log(None, state(2), None, logs={"eval_reward": 1.0})
    assert [line["step"] for line in lines(path)] == [1, 2]
    assert lines(path)[-1]["eval_reward"] == 1.0
    assert lines(path)[-1]["loss"] == 1.0


def test_lines_that_a_power_failure_took_come_back_from_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record(path, [1, 2, 3])
    path.write_text(path.read_text()[:-9])  # the last line is torn
    logged = [
        {"step": 2, "loss": 9.0},
        {"step": 3, "loss": 0.5},
        {"step": 3, "eval_loss": 0.25},
        {"step": 4, "loss": 7},
    ]
    Record(path, lambda **changes: None).on_train_begin(None, state(3, logged=logged), None)
    assert [(line["step"], line["loss"]) for line in lines(path)] == [(1, 0.5), (2, 1.0), (3, 0.5)]
    assert lines(path)[-1]["eval_loss"] == 0.25


# --- Callbacks of a user's own ------------------------------------------------------------------

EVENTS = [
    *(
        "init_end",
        "train_begin",
        "epoch_begin",
        "step_begin",
        "substep_end",
        "pre_optimizer_step",
        "optimizer_step",
    ),
    *("step_end", "log", "evaluate", "predict", "save", "epoch_end", "train_end"),
]
DIARY = ("allow=[my_lab,others]", "callback.diary._target_=my_lab.callback.Diary")
OTHERS = """
import json
from pathlib import Path
from transformers import EarlyStoppingCallback, TrainerCallback

class Predict(TrainerCallback):
    def __init__(self, trainer):
        self.trainer = trainer
    def on_train_end(self, args, state, control, **more):
        self.trainer.predict(self.trainer.eval_dataset)

class Ordered(TrainerCallback):
    def __init__(self, folder, word, trainer=None):
        self.path, self.word = Path(folder) / "order.txt", word
        self.note()
    def note(self):
        with self.path.open("a") as file:
            file.write(self.word + " ")
    def on_train_begin(self, args, state, control, **more):
        self.note()

class First(Ordered):
    def __init__(self, folder, word):
        super().__init__(folder, word)

class Everything(TrainerCallback):
    def __init__(self, tokenizer, processing_class, folder, train_dataset, eval_dataset, prompts,
                 generate, trainer):
        prompts = list(prompts)
        self.path = Path(folder) / "found.json"
        self.prompts = prompts
        self.generate = generate
        self.found = [len(tokenizer), processing_class is tokenizer]
        self.found += [len(train_dataset), len(eval_dataset), prompts[0]]
        self.trainer = trainer
    def on_train_begin(self, args, state, control, model=None, **more):
        texts = self.generate(model, self.prompts, max_new_tokens=3, temperature=0)
        self.found += [texts, model is self.trainer.model]
        self.path.write_text(json.dumps(self.found))

class Open(TrainerCallback):
    def __init__(self, path, **all_there_is):
        Path(path).write_text(json.dumps(sorted(all_there_is)))

class Handed(EarlyStoppingCallback):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

class Deaf:
    def __init__(self, tokenizer):
        pass
"""
ALL_THERE_IS = [
    *(
        "accelerator",
        "callback_name",
        "eval_dataset",
        "folder",
        "generate",
        "processing_class",
        "prompts",
        "ref_model",
    ),
    *("tokenizer", "train_dataset", "trainer"),
]
SHORT = (
    "metric=none",
    "dataset.limit.train=40",
    "dataset.limit.eval=4",
    "trainer.args.max_steps=2",
)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The example project and some more callbacks, importable."""
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("others", "my_lab", "my_lab.callback"):
        sys.modules.pop(name, None)


@pytest.mark.grid(1)
@pytest.mark.slow
# TRL about its own way to predict
@pytest.mark.filterwarnings("ignore:`return_outputs=True`:FutureWarning")
@pytest.mark.parametrize("trainer", ["sft", "ppo"])
def test_a_callback_hears_of_every_event(train, mine, trainer):
    words = (
        *(
            f"trainer={trainer}",
            *DIARY,
            "callback.diary.author=you",
            "callback.ask._target_=others.Predict",
            *SHORT,
        ),
        *(
            "trainer.args.per_device_train_batch_size=4",
            "trainer.args.gradient_accumulation_steps=2",
        ),
        *(
            "trainer.args.eval_strategy=steps",
            "trainer.args.eval_steps=1",
            "trainer.args.logging_steps=1",
        ),
    )
    done = train(*words)
    assert (done.code, done.state()) == (0, "finished")
    lines = [
        json.loads(line) for line in (done.run.folder / "diary.jsonl").read_text().splitlines()
    ]
    heard = list(dict.fromkeys(line["event"] for line in lines))
    # A step of PPO is one whole rollout: nothing is accumulated between steps.
    assert sorted(heard) == sorted(set(EVENTS) - ({"substep_end"} if trainer == "ppo" else set()))
    assert lines[0] == {
        "event": "init_end",
        "step": 0,
        "by": "you",
        "words": lines[0]["words"],
        "held_out": 4,
    }
    of_a_step = ["step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "step_end"]
    steps = [line["event"] for line in lines if line["event"] in of_a_step]
    assert steps == [event for event in of_a_step if event in heard] * 2
    last = next(line for line in lines if line["event"] == "predict")
    assert last["step"] == 2
    assert last["names"]


@pytest.mark.slow
def test_a_callback_is_served_what_it_names(train, mine, tmp_path):
    place = tmp_path / "open.json"
    words = (
        "callback.y._target_=others.Open",
        f"callback.y.path={place}",
        "callback.z._target_=others.Handed",
    )
    words += ("trainer.args.eval_strategy=steps", "trainer.args.metric_for_best_model=eval_loss")
    done = train(
        "trainer=dpo", "allow=[others]", "callback.x._target_=others.Everything", *words, *SHORT
    )
    assert done.code == 0
    assert json.loads(place.read_text()) == ALL_THERE_IS
    words, same, rows, held_out, prompt, completions, trained = json.loads(
        (done.run.folder / "found.json").read_text()
    )
    assert words > 10
    assert same
    assert (rows, held_out) == (40, 4)
    assert prompt
    assert trained
    assert len(completions) == 4


@pytest.mark.slow
def test_callbacks_come_as_they_are_listed(train, mine):
    """The one that asks for the trainer waits for it, and comes after the others."""
    words = []
    for name, target in {"b": "First", "c": "Ordered", "a": "First"}.items():
        words += [f"callback.{name}._target_=others.{target}", f"callback.{name}.word={name}"]
    done = train("trainer=sft", "allow=[others]", *words, *SHORT)
    assert (done.run.folder / "order.txt").read_text().split() == ["b", "a", "c", "b", "a", "c"]


@pytest.mark.slow
def test_early_stopping_and_samples_work_side_by_side(train):
    stop = ("callback=early_stopping", "callback.early_stopping.early_stopping_patience=1")
    words = (
        *(
            "trainer=sft",
            *stop,
            "callback.samples._target_=runner.training.callback.Samples",
            "callback.samples.every=2",
        ),
        *(
            "trainer.args.eval_strategy=steps",
            "trainer.args.eval_steps=1",
            "trainer.args.save_steps=1",
        ),
        *("trainer.args.metric_for_best_model=eval_loss", "trainer.args.greater_is_better=true"),
        *(
            "metric=none",
            "dataset.limit.train=40",
            "dataset.limit.eval=4",
            "trainer.args.max_steps=8",
        ),
    )
    done = train(*words, "trainer.args.load_best_model_at_end=true", "learning_rate=1e-3")
    # greater_is_better is typed, so a falling loss is worse
    assert done.code == 0
    assert done.run.status()["step"] == 2
    rows = [
        json.loads(line) for line in (done.run.folder / "samples.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [0] * 4 + [2] * 4


@pytest.mark.slow
def test_a_class_that_hears_nothing_is_no_callback(train, mine, capsys):
    done = train("allow=[others]", "callback.deaf._target_=others.Deaf", *SHORT)
    assert done.code == 2
    assert "callback.deaf" in capsys.readouterr().err


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["trainer=reward", "callback=samples"], "callback.samples"),
        (["callback=samples", "dataset.split.eval=null"], "callback.samples.prompts"),
        (
            ["callback._target_=runner.training.callback.Samples", "dataset.form=text"],
            "callback.prompts",
        ),
        (
            ["callback=early_stopping", "trainer.args.eval_strategy=steps"],
            "trainer.args.metric_for_best_model",
        ),
        (
            ["callback=early_stopping", "trainer.args.metric_for_best_model=eval_loss"],
            "trainer.args.eval_strategy",
        ),
        (["callback=samples", "callback.samples.every=0"], "callback.samples.every"),
        (["callback=samples", "callback.samples.evry=5"], "callback.samples.evry"),
    ],
)
def test_a_callback_that_cannot_work_is_refused_before_anything_loads(capsys, words, where):
    assert main([*words, "metric=none"]) == 2
    assert where in capsys.readouterr().err


@pytest.mark.slow
def test_options_of_callbacks_combine():
    stop = (
        "trainer.args.eval_strategy=steps",
        "trainer.args.metric_for_best_model=eval_loss",
        "metric=none",
    )
    both = compose(["callback=[early_stopping,samples]", *stop]).cfg["callback"]
    single = compose(
        [
            "callback=early_stopping",
            "callback.samples._target_=runner.training.callback.Samples",
            *stop,
        ]
    )
    assert list(both) == list(single.cfg["callback"]) == ["early_stopping", "samples"]
    assert list(compose(["callback=[samples,early_stopping]", *stop]).cfg["callback"]) == [
        "samples",
        "early_stopping",
    ]


def test_typed_prompts_need_no_held_out_rows(capsys):
    words = [
        "callback=samples",
        "callback.samples.prompts=[hello]",
        "dataset.split.eval=null",
        "metric=none",
    ]
    assert main([*words, "--dry-run"]) == 0


# --- debug= ---------------------------------------------------------------------------------------


def test_anomalies_are_looked_for_while_it_trains():
    callback = Anomaly()
    callback.on_train_begin()
    assert torch.is_anomaly_enabled()
    callback.on_train_end()
    assert not torch.is_anomaly_enabled()


@pytest.mark.slow
def test_an_experiment_is_tried_in_two_steps_and_learns_eight_rows_by_heart(train):
    done = train("experiment=toy_dpo", "debug=steps")
    assert (done.code, done.state()) == (0, "finished")
    assert read_json(done.run.folder / "manifest.json")["data"]["train"]["rows"] == 64
    assert [line["step"] for line in done.lines] == [0, 1, 2]
    done = train("experiment=toy_sft", "debug=overfit", "metric=none", name="overfit")
    losses = [line["loss"] for line in done.lines if "loss" in line]
    assert losses[-1] < 0.01
    assert len(losses) == 10


# --- A reference that a callback moves ------------------------------------------------------------


@pytest.mark.slow
def test_a_reference_that_a_callback_updates_is_kept_and_used_in_each_step():
    cfg = compose(["trainer=dpo", "callback=sync_ref_model"]).cfg
    args = {"disable_dropout": True, "max_steps": 100}
    args |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    assert not computes_once(Experiment.read(cfg), args, rows=64)
    assert computes_once(Experiment.read(cfg | {"callback": None}), args, rows=64)


def test_without_a_reference_a_callback_that_takes_one_is_refused():
    cfg = compose(["trainer=sft", "callback=sync_ref_model"]).cfg
    with pytest.raises(ConfigError) as refused:
        build_callbacks(
            Experiment.read(cfg).callbacks, {}, SimpleNamespace(ref_model=None, accelerator=None)
        )
    assert "holds none" in refused.value.faults[0].found
    (callback,) = build_callbacks(
        Experiment.read(cfg).callbacks,
        {},
        SimpleNamespace(ref_model=torch.nn.Linear(1, 1), accelerator=None),
    )
    assert callback.ref_model is not None


@pytest.mark.slow
def test_averages_of_weights_go_on_where_they_were(train):
    words = (
        "trainer=sft",
        "callback=bema",
        "callback.bema.update_freq=1",
        "trainer.args.save_steps=2",
        "metric=none",
    )
    words += (
        "trainer.args.max_steps=4",
        "trainer.args.save_strategy=steps",
        "dataset.limit.train=64",
        "dataset.limit.eval=8",
        "learning_rate=1e-3",
    )
    run = train(*words).run
    average = run.checkpoints / "bema" / "model.safetensors"
    content = average.read_bytes()
    for folder in (run.model, run.checkpoints / "checkpoint-4", average.parent):
        shutil.rmtree(folder)
    run.set_status("interrupted", step=2, max_steps=4, sealed=2)
    assert train(*words).state() == "finished"
    assert average.read_bytes() == content


@pytest.mark.quick(1)
@pytest.mark.parametrize("words", ["trainer=sft peft=lora", "trainer=ppo reward=length"])
def test_averages_are_of_whole_models_alone(words, capsys):
    assert main([*words.split(), "callback=bema", "--dry-run"]) == 2
    assert "no adapter and no critic" in capsys.readouterr().err
