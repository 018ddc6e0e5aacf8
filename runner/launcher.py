"""Run folder -> process. Each function here is an option of ``conf/launcher/`` and returns the
worker's exit code.

What a launcher does not do: read a config, know a trainer, or decide whether a run should start.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from runner import work
from runner.config import world_size
from runner.errors import RunnerError, code_of
from runner.resume.amendment import read_amendments
from runner.run import PATIENCE, Run, locked


def local(folder: str | Path, *, num_processes: int = 1, debug: bool = False) -> int:
    """Train on this machine: in this process, or in one process per device.

    Several processes are started by torchrun, because ``accelerate launch --cpu`` silently runs one.
    """
    starts = num_processes > 1 and world_size() == 1  # else they are there, and this is one of them
    return _torchrun(folder, num_processes, debug) if starts else work.work(folder, debug=debug)


@contextlib.contextmanager
def _handing_on(numbers: set[int], child: int) -> Iterator[list[int]]:
    """Hand these signals on to a child and survive SIGINT; gives the list of what was handed on."""
    handed: list[int] = []

    def answer(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            work.hush()
        if number in numbers:
            handed.append(number)
            # torchrun hands on these two only; SIGUSR1 would end it, and its workers could save nothing.
            os.kill(child, number if number == signal.SIGINT else signal.SIGTERM)

    before = {number: signal.signal(number, answer) for number in {*numbers, signal.SIGINT}}
    try:
        yield handed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _torchrun(folder: str | Path, num_processes: int, debug: bool) -> int:
    run = Run(Path(folder))
    amended = len(read_amendments(run.folder))
    with locked(run, PATIENCE):
        pass  # refused here, with the exit code that torchrun would not pass on
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_processes}"]
    command += ["-m", "runner.work", str(folder), "--vouched", *(["--debug"] if debug else [])]
    threads = str(max(1, (os.cpu_count() or 1) // num_processes))
    environment = {"OMP_NUM_THREADS": threads} | work.ENVIRONMENT | os.environ
    die = functools.partial(work.die_with, os.getpid())
    # A session of its own, so that Ctrl-C reaches the workers once, through torchrun.
    process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=die)
    with _handing_on(set(work.stop_signals()), process.pid) as handed:
        code = process.wait()
    if code == 0:
        return 0
    # torchrun says 1 for every failure; the state that the first process left says more.
    if handed:
        return code_of(handed[0])
    if len(read_amendments(run.folder)) > amended:
        return _torchrun(folder, num_processes, debug)  # processes of which one has failed cannot meet again
    cause = str(run.status().get("cause"))
    kinds = [kind for kind in RunnerError.__subclasses__() if cause.startswith(kind.heading)]
    return kinds[0].code if kinds else 1
