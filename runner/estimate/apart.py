"""A call in a process of its own, which leaves nothing behind in this one."""

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import torch

from runner.errors import RunnerError
from runner.io.files import JsonObject, read_json, write_json
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


def ask_apart(call: Callable[[], JsonObject], folder: Path, name: str) -> JsonObject:
    """The figures that a call in a process of its own gives; of one that fails, only ``why``.

    Its log and its cache lie in the folder, which is made, and its figures in ``<name>.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result_path = folder / f"{name}.json"
    result_path.unlink(missing_ok=True)

    def write_result() -> int:
        try:
            result = call()
        except Exception as error:  # whatever a trainer, a model or a reward may raise
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, RunnerError):
                why = error.faults[0].found
            result = {"why": why.splitlines()[0]}
        write_json(result_path, result)
        return 0

    run_apart(write_result, folder / "log.txt", folder / "cache")
    return read_json(result_path) or {"why": "its process was killed"}
