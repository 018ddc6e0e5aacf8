"""Asked to stop in whatever it is doing, a run saves its step and goes on: a part of ``tests/fault/signals.py``."""

import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from signals import disturb

from runner import work
from runner.errors import Interrupted


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["sft", "grpo"])
def test_a_signal_in_any_phase_stops_a_run_that_then_goes_on_to_the_same_bits(tmp_path, warm, trainer):
    found = list(disturb(trainer, 3, tmp_path, warm, random.Random(trainer)))
    assert [phase for phase, _ in found].count("finish") == 1 and len(found) == 4
    assert [misses for _, misses in found if misses] == []


def test_the_second_signal_is_not_waited_with():
    stop = work.Stop()
    stop.listening = True
    stop(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught:
        stop(signal.SIGUSR1)
    assert caught.value.code == 143


def test_a_closed_terminal_stops_a_run_but_not_one_under_nohup():
    script = "from runner.work import stop_signals; import signal; print(signal.SIGHUP in stop_signals())"
    for words, told in (([], "True\n"), (["nohup"], "False\n")):
        command = [*words, sys.executable, "-c", script]
        heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # whatever these tests run under
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=heard)
        assert done.stdout == told
