"""A run out of memory goes on in smaller micro-batches, a sick one at a lower rate.

Both survive a kill.
"""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from runner.__main__ import main
from runner.generate.padding import TOKENS_PER_PASS
from runner.io.files import files_of, read_json
from runner.run import Run
from runner.run.adjustments import adjusted_share, is_out_of_memory, read_adjustments
from runner.run.seal import sealed_checkpoints
from runner.training.callback.slower import Slower
from runner.training.recovery import halve_evaluation, halve_training

FAULT = str(Path(__file__).parent / "fault")
WORDS = (
    *(
        "trainer=sft",
        "metric=none",
        "dataset.limit.train=64",
        "dataset.limit.eval=4",
        "trainer.args.max_steps=6",
    ),
    *(
        "trainer.args.per_device_train_batch_size=8",
        "trainer.args.save_steps=2",
        "trainer.args.logging_steps=1",
    ),
    *("trainer.args.lr_scheduler_type=constant", "allow=[sabotage]"),
)
SHORT = ("callback.x._target_=sabotage.Short", "callback.x.rows=4", "callback.x.at=4")
FRAGILE = (
    "callback.x._target_=sabotage.Fragile",
    "callback.x.at=4",
    "callback.x.rate=6e-5",
    "on_sick=rollback",
)
CRASH = ("callback.y._target_=sabotage.Crash", "callback.y.at=6")


# --- The rules ----------------------------------------------------------------------------------


def sizes(rows=8, rounds=2, **kwargs):
    return SimpleNamespace(
        per_device_train_batch_size=rows, gradient_accumulation_steps=rounds, **kwargs
    )


@pytest.mark.parametrize(
    ("rows", "expected", "rounds"), [(8, 4, 4), (6, 3, 4), (9, 3, 6), (7, 1, 14), (2, 1, 4)]
)
def test_a_step_sees_the_same_rows_in_smaller_micro_batches(rows, expected, rounds):
    made = halve_training({}, sizes(rows))
    assert made == {"per_device_train_batch_size": expected, "gradient_accumulation_steps": rounds}


def test_one_row_cannot_be_halved_nor_two_that_are_compared():
    assert halve_training({}, sizes(1)) is None
    assert halve_training({}, sizes(2, desirable_weight=1.0)) is None
    assert halve_training({}, sizes(4, desirable_weight=1.0))["per_device_train_batch_size"] == 2


def test_a_generation_batch_stays_what_it_is():
    args = sizes(8, 2, steps_per_generation=4)
    assert halve_training({"steps_per_generation": 4}, args)["steps_per_generation"] == 8
    assert "steps_per_generation" not in halve_training({}, args)  # it follows the accumulation


def test_the_passes_of_ppo_are_halved_too():
    passes = {"max_tokens_per_micro_batch": None, "local_rollout_forward_batch_size": 64}
    on_cpu, on_gpu = (
        halve_training({}, sizes(**passes, device=torch.device(kind))) for kind in ("cpu", "cuda")
    )
    assert on_cpu["max_tokens_per_micro_batch"] == TOKENS_PER_PASS // 2
    assert on_cpu["local_rollout_forward_batch_size"] == 32
    assert "max_tokens_per_micro_batch" not in on_gpu


def test_an_evaluation_holds_whole_groups():
    args = SimpleNamespace(per_device_eval_batch_size=8, world_size=1)
    assert halve_evaluation(args) == {"per_device_eval_batch_size": 4}
    args.num_generations = 4
    assert halve_evaluation(args) == {"per_device_eval_batch_size": 4}
    args.per_device_eval_batch_size = 4
    assert halve_evaluation(args) is None
    args.world_size = 2
    assert halve_evaluation(args) == {"per_device_eval_batch_size": 2}


def test_errors_that_mean_out_of_memory():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_each_rollback_halves_the_rate_of_the_steps_after_it():
    back = [
        {"kind": "rollback", "from_step": 4},
        {"kind": "halving", "from_step": 4},
        {"kind": "rollback", "from_step": 8},
    ]
    assert [adjusted_share(back, done) for done in (3, 4, 7, 8)] == [1.0, 0.5, 0.5, 0.25]


def test_the_schedule_does_not_notice_that_its_steps_are_slower():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    slower = Slower(lambda done: 0.5 if done >= 2 else 1.0)
    rates = []
    for done in range(5):
        timing = {
            "args": None,
            "state": SimpleNamespace(global_step=done),
            "control": None,
            "optimizer": optimizer,
        }
        expected = optimizer.param_groups[0]["lr"]
        slower.on_step_begin(**timing)
        rates.append(optimizer.param_groups[0]["lr"] / expected)
        optimizer.step()
        slower.on_optimizer_step(**timing)
        assert optimizer.param_groups[0]["lr"] == expected
        schedule.step()
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.5]
    assert schedule.get_last_lr()[0] == pytest.approx(0.1 * (1 + math.cos(math.pi / 2)) / 2)


# --- Whole runs ---------------------------------------------------------------------------------


@pytest.fixture
def sabotage(monkeypatch):
    monkeypatch.syspath_prepend(FAULT)
    yield
    sys.modules.pop("sabotage", None)


def losses(run):
    return {
        line["step"]: line["loss"]
        for line in map(json.loads, run.metrics.read_text().splitlines())
        if "loss" in line
    }


def logged(run, name):
    return [
        line.get(name)
        for line in map(json.loads, run.metrics.read_text().splitlines())
        if "loss" in line
    ]


