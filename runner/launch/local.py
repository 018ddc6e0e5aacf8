"""The launcher of this machine: run folder -> process, or several. What a launcher has to do is in ``launch``."""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from runner.config import world_size
from runner.errors import EnvironmentFault, Fault, RunnerError
from runner.io.files import open_own, write_json
from runner.io.secrets import hidden
from runner.launch import worker
from runner.run import PATIENCE, Run, held, locked
from runner.run.adjustments import read_adjustments

GRACE = 120  # most seconds that processes have for the end of their step and its save
DELAY = 2  # most seconds between the end of a process, in whole seconds, and that of another which misses it
KINDS = {kind.__name__: kind for kind in RunnerError.__subclasses__()}


def local(folder: str | Path, *, num_processes: int = 1, debug: bool = False) -> int:
    """Train on this machine: in this process, or in one process per device.

    Several processes are started as torchrun does, because ``accelerate launch --cpu`` silently runs one.
    """
    starts = num_processes > 1 and world_size() == 1  # else they are there, and this is one of them
    return _torchrun(folder, num_processes, debug) if starts else worker.work(folder, debug=debug)


def _torchrun(folder: str | Path, num_processes: int, debug: bool) -> int:
    run = Run(Path(folder))
    adjusted = len(read_adjustments(run.folder))
    with locked(run, PATIENCE), worker.logging_to(run.log):
        pass  # refused here, before anything is started; and what was printed so far, these processes have not said
    worker.prepare_environment()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else it is said that all weights have gradients
    failures = _start(run, num_processes, debug)
    if not failures or run.status()["state"] == "finished":
        return 0
    state: str | None
    error: RunnerError
    if isinstance(failures, signal.Signals):
        state, error = "interrupted", worker.Stop(failures).error()
    elif len(read_adjustments(run.folder)) > adjusted:
        return _torchrun(folder, num_processes, debug)  # torch.distributed cannot re-form a group after a rank has died
    else:
        state, error = _cause_of(run, failures, debug)
    state = None if held(run) else state
    if state:
        with contextlib.suppress(OSError), open_own(run.log, "a", encoding="utf-8") as log:
            log.write(f"{error}\n")
    worker.conclude(run, state, error)
    return error.code


def _start(run: Run, num_processes: int, debug: bool) -> Mapping[int, Any] | signal.Signals | None:
    """Train in several processes until all have ended; gives what failed, by rank, or the signal that came."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    elastic = logging.getLogger("torch.distributed.elastic")  # it would print what we print
    elastic.addHandler(logging.NullHandler())
    elastic.propagate = False
    before = {number: signal.getsignal(number) for number in worker.stop_signals()}
    with tempfile.TemporaryDirectory(prefix="processes-") as place:
        config = LaunchConfig(
            *(1, 1, num_processes),
            run_id=run.folder.name,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=place),
            signals_to_handle=",".join(signal.Signals(number).name for number in before),
            shutdown_timeout=GRACE,
        )
        python, *words = worker.python_words("runner.launch.local")
        try:
            elastic_launch(config, python)(*words, str(run.folder), *(["--debug"] if debug else []))
        except SignalException as stop:
            if stop.sigval == signal.SIGHUP:
                worker.detach_terminal()
            return stop.sigval
        except ChildFailedError as failed:
            return failed.failures
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return None


def _cause_of(run: Run, failures: Mapping[int, Any], debug: bool) -> tuple[str | None, RunnerError]:
    """The state and the error of the process that failed first, which ended the others."""
    messages = {rank: failure.error_file_data["message"] for rank, failure in failures.items()}
    # What each has recorded of its end; nothing where it could not.
    recorded = {rank: text["extraInfo"] if isinstance(text, Mapping) else {} for rank, text in messages.items()}

    def order(rank: int) -> tuple[bool, bool, float]:
        kind, code = recorded[rank].get("kind"), failures[rank].exitcode
        was_stopped = kind == "Interrupted" or (not kind and code == -signal.SIGTERM)
        is_cause = kind in KINDS or code == -signal.SIGKILL  # the others may take its loss for an error of their own
        return was_stopped, not is_cause, recorded[rank].get("timestamp", failures[rank].timestamp - DELAY)

    rank = min(failures, key=order)
    code, own = failures[rank].exitcode, recorded[rank]
    if own:
        error = KINDS.get(own["kind"], RunnerError)(Fault(*beats) for beats in own["faults"])
        error.heading += f" (rank {rank})"
        if debug:
            print(own["py_callstack"], file=sys.stderr)
        return own["state"], error
    found = f"rank {rank} {worker.describe_exit(code)}"
    if code < 0:
        return "failed", EnvironmentFault(Fault("processes", found, fix="run the same command again to continue"))
    return "failed", RunnerError(Fault(str(run.log), found, fix="read the end of it"))


def _record(run: Run, state: str | None, error: RunnerError, debug: bool) -> None:
    """Write how this process ended into torchrun's file for it, for the process that has started all of them."""
    more = {"py_callstack": hidden(traceback.format_exc()), "timestamp": time.time(), "state": state}
    more |= {"kind": type(error).__name__, "faults": [list(map(str, astuple(fault))) for fault in error.faults]}
    write_json(Path(os.environ["TORCHELASTIC_ERROR_FILE"]), {"message": {"message": str(error), "extraInfo": more}})


if __name__ == "__main__":
    sys.exit(worker.work(sys.argv[1], debug="--debug" in sys.argv, record_end=_record))
