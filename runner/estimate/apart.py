"""A call in a process of its own, which leaves nothing behind in this one."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import torch

from runner.io.terminal import HidingLog
from runner.launch import processes


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside.

    A process that is forked from one with several threads of OpenMP would wait for ever.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_apart(call: Callable[[], int], log: Path, cache: Path) -> int:
    """The exit code of a call in a process of its own, below zero the signal that killed it.

    The process ends with this one, writes into a log, leaves nothing behind here, and has a
    ``cache`` of its own.
    """

    def apart() -> int:
        os.setpgid(0, 0)
        datasets.config.HF_DATASETS_CACHE = cache
        output.take_output()
        return call()

    output = HidingLog.open(log)
    process = processes.fork(apart)
    output.close()
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    finally:
        for kill in (os.killpg, os.kill):  # with what it has left running
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        output.wait()
    return os.waitstatus_to_exitcode(status)
