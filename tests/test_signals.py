"""Stopped in any phase, a run saves its step and goes on later.

A part of ``tests/fault/signals.py``.
"""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from signals import disturb

from runner.errors import Interrupted
from runner.launch import pool, signals
from runner.launch.compose.stages import compose_runs
from runner.launch.plan import tasks_of
from runner.launch.progress import Stages
from runner.run import Run


@pytest.mark.dear("a run that starts three times, beside one that nothing disturbs")
@pytest.mark.slow
def test_a_signal_in_any_phase_stops_a_run_that_then_goes_on_to_the_same_bits(tmp_path, warm):
    complaints = list(disturb("sft", 2, tmp_path, warm, random.Random("sft")))
    assert [phase for phase, _ in complaints].count("finish") == 1
    assert len(complaints) == 3
    assert [misses for _, misses in complaints if misses] == []


def test_of_several_processes_one_request_comes_twice(monkeypatch):
    """From a scheduler, which asks each of them, and from torchrun, which hands it on."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    stop = signals.Stop(listening=True)
    stop(signal.SIGTERM)
    stop(signal.SIGTERM)
    with pytest.raises(Interrupted):
        stop(signal.SIGINT)


def test_the_second_signal_is_not_waited_with():
    stop = signals.Stop()
    stop.listening = True
    stop(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught:
        stop(signal.SIGUSR1)
    assert caught.value.code == 143


@pytest.mark.slow
def test_a_time_limit_saves_the_step_and_is_left_to_who_answers_it(tmp_path, monkeypatch):
    """As under submitit, whose handler requeues the job and leaves.

    A scheduler notifies the trainer, too.
    """
    monkeypatch.chdir(tmp_path)
    driver = os.getpid()
    begun = tmp_path / "begun"
    (composed,) = compose_runs(["trainer=sft"])

    def train(run, stop):
        stop.listening = True
        begun.touch()
        # the limit, and the end of a job that requeues
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        os.kill(driver, signal.SIGUSR2)
        while stop.number != signal.SIGUSR2:  # until the driver has handed its own on
            time.sleep(0.005)
        run.set_status(step=7)
        raise stop.error()

    def requeue(number, frame):
        sys.exit(87)

    monkeypatch.setattr("runner.command.train.train", train)
    monkeypatch.setattr(pool, "warm_up", lambda runs: None)
    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        tasks = tasks_of([[composed]])
        with pytest.raises(SystemExit, match="87"):
            pool.Pool(tasks, pool.Settings(attached=True), Stages(tasks)).run()
        assert signal.getsignal(signal.SIGUSR2) is requeue
        assert begun.exists()
    finally:
        signal.signal(signal.SIGUSR2, before)
    status = Run(tasks[0].folder).status()
    assert (status["state"], status["step"]) == ("interrupted", 7)
    assert "SIG" in status["cause"]


@pytest.mark.slow
def test_a_closed_terminal_stops_a_run_but_not_one_under_nohup():
    script = (
        "from runner.launch.signals import stop_signals; "
        "import signal; print(signal.SIGHUP in stop_signals())"
    )
    for words, expected in (([], "True\n"), (["nohup"], "False\n")):
        command = [*words, sys.executable, "-c", script]
        # whatever these tests run under
        heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=heard
        )
        assert done.stdout == expected