def weights(run):
    return {
        name: digest
        for name, digest in files_of(run.model).items()
        if name.endswith(".safetensors")
    }


@pytest.mark.slow
def test_memory_that_runs_out_in_a_step_is_found_by_smaller_micro_batches(train, sabotage):
    import sabotage as parts

    healed = train(*WORDS, *SHORT, name="healed")
    assert (healed.code, healed.state()) == (0, "finished")
    [adjustment] = read_adjustments(healed.run.folder)
    assert (adjustment["kind"], adjustment["step"], adjustment["from_step"]) == ("halving", 3, 2)
    assert adjustment["args"] == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
    }
    assert read_json(healed.run.folder / "manifest.json")["adjustments"] == [adjustment]
    assert "per_device_train_batch_size=4" in healed.run.status()["adjustments"][0]
    assert logged(healed.run, "halvings") == [None, None, 1, 1, 1, 1]
    assert parts.Short.left == [0, 0]  # no part of a model is left in memory
    halved = train(
        *WORDS,
        *SHORT,
        *(f"trainer.args.{name}={value}" for name, value in adjustment["args"].items()),
    )
    assert losses(healed.run) == pytest.approx(losses(halved.run), rel=1e-5)


@pytest.mark.slow
def test_memory_that_runs_out_in_an_evaluation_leaves_the_steps_as_they_are(train, sabotage):
    done = train(
        *WORDS,
        "collator._target_=sabotage.Measuring",
        "collator.rows=2",
        "trainer.args.per_device_eval_batch_size=4",
    )
    assert done.code == 0
    [adjustment] = read_adjustments(done.run.folder)
    assert adjustment["args"] == {"per_device_eval_batch_size": 2}
    assert "evaluation" in adjustment["cause"]


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "count", "fix"),
    [
        (["callback.x.rows=0", "trainer.args.per_device_train_batch_size=2"], 1, "peft=lora"),
        (["on_memory=stop"], 0, "on_memory=halve"),
        (["callback.x.rows=1", "attempts=1"], 1, "attempts=5"),
    ],
)
def test_a_run_with_nothing_left_to_halve_ends_with_cause_and_fix(
    train, sabotage, capsys, words, count, fix
):
    done = train(*WORDS, *SHORT, *words)
    assert (done.code, done.state()) == (5, "failed")
    assert len(read_adjustments(done.run.folder)) == count
    printed = capsys.readouterr().err
    assert "out of memory" in printed
    assert fix in printed


@pytest.mark.slow
def test_a_sick_run_goes_back_and_on_with_half_the_rate_once_it_may(train, sabotage, capsys):
    sick = train(*WORDS, *FRAGILE, "on_sick=stop")
    assert (sick.code, sick.state()) == (
        3,
        "failed",
    )
    assert "on_sick=rollback" in capsys.readouterr().err
    done = train(*WORDS, *FRAGILE)
    assert done.run.folder == sick.run.folder
    assert done.run.cfg["on_sick"] == "rollback"
    assert (done.code, done.state(), done.run.status()["step"]) == (0, "finished", 6)
    [adjustment] = read_adjustments(done.run.folder)
    assert (adjustment["kind"], adjustment["step"], adjustment["from_step"]) == ("rollback", 4, 2)
    assert "not_finite at step 4" in adjustment["cause"]
    assert logged(done.run, "learning_rate") == [1e-4, 1e-4, 5e-5, 5e-5, 5e-5, 5e-5]
    assert logged(done.run, "rollbacks") == [None, None, 1, 1, 1, 1]
    assert "half the learning rate" in done.run.status()["adjustments"][0]
    assert "again from step 2" in done.run.log.read_text()


@pytest.mark.slow
def test_a_run_that_stays_sick_ends_after_so_many_attempts(train, sabotage, capsys):
    done = train(*WORDS, *FRAGILE, "callback.x.rate=1e-6", "attempts=2")
    assert (done.code, done.state()) == (3, "failed")
    assert len(read_adjustments(done.run.folder)) == 2
    assert [path.name for path in sealed_checkpoints(done.run.checkpoints)] == ["checkpoint-2"]
    assert "checkpoint-2" in capsys.readouterr().err
    assert not done.run.model.exists()


@pytest.mark.slow
def test_a_sickness_that_no_rate_heals_is_not_retried(train, sabotage):
    done = train(*WORDS, "optimizer._target_=sabotage.Idle", "on_sick=rollback")
    assert (done.code, read_adjustments(done.run.folder)) == (3, [])


@pytest.mark.slow
@pytest.mark.parametrize("words", [FRAGILE])
def test_a_killed_run_goes_on_as_adjusted_to_the_same_bits(runner, sabotage, tmp_path, words):
    """The adjustment is a file in the folder; the second process knows nothing else of it."""
    runner.environment["PYTHONPATH"] += f":{FAULT}"
    words = (*WORDS, *words, *CRASH)
    runner(*words, "name=killed", code=-9)
    [folder] = runner.runs("killed")
    before = (folder / "adjustments.json").read_text()
    runner(*words, "name=killed")
    run = Run(folder)
    assert run.status()["state"] == "finished"
    assert (folder / "adjustments.json").read_text() == before
    assert [line["step"] for line in map(json.loads, run.metrics.read_text().splitlines())] == list(
        range(7)
    )
    main([*words, "callback.y.at=99", "name=whole", f"output_root={tmp_path / 'outputs'}"])
    uninterrupted = Run(runner.runs("whole")[0])
    assert weights(run) == weights(uninterrupted)
    assert losses(run) == losses(uninterrupted)
