"""Stopped or killed, the same command continues, and ends with the same bits."""

import functools
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from kill import timeless

from runner.__main__ import main
from runner.io.files import files_of, read_json
from runner.run import Run
from runner.run.history import read_metrics

pytestmark = pytest.mark.slow
STEPS = 12
WORDS = (
    "name=run",
    f"trainer.args.max_steps={STEPS}",
    "trainer.args.logging_steps=1",
    "trainer.args.save_steps=4",
    "trainer.args.per_device_train_batch_size=8",
    "dataset.limit.train=200",
    "dataset.limit.eval=8",
)
# Long enough between the steps for a signal to land in one.
SLOW = ("callback.slow._target_=callbacks.Slow", "allow=[callbacks]")
TRAINERS = {
    "sft": ("trainer=sft", "peft=lora", "peft.lora_dropout=0.1"),
    "dpo": ("trainer=dpo",),
    "grpo": (
        "trainer=grpo",
        "loss=policy_gradient",
        "loss.advantage=leave_one_out",
        "trainer.args.num_iterations=2",
        "kl_coef=0.04",
    ),
    "ppo": ("trainer=ppo", "trainer.args.kl_target=0.1", "trainer.args.score_normalization=whiten"),
}


@pytest.fixture
def slow_callback(tmp_path):
    (tmp_path / "callbacks.py").write_text(
        "import time\nfrom transformers import TrainerCallback\n\n\n"
        "class Slow(TrainerCallback):\n"
        "    def on_step_end(self, args, state, control, **kwargs):\n"
        "        time.sleep(0.3)\n"
    )


def weights(folder):
    return {
        name: digest for name, digest in files_of(folder).items() if name.endswith(".safetensors")
    }


def stop_at(runner, words, step, number):
    """Start the command, send a signal once its log has reached a step, return its exit code."""
    started = runner.start(*words)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and not started.ended():
        folders = runner.runs("run")
        if folders and (read_json(folders[0] / "status.json") or {}).get("step", 0) >= step:
            started.send(number)
            break
        time.sleep(0.02)
    return started.wait().returncode


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The run of a trainer that nothing stopped, trained once."""

    @functools.cache
    def train(trainer):
        root = tmp_path_factory.mktemp("unbroken")
        assert main([*WORDS, *TRAINERS[trainer], f"output_root={root}"]) == 0
        return Run(next(root.glob("run/*/config.yaml")).parent)

    return train


# The other trainers are killed in ``test_kill``, and stopped in ``test_signals``.
STOPS = [("dpo", signal.SIGKILL), ("ppo", signal.SIGTERM), ("grpo", signal.SIGKILL)]


@pytest.mark.dear("two trainings, of which one starts twice")
@pytest.mark.grid(1)
@pytest.mark.parametrize(("trainer", "number"), STOPS)
def test_the_same_command_continues_to_the_same_bits(
    runner, slow_callback, unbroken, trainer, number
):
    words = (*WORDS, *TRAINERS[trainer], *SLOW)
    code = stop_at(runner, words, 6, number)
    run = Run(runner.runs("run")[0])
    assert not run.model.exists()
    if number == signal.SIGKILL:
        assert code == -9
    else:
        assert (code, run.status()["state"]) == (128 + number, "interrupted")
        log = run.log.read_text()
        assert log.endswith("type      run the same command again to continue\n")
        assert "Traceback" not in log
    told = re.search(
        r"^resumes   from step (\d+) \(checkpoint-\1\)$", runner(*words).stdout, re.MULTILINE
    )
    assert told[1] == "4" if number == signal.SIGKILL else int(told[1]) >= 6
    assert told[0] in run.log.read_text()
    assert (run.status()["state"], run.status()["step"]) == ("finished", STEPS)
    assert [line["step"] for line in read_metrics(run.metrics)] == list(range(STEPS + 1))
    uninterrupted = unbroken(trainer)
    assert weights(run.model) == weights(uninterrupted.model)
    assert timeless(read_metrics(run.metrics)) == timeless(read_metrics(uninterrupted.metrics))


def test_a_run_killed_after_its_last_step_ends_complete(train, capfd):
    """The held-out loss falls, and the best checkpoint has the highest one: it is an early one."""
    words = (
        "trainer=sft",
        *WORDS,
        "trainer.args.max_steps=3",
        "trainer.args.save_steps=1",
        "learning_rate=1e-3",
    )
    best = (
        "trainer.args.load_best_model_at_end=true",
        "trainer.args.metric_for_best_model=eval_loss",
    )
    words += (*best, "trainer.args.greater_is_better=true", "trainer.args.eval_strategy=steps")
    words += ("trainer.args.eval_steps=1", "metric=exact")
    run = train(*words).run
    names = ("metrics.jsonl", "completions.jsonl", "scores.json")
    before = {name: (run.folder / name).read_text() for name in names}, weights(run.model)
    assert weights(run.model) == weights(run.checkpoints / "checkpoint-1")
    shutil.rmtree(run.model)
    run.set_status("running", step=3)
    assert train(*words).code == 0
    assert before == ({name: (run.folder / name).read_text() for name in names}, weights(run.model))
    assert (run.status()["state"], run.status()["step"]) == ("finished", 3)
    for folder in (run.model, run.checkpoints):
        shutil.rmtree(folder)
    run.set_status("running", step=2, sealed=None)
    assert train(*words).code == 0
    assert "begins    again: it had come to step 2" in capfd.readouterr().out


def test_two_processes_never_train_in_one_folder(runner, slow_callback):
    words = (*WORDS, *TRAINERS["sft"], *SLOW)
    first = runner.start(*words)
    try:
        while not runner.runs("run") or Run(runner.runs("run")[0]).status()["state"] != "running":
            assert not first.ended()
            time.sleep(0.05)
        assert f"pid {first.pid}" in runner(*words, code=4).stderr
    finally:
        first.send(signal.SIGKILL)
        first.wait()
