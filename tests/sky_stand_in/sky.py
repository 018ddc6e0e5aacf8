"""``sky jobs launch|queue|cancel`` without SkyPilot.

Its machines are folders of their own below $SKY_STAND_IN: each job runs in a fresh copy of the
working folder without ``outputs``, as a machine of a cloud does, and sees nothing of this one. A
file ``mode`` says what else happens: ``held`` starts nothing, ``preempts`` kills the first machine
of a job once its run has a checkpoint in the store and begins again on another, ``setup`` fails.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

CLOUD = Path(os.environ.get("SKY_STAND_IN", "."))


def read_jobs():
    path = CLOUD / "jobs.json"
    return json.loads(path.read_text()) if path.exists() else []


def set_job(name, **values):
    jobs = read_jobs()
    next(job for job in jobs if job["job_name"] == name).update(values)
    write_jobs(jobs)


def write_jobs(jobs):
    (CLOUD / "jobs.new").write_text(json.dumps(jobs, indent=2))
    (CLOUD / "jobs.new").replace(CLOUD / "jobs.json")


def launch(*words):
    name = words[words.index("--name") + 1]
    task = yaml.safe_load(Path(words[-1]).read_text())
    jobs = read_jobs()
    job = {"job_id": len(jobs) + 1, "job_name": name, "status": "PENDING", "failure_reason": None}
    write_jobs([job, *jobs])
    source = Path(task["workdir"]).absolute()
    if "held" in mode() or os.fork():
        print(f"Job submitted, ID: {job['job_id']}")
        return
    os.setsid()
    for descriptor in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    os._exit(run(name, task, source))


def mode():
    return (CLOUD / "mode").read_text() if (CLOUD / "mode").exists() else ""


def run(name, task, source):
    if "setup" in mode():
        set_job(name, status="FAILED_SETUP", failure_reason="pip: no such package")
        return 1
    preempts = "preempts" in mode()
    store = Path(task["run"].rpartition("--store=")[2].strip("'"))
    number = 0
    while True:
        number += 1
        machine = CLOUD / "machines" / f"{name}-{number}"
        shutil.copytree(source, machine, ignore=shutil.ignore_patterns("outputs", "cloud", "bin"))
        with open(machine / "log", "w") as log:
            process = subprocess.Popen(
                ["/bin/bash", "-c", task["run"]],
                cwd=machine,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        set_job(name, status="RUNNING", pid=process.pid)
        is_taken = False
        while preempts and number == 1 and process.poll() is None:
            contents = [path.read_text() for path in store.glob("*/*/.contents.json")]
            if any("/seal.json" in text for text in contents):
                is_taken = True
                switch_off(machine)
            time.sleep(0.02)
        code = process.wait()
        if is_taken:  # whatever of it ended last
            set_job(name, status="RECOVERING")
            continue
        state = "SUCCEEDED" if code == 0 else "FAILED"
        if read_jobs()[0].get("cancelled"):
            state = "CANCELLED"
        set_job(name, status=state, failure_reason=None if code == 0 else f"exit code {code}")
        return code


def switch_off(machine):
    """Kill all that runs on a machine, which is what works in its folder."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "cwd") == str(machine):
                os.kill(int(folder.name), signal.SIGKILL)


def queue(*words):
    print(json.dumps(read_jobs(), indent=2))


def cancel(*words):
    name = words[words.index("--name") + 1]
    job = next(job for job in read_jobs() if job["job_name"] == name)
    set_job(name, status="CANCELLED", cancelled=True)
    if job.get("pid"):
        os.killpg(job["pid"], signal.SIGTERM)


if __name__ == "__main__":
    {"launch": launch, "queue": queue, "cancel": cancel}[sys.argv[2]](*sys.argv[3:])
