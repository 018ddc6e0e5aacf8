"""A call in a process of its own: what is built and trained there leaves nothing behind in this one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import datasets

from runner.io.terminal import write_output_to
from runner.launch import worker


def run_apart(call: Callable[[], int], log: Path, cache: Path) -> int:
    """The exit code of a call in a process of its own, which ends with this one and writes into a log.

    What it prepares of rows goes into a ``cache``, and not into that of real ones.
    """

    def apart() -> int:
        os.setpgid(0, 0)
        datasets.config.HF_DATASETS_CACHE = cache
        write_output_to(log)
        return call()

    process = worker.fork(apart)
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    finally:
        for kill in (os.killpg, os.kill):  # with what it has left running
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return ended if ended >= 0 else 128 - ended
