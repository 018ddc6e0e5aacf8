"""sbatch, squeue, scancel, scontrol and srun without Slurm.

This file under each name, first on PATH.

The queue is the folder $SLURM_STAND_IN, a file for each task of an array, which holds what squeue
prints. ``sbatch`` really runs the script, in a process that outlives it: once for each task, again
where the task was put back, and never where what it waits for has failed. In the file ``mode``
stands what else it does: ``held`` runs nothing, ``slow`` takes its time, ``waits`` waits for the
file ``go``, ``kills`` kills the command that has called it as soon as the job is there, ``late``
fails when it is there, ``mute`` submits nothing and says so to nobody. ``squeue`` has ``garbled``
and ``hangs``.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

QUEUE = Path(os.environ.get("SLURM_STAND_IN", "."))


def write(path, job):
    path.with_suffix(".new").write_text(json.dumps(job))
    path.with_suffix(".new").replace(path)


def read(path):
    return json.loads(path.read_text())


def mode_of():
    return (QUEUE / "mode").read_text() if (QUEUE / "mode").exists() else ""


def sbatch(*words):
    script = Path(words[-1])
    mode = mode_of()
    options = dict(
        re.findall(
            r"--([\w-]+)=(\S+)",
            "\n".join([*re.findall("#SBATCH (.*)", script.read_text()), *words]),
        )
    )
    if "partition" in options and options["partition"] != "gpu":
        sys.exit(f"sbatch: error: invalid partition specified: {options['partition']}")
    if "slow" in mode:
        (QUEUE / "asked").touch()
        time.sleep(1)
    while "waits" in mode and not (QUEUE / "go").exists():
        time.sleep(0.02)
    if "mute" in mode:
        return
    with open(QUEUE / "calls", "a") as calls:
        calls.write(" ".join(words) + "\n")
    number = len((QUEUE / "calls").read_text().splitlines())
    for task in tasks_of(options["array"]):
        job = {
            "state": "PENDING",
            "reason": "Priority",
            "name": options["job-name"],
            "script": str(script),
            "output": options["output"].replace("%A_%a", f"{number}_{task}"),
            "awaits": options.get("dependency", ""),
            "pid": 0,
            "back": False,
        }
        write(QUEUE / f"{number}_{task}", job)
    if "late" in mode:
        sys.exit(
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
        )
    print(f"Welcome\n{number};test", flush=True)
    if "kills" in mode:
        os.kill(os.getppid(), signal.SIGKILL)
    if "held" not in mode and os.fork() == 0:
        run_all(number)


def tasks_of(array):
    """The task numbers of ``0-3`` or ``0,2``; the number after a % limits how many run at once."""
    tasks, _, _ = array.partition("%")
    first, _, last = tasks.partition("-")
    if last:
        return list(range(int(first), int(last) + 1))
    return [int(task) for task in tasks.split(",")]


def run_all(number):
    """Run each task of an array in a process of its own, apart from whoever has submitted it."""
    os.setsid()
    for descriptor in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    os.closerange(3, 256)  # the lock, which is for those who submit
    for path in sorted(QUEUE.glob(f"{number}_[0-9]*")):
        if os.fork() == 0:
            run(path)
            os._exit(0)


def run(path):
    """Run a task until it has ended for good."""
    job = read(path)
    kind, _, awaited = job["awaits"].partition(":")
    awaited = awaited if "_" in awaited else f"{awaited}_{path.name.partition('_')[2]}"
    while kind and not (QUEUE / f"{awaited}.code").exists():
        time.sleep(0.05)
    code = 1
    if not path.exists():
        return
    if not kind or (QUEUE / f"{awaited}.code").read_text() == "0":
        count = 0
        job["back"] = True
        while job["back"]:
            environment = {
                "SLURM_ARRAY_TASK_ID": path.name.partition("_")[2],
                "SLURM_JOB_ID": path.name,
            }
            environment |= {"SLURM_RESTART_COUNT": str(count)} if count else {}
            with open(job["output"], "a") as log:
                words = ["bash", job["script"]]
                started = subprocess.Popen(
                    words,
                    env=os.environ | environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            write(
                path,
                read(path)
                | {"state": "RUNNING", "reason": "None", "pid": started.pid, "back": False},
            )
            code = started.wait()
            count = count + 1
            job = read(path)
    (QUEUE / f"{path.name}.code").write_text(str(code))
    path.unlink()


def squeue(*words):
    if "hangs" in mode_of():
        time.sleep(60)
    if "garbled" in mode_of():
        sys.stdout.buffer.write(b"\xff today the cluster is closed\n")
    for path in sorted(QUEUE.glob("[0-9]*_*[0-9]")):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            job = read(path)
            print(f"{path.name}|{job['state']}|{job['reason']}|{job['name']}")


def scancel(*words):
    for path in (QUEUE / word for word in words if not word.startswith("-")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            job = read(path)
            if job["pid"]:
                os.killpg(job["pid"], signal.SIGTERM)
            else:
                path.unlink()


def scontrol(*words):
    write(
        QUEUE / words[-1],
        read(QUEUE / words[-1]) | {"back": True, "state": "PENDING", "reason": "BeginTime"},
    )


def srun(*words):
    words = [word for word in words if not word.startswith(("--ntasks", "--cpus"))]
    os.execvp(words[0], words)


if __name__ == "__main__":
    globals()[Path(sys.argv[0]).name](*sys.argv[1:])
