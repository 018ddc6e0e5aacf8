"""Slurm itself, on this machine: runs that it starts, stops and starts again end as they would alone.

    apt-get install slurm-wlm munge        (as root, which the daemons below need, too)
    python tests/fault/slurm.py            about ten minutes, most of them the waits of Slurm
    python tests/fault/slurm.py requeue cancel

Starts munged, slurmctld and slurmd in a folder of their own, on ports of their own, and stops them at the end. Each case
is the public command with ``launcher=slurm``. Prints a line for each: what was seen, and how long it took; the exit
code is 1 where one fails.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]

from runner.io.files import read_json, sha256
from runner.run import Run
from runner.run.read import read_metrics

DAEMONS = ("munged", "slurmctld", "slurmd")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
ReturnToService=2
MaxArraySize=1001
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """The daemons of a cluster of one machine; ``environment`` leads its commands there."""

    def __init__(self, folder: Path):
        self.folder, self.processes = folder, []
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as two:
            ports = [each.getsockname()[1] for each in (one, two)]
        host = socket.gethostname().partition(".")[0]
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=host, ports=ports))
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        own = {name: f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "log-file")}
        seed = [f"--seed-file={folder}/munge.seed", f"--key-file={folder}/key"]
        self._start("munged", "--foreground", "--force", *own.values(), *seed)
        self._wait(lambda: (folder / "munge.socket").exists())
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        self._wait(lambda: "idle" in self("sinfo", "--noheader", "--format=%T"))

    def _start(self, *words: str) -> None:
        log = open(self.folder / f"{words[0]}.out", "w")
        environment = os.environ | self.environment
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)

    def _wait(self, ready: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            failed = [each.args for each in self.processes if each.poll() is not None]
            assert not failed and time.monotonic() < deadline, f"no cluster: {failed or 'no answer'} ({self.folder})"
            time.sleep(0.1)

    def __call__(self, *words: str) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(words, env=os.environ | self.environment, capture_output=True, text=True)
        return done.stdout + done.stderr

    def close(self) -> None:
        """End all jobs, then the daemons."""
        self("scancel", "--me")
        deadline = time.monotonic() + 60
        while self("squeue", "--noheader").strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def lacking() -> str:
    """What this machine lacks for a cluster of its own; empty where nothing."""
    names = [name for name in DAEMONS if not shutil.which(name)]
    return f"no {', '.join(names)}" if names else "" if os.geteuid() == 0 else "not root, as its daemons need"
