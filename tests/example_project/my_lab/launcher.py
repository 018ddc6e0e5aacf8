"""A launcher of your own: the processes of a run yield to whatever else this machine does."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from runner.errors import EnvironmentFault, Fault
from runner.launch import processes, signals, worker
from runner.run import Run
from runner.run.adjustments import read_adjustments


def gentle(folder, *, debug=False, num_processes=1, niceness=19):
    """Start the processes, wait for their end, and return the exit code."""
    run = Run(Path(folder))
    adjusted = len(read_adjustments(run.folder))
    words = [
        "nice",
        f"-n{niceness}",
        sys.executable,
        "-m",
        "runner.launch",
        str(run),
        "--trust",
        *["--debug"] * debug,
    ]
    with socket.create_server(("localhost", 0)) as free:
        world = {
            "WORLD_SIZE": num_processes,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": free.getsockname()[1],
        }
    started = []
    for rank in range(num_processes):
        world_of_rank = {"RANK": rank, "LOCAL_RANK": rank, **world} if num_processes > 1 else {}
        environment = os.environ | {name: str(value) for name, value in world_of_rank.items()}
        started.append(subprocess.Popen(words, env=environment, start_new_session=True))
    with signals.handle_signals(
        lambda number, frame: [process.send_signal(number) for process in started]
    ):
        while None in (codes := [process.poll() for process in started]) and not any(codes):
            time.sleep(0.1)
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(processes.grace_of(run.experiment.launcher))
            process.kill()
    failed = next(filter(None, codes), 0)
    if failed and len(read_adjustments(run.folder)) > adjusted:
        return gentle(folder, debug=debug, num_processes=num_processes, niceness=niceness)
    if failed < 0:  # it could not record its end itself
        error = EnvironmentFault(
            Fault("process", processes.describe_exit(failed), fix="run the same command again")
        )
        worker.conclude(run, "failed", error)
        return error.code
    return failed
