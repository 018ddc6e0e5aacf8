"""The launcher of this machine: run folder -> process, or several. README.md says what it does."""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.machines import world_size
from runner.errors import EnvironmentFault, Fault, Interrupted, RunnerError
from runner.io.files import open_own, write_json
from runner.io.secrets import hidden
from runner.launch import processes, run_log, signals, worker
from runner.run import PATIENCE, Run, held, locked
from runner.run.adjustments import read_adjustments
from runner.schema.ranges import Processes

# The most seconds between the end of a process, in whole seconds, and that of another that misses
# it.
DELAY = 2


@dataclass(frozen=True)
class End:
    """The end of the processes of a run."""

    signal: int | None  # that came
    failures: list[dict[str, Any]]  # a record of each process that failed
    adjustments: int  # that the run has made so far


class Alone:
    """The one machine of a run. ``accelerate`` has a class for one of several."""

    rank = 0
    place = ""  # in words, after the number of a process

    @contextlib.contextmanager
    def meeting(self) -> Iterator[dict[str, Any]]:
        """The place where the processes meet, as torchrun takes it, as long as they train."""
        yield {
            "min_nodes": 1,
            "max_nodes": 1,
            "rdzv_backend": "c10d",
            "rdzv_endpoint": "localhost:0",
        }

    def share(self, end: End) -> End:
        """The end of the processes of all machines."""
        return end


def local(folder: str | Path, *, num_processes: Processes = 1, debug: bool = False) -> int:
    """Train on this machine: in this process, or in several as torchrun starts them.

    ``accelerate launch --cpu`` would run one.
    """
    if num_processes > 1 and world_size() == 1:
        return train_together(folder, num_processes, debug, Alone())
    return worker.work(folder, debug=debug)  # as one of several, where these are there already


def train_together(folder: str | Path, num_processes: int, debug: bool, machines: Alone) -> int:
    """Train in so many processes on each of the machines, of which the first writes the state."""
    run = Run(Path(folder))
    adjusted = len(read_adjustments(run.folder))
    if machines.rank == 0:
        with locked(run, PATIENCE), run_log.logging_to(run.log):
            # A run in use is refused here, before anything is started; and what was printed so far
            # goes to the log, since these processes have not said it.
            pass
    processes.prepare_environment()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    # Else torch prints that all weights have gradients.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    end = machines.share(_start(run, num_processes, debug, machines))
    if not (end.signal or end.failures) or run.status()["state"] == "finished":
        return 0
    if end.adjustments > adjusted and not end.signal:
        # torch.distributed cannot re-form a group after a rank has died.
        return train_together(folder, num_processes, debug, machines)
    state: str | None
    error: RunnerError
    if end.signal:
        state = "interrupted"
        error = signals.Stop(end.signal).error()
    else:
        state, error = _cause_of(run, end.failures, debug)
    if machines.rank or held(run):
        state = None
    if state:
        with contextlib.suppress(OSError), open_own(run.log, "a", encoding="utf-8") as log:
            log.write(f"{error}\n")
    worker.conclude(run, state, error)
    return error.code


def _start(run: Run, num_processes: int, debug: bool, machines: Alone) -> End:
    """Have torchrun start the processes of this machine, and wait for their end."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    elastic = logging.getLogger("torch.distributed.elastic")  # it would print what we print
    elastic.addHandler(logging.NullHandler())
    elastic.propagate = False
    stopped = None
    failures: list[dict[str, Any]] = []
    signal_names = [signal.Signals(number).name for number in signals.stop_signals()]
    python, *words = processes.python_words("runner.launch.local")
    words.append(str(run.folder))
    if debug:
        words.append("--debug")
    with tempfile.TemporaryDirectory(prefix="processes-") as place, machines.meeting() as where:
        config = LaunchConfig(
            **where,
            nproc_per_node=num_processes,
            run_id=run.folder.name,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=place),
            signals_to_handle=",".join(signal_names),
            shutdown_timeout=int(processes.grace_of(run.experiment.launcher)),
        )
        try:
            # torchrun answers the signals itself; afterwards they have their old answers.
            with signals.handle_signals(signals.Stop()):
                elastic_launch(config, python)(*words)
        except SignalException as stop:
            if stop.sigval == signal.SIGHUP:
                signals.detach_terminal()
            stopped = int(stop.sigval)
        except ChildFailedError as failed:
            for rank, child in failed.failures.items():
                failure: dict[str, Any] = {
                    "who": f"rank {rank}{machines.place}",
                    "code": child.exitcode,
                    "timestamp": child.timestamp - DELAY,
                }
                # The record that it has written itself; a text where it could not.
                record = child.error_file_data["message"]
                if isinstance(record, Mapping):
                    failure |= record["extraInfo"]
                failures.append(failure)
    return End(stopped, failures, len(read_adjustments(run.folder)))


def _cause_of(
    run: Run, failures: list[dict[str, Any]], debug: bool
) -> tuple[str | None, RunnerError]:
    def order(own: Mapping[str, Any]) -> tuple[bool, bool, float]:
        error = _error_of(own)
        if error is None:
            was_stopped = own["code"] == -signal.SIGTERM
            # the others may take its loss for theirs
            is_cause = own["code"] == -signal.SIGKILL
        else:
            was_stopped = isinstance(error, Interrupted)
            is_cause = type(error) is not RunnerError
        return was_stopped, not is_cause, own["timestamp"]

    own = min(failures, key=order)
    error = _error_of(own)
    if error is not None:
        error.heading += f" ({own['who']})"
        if debug:
            print(own["py_callstack"], file=sys.stderr)
        return own["state"], error
    found = f"{own['who']} {processes.describe_exit(own['code'])}"
    if own["code"] < 0:
        return "failed", EnvironmentFault(
            Fault(
                where="processes",
                found=found,
                fix="run the same command again to continue",
            )
        )
    return "failed", RunnerError(
        Fault(
            where=str(run.log),
            found=found,
            fix="read the end of it",
        )
    )


def _error_of(own: Mapping[str, Any]) -> RunnerError | None:
    """The error that a failed process has recorded, None where it could not."""
    return RunnerError.from_dict(own["error"]) if "error" in own else None


def record_of(state: str | None, error: RunnerError) -> dict[str, Any]:
    """All that is known of an end that came with an error, for whoever says which was the cause."""
    return {
        "error": error.to_dict(),
        "state": state,
        "timestamp": time.time(),
        "py_callstack": hidden(traceback.format_exc()),
    }


def _record(run: Run, state: str | None, error: RunnerError, debug: bool) -> None:
    text = {"message": str(error), "extraInfo": record_of(state, error)}
    write_json(Path(os.environ["TORCHELASTIC_ERROR_FILE"]), {"message": text})


if __name__ == "__main__":
    sys.exit(worker.work(sys.argv[1], debug="--debug" in sys.argv, record_end=_record))
