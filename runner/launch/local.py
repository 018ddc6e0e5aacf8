"""The launcher of this machine: run folder -> process, or several. What one has to do: README.md beside it."""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from runner.config import world_size
from runner.errors import EnvironmentFault, Fault, RunnerError
from runner.io.files import open_own, write_json
from runner.io.secrets import hidden
from runner.launch import worker
from runner.run import PATIENCE, Run, held, locked
from runner.run.adjustments import read_adjustments

DELAY = 2  # most seconds between the end of a process, in whole seconds, and that of another which misses it
KINDS = {kind.__name__: kind for kind in RunnerError.__subclasses__()}


@dataclass(frozen=True)
class End:
    """The end of the processes of a run: the signal that came, and those that failed, with what is known of each."""

    signal: int | None
    failures: list[dict[str, Any]]
    adjustments: int  # that the run has made so far


class Alone:
    """The one machine of a run. ``accelerate`` has a class for one of several."""

    rank = 0
    place = ""  # in words, after the number of a process

    @contextlib.contextmanager
    def meeting(self) -> Iterator[dict[str, Any]]:
        """The place where the processes meet, as torchrun takes it, as long as they train."""
        yield {"min_nodes": 1, "max_nodes": 1, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}

    def share(self, end: End) -> End:
        """The end of the processes of all machines."""
        return end


def local(folder: str | Path, *, num_processes: int = 1, debug: bool = False) -> int:
    """Train here: in this process, or in several as torchrun starts them: ``accelerate launch --cpu`` runs one."""
    starts = num_processes > 1 and world_size() == 1  # else they are there, and this is one of them
    return train_together(folder, num_processes, debug, Alone()) if starts else worker.work(folder, debug=debug)


def train_together(folder: str | Path, num_processes: int, debug: bool, machines: Alone) -> int:
    """Train in so many processes on each of the machines, of which the first writes the state."""
    run = Run(Path(folder))
    adjusted = len(read_adjustments(run.folder))
    if machines.rank == 0:
        with locked(run, PATIENCE), worker.logging_to(run.log):
            pass  # refused here, before anything is started; and what was printed so far, these processes have not said
    worker.prepare_environment()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else it is said that all weights have gradients
    end = machines.share(_start(run, num_processes, debug, machines))
    if not (end.signal or end.failures) or run.status()["state"] == "finished":
        return 0
    if end.adjustments > adjusted and not end.signal:  # torch.distributed cannot re-form a group after a rank has died
        return train_together(folder, num_processes, debug, machines)
    stopped = ("interrupted", worker.Stop(end.signal).error()) if end.signal else None
    state, error = stopped or _cause_of(run, end.failures, debug)
    state = None if machines.rank or held(run) else state
    if state:
        with contextlib.suppress(OSError), open_own(run.log, "a", encoding="utf-8") as log:
            log.write(f"{error}\n")
    worker.conclude(run, state, error)
    return error.code


def _start(run: Run, num_processes: int, debug: bool, machines: Alone) -> End:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    elastic = logging.getLogger("torch.distributed.elastic")  # it would print what we print
    elastic.addHandler(logging.NullHandler())
    elastic.propagate = False
    stopped, failures, signals = None, list[dict[str, Any]](), worker.stop_signals()
    with tempfile.TemporaryDirectory(prefix="processes-") as place, machines.meeting() as where:
        config = LaunchConfig(
            **where,
            nproc_per_node=num_processes,
            run_id=run.folder.name,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=place),
            signals_to_handle=",".join(signal.Signals(number).name for number in signals),
            shutdown_timeout=int(worker.grace_of(run.cfg["launcher"])),
        )
        python, *words = worker.python_words("runner.launch.local")
        try:
            with worker.handle_signals(worker.Stop()):  # gives the answers back that torchrun replaces
                elastic_launch(config, python)(*words, str(run.folder), *(["--debug"] if debug else []))
        except SignalException as stop:
            if stop.sigval == signal.SIGHUP:
                worker.detach_terminal()
            stopped = int(stop.sigval)
        except ChildFailedError as failed:
            for rank, each in failed.failures.items():
                own = {"who": f"rank {rank}{machines.place}", "code": each.exitcode}
                own |= {"timestamp": each.timestamp - DELAY}
                said = each.error_file_data["message"]  # what it has recorded itself; a text where it could not
                failures.append(own | (said["extraInfo"] if isinstance(said, Mapping) else {}))
    return End(stopped, failures, len(read_adjustments(run.folder)))


def _cause_of(run: Run, failures: list[dict[str, Any]], debug: bool) -> tuple[str | None, RunnerError]:
    def order(own: Mapping[str, Any]) -> tuple[bool, bool, float]:
        was_stopped = own.get("kind") == "Interrupted" or ("kind" not in own and own["code"] == -signal.SIGTERM)
        is_cause = own.get("kind") in KINDS or own["code"] == -signal.SIGKILL  # the others may take its loss for theirs
        return was_stopped, not is_cause, own["timestamp"]

    own = min(failures, key=order)
    if "kind" in own:
        error = KINDS.get(own["kind"], RunnerError)(Fault(*beats) for beats in own["faults"])
        error.heading += f" ({own['who']})"
        if debug:
            print(own["py_callstack"], file=sys.stderr)
        return own["state"], error
    found = f"{own['who']} {worker.describe_exit(own['code'])}"
    if own["code"] < 0:
        return "failed", EnvironmentFault(Fault("processes", found, fix="run the same command again to continue"))
    return "failed", RunnerError(Fault(str(run.log), found, fix="read the end of it"))


def record_of(state: str | None, error: RunnerError) -> dict[str, Any]:
    """All that is known of an end that came with an error, for whoever says which was the cause."""
    faults = [list(map(str, astuple(fault))) for fault in error.faults]
    own = {"kind": type(error).__name__, "faults": faults, "state": state, "timestamp": time.time(), "code": error.code}
    return own | {"py_callstack": hidden(traceback.format_exc())}


def _record(run: Run, state: str | None, error: RunnerError, debug: bool) -> None:
    text = {"message": str(error), "extraInfo": record_of(state, error)}
    write_json(Path(os.environ["TORCHELASTIC_ERROR_FILE"]), {"message": text})


if __name__ == "__main__":
    sys.exit(worker.work(sys.argv[1], debug="--debug" in sys.argv, record_end=_record))
