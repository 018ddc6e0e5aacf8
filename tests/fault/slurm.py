"""Slurm itself on this machine: runs that it starts, stops and restarts end as they would alone.

    apt-get install slurm-wlm munge        (as root, which the daemons below need, too)
    python tests/fault/slurm.py            about ten minutes, most of them the waits of Slurm
    python tests/fault/slurm.py put_back cancel

Starts munged, slurmctld and slurmd in a folder of their own, on ports of their own, and stops them
at the end. Each case is the public command with ``launcher=slurm``. Prints a line for each: what
was seen, and how long it took; the exit code is 1 where one fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]

from runner.io.files import sha256
from runner.run import Run

DAEMONS = ("munged", "slurmctld", "slurmd")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
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
NodeName={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=two Nodes={host},localhost MaxTime=INFINITE State=UP
"""


class Cluster:
    """The daemons of a cluster of one machine, and the public command in ``work``, led there by
    ``environment``.
    """

    def __init__(self, folder: Path, work: Path):
        self.folder = folder
        self.work = work
        self.processes = []
        (folder / "state").mkdir(parents=True)
        folder.chmod(0o755)
        with contextlib.ExitStack() as free:
            ports = [
                free.enter_context(socket.create_server(("", 0))).getsockname()[1] for _ in range(3)
            ]
        host = socket.gethostname().partition(".")[0]
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=host, ports=ports))
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        variables = {
            name: f"--{name}={folder}/munge.{name.partition('-')[0]}"
            for name in ("socket", "pid-file", "log-file")
        }
        seed = [f"--seed-file={folder}/munge.seed", f"--key-file={folder}/key"]
        self._start("munged", "--foreground", "--force", *variables.values(), *seed)
        self.until(lambda: (folder / "munge.socket").exists())
        self._start("slurmctld", "-D")
        for node in (host, "localhost"):  # two names that lead here
            self._start("slurmd", "-D", "-N", node)
        self.until(
            lambda: "idle 2" in self("sinfo", "--noheader", "--partition=two", "--format=%T %D")
        )

    def _start(self, *words: str) -> None:
        environment = os.environ | self.environment
        with open(self.folder / f"{words[0]}.out", "w") as log:
            process = subprocess.Popen(
                words, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)

    def until(self, ready: Callable[[], object], seconds: float = 300) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not ready():
            failed = [process.args for process in self.processes if process.poll() is not None]
            assert not failed and time.monotonic() < deadline, (
                f"{failed or 'no end'} ({self.folder})"
            )
            time.sleep(0.1)

    def command(self, *words: str) -> str:
        """The output of the public command, which must succeed."""
        started = self.start(*words)
        output = started.communicate()[0]
        assert started.returncode == 0, output
        return output

    def start(self, *words: str) -> subprocess.Popen:
        """The public command in a process of its own."""
        path = os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | self.environment | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(
            [sys.executable, "-m", "runner", *words], cwd=self.work, env=environment, **pipes
        )

    def runs(self, name: str) -> list[Run]:
        return [
            Run(path.parent)
            for path in sorted((self.work / "outputs" / name).glob("*/config.yaml"))
        ]

    def job(self, name: str) -> str:
        """A job of the runs of a name."""
        lines = self("squeue", "--noheader", "--array", "--format=%i %j").splitlines()
        return next(
            line.partition(" ")[0]
            for line in lines
            if line.partition(" ")[2].startswith(f"{name}.")
        )

    def hurry(self, job: str) -> str:
        """Start a requeued job at once, without Slurm's delay of two minutes; return the queue."""
        queue = self("squeue", "--noheader", "--array", "--format=%i %r").strip()
        if f"{job} BeginTime" in queue:
            self("scontrol", "update", f"jobid={job}", "starttime=now")
        return queue

    def log(self, name: str) -> str:
        """The output of all jobs of a name."""
        return "".join(
            path.read_text()
            for path in sorted((self.work / "outputs" / name / ".queue").glob("*.log"))
        )

    def __call__(self, *words: str) -> str:
        """The output of a Slurm command."""
        done = subprocess.run(
            words, env=os.environ | self.environment, capture_output=True, text=True
        )
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
    """The missing parts for a cluster on this machine, in words; empty if there are all."""
    names = [name for name in DAEMONS if not shutil.which(name)]
    return (
        f"no {', '.join(names)}"
        if names
        else ""
        if os.geteuid() == 0
        else "not root, as its daemons need"
    )


@contextlib.contextmanager
def running(work: Path) -> Iterator[Cluster]:
    """A cluster whose files are in a folder of the working folder."""
    (work / "mine.py").write_text(SLOW)
    cluster = Cluster(work / "slurm", work)
    try:
        yield cluster
    finally:
        cluster.close()


SLOW = """
import time
from transformers import TrainerCallback

class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.2)
"""
WORDS = (
    "trainer=sft",
    "metric=none",
    "dataset.limit.eval=8",
    "trainer.args.logging_steps=1",
    "callback.slow._target_=mine.Slow",
)
WORDS += ("allow=[mine]",)
SLURM = ("launcher=slurm", "launcher.gpus_per_node=0")
Words = tuple[str, ...]
EQUAL = "saved at its step, went on, and its bits are those of an undisturbed run"


def weights(cluster: Cluster, name: str) -> list[str]:
    return [sha256(run.model / "model.safetensors") for run in cluster.runs(name)]


def put_back(
    cluster: Cluster,
    stop: Callable[[str], object] | None = None,
    steps: int = 20,
    words_there: Words = (),
    words_here: Words = (),
) -> str:
    """Stop a run in the middle of its steps, by ``scontrol requeue`` by default, and restart it at
    once.

    ``there`` are words for Slurm, ``here`` those of the same run without.
    """
    name = f"back{steps}"
    words = (*WORDS, f"trainer.args.max_steps={steps}")
    submit = (*words, *SLURM, f"name={name}", *words_there)
    cluster.command(*submit)
    job = cluster.job(name)
    cluster.until(lambda: cluster.runs(name)[0].status()["step"] > 3)
    (stop or (lambda job: cluster("scontrol", "requeue", job)))(job)
    cluster.until(lambda: cluster.runs(name)[0].status()["state"] == "interrupted")
    cluster.until(lambda: "PENDING" in cluster("squeue", "--noheader", "--array", "--format=%T"))
    status = cluster.runs(name)[0].status()
    output = cluster.command(*submit)
    assert f"step {status['step']} of {steps}" in output and "PENDING" in output, output
    cluster.until(lambda: not cluster.hurry(job))
    assert f"resumes   from step {status['step']}" in cluster.log(name), cluster.log(name)
    cluster.command(*words, "name=alone", *words_here)
    return EQUAL if weights(cluster, name)[0] in weights(cluster, "alone") else "OTHER BITS"


def time_limit(cluster: Cluster) -> str:
    """A time limit of two minutes, which Slurm announces a minute or more before."""
    words = ("launcher.time=2", "launcher.signal_seconds=60")
    began = time.monotonic()
    text = put_back(cluster, lambda job: None, 250, words)
    assert "SIGUSR2" in cluster.log("back250")
    assert "TIME LIMIT" not in cluster.log("back250")
    return f"{text} ({time.monotonic() - began:.0f} s)"


def run(cluster: Cluster) -> str:
    words = (*WORDS, "trainer.args.max_steps=10")
    output = cluster.command(*words, *SLURM, "name=run", "launcher.wait=true")
    assert "finished" in output, output
    assert "already" in cluster.command(*words, *SLURM, "name=run")
    cluster.command(*words, "name=here")
    return (
        "finished, with the bits of a run without Slurm"
        if weights(cluster, "run") == weights(cluster, "here")
        else "OTHER BITS"
    )


def array(cluster: Cluster) -> str:
    words = (
        "-m",
        "seed=0,1,2",
        *WORDS,
        "trainer.args.max_steps=5",
        "name=array",
        "launcher.wait=true",
    )
    output = cluster.command(*words, *SLURM)
    assert "3 of 3 runs finished" in output and output.count("submitted") == 1, output
    return "3 of 3 finished, one array"


def cancel(cluster: Cluster) -> str:
    """Cancel a run that trains and one that waits, by hand and by the verb.

    The same command resumes each.
    """
    words = (*WORDS, "trainer.args.max_steps=40", "name=cancel", *SLURM)
    states = []
    for way, step in (("scancel", 3), ("verb", 12)):
        cluster.command("-m", "seed=0,1,2", *words)
        job = cluster.job("cancel").partition("_")[0]
        cluster.until(
            lambda step=step: max(run.status()["step"] for run in cluster.runs("cancel")) > step
        )
        cluster("scancel", job) if way == "scancel" else cluster.command("cancel", "outputs/cancel")
        cluster.until(lambda: not cluster("squeue", "--noheader").strip())
        states.append(" ".join(run.status()["state"] for run in cluster.runs("cancel")))
    assert states[1] == "interrupted interrupted interrupted", states
    output = cluster.command("-m", "seed=0,1,2", *words, "launcher.wait=true")
    assert "3 of 3 runs finished" in output and cluster.log("cancel").count("resumes") >= 2, output
    return f"after scancel: {states[0]}; after the verb: {states[1]}; then 3 of 3 finished"


def twice(cluster: Cluster) -> str:
    """Two commands at once, and one after them."""
    words = (*WORDS, "trainer.args.max_steps=40", "name=twice", *SLURM)
    both = [cluster.start(*words) for _ in range(2)]
    output = "".join(process.communicate()[0] for process in both) + cluster.command(*words)
    jobs = cluster("squeue", "--noheader", "--array", "--format=%i").split()
    assert len(jobs) == 1 and output.count("submitted") == 1, output
    cluster("scancel", *jobs)
    return "one job of three commands"


def stages(cluster: Cluster) -> str:
    """Two chains: one whose first stage is requeued, and one whose first stage fails."""
    (cluster.work / "conf" / "experiment").mkdir(parents=True)
    (cluster.work / "conf" / "experiment" / "two.yaml").write_text(STAGES)
    words = ("experiment=two", *SLURM, "--config-dir", "conf", "allow=[mine]", "launcher.wait=true")
    started = cluster.start("-m", "sft.seed=0,1", *words, "name=two")
    cluster.until(
        lambda: cluster.runs("two-sft") and cluster.runs("two-sft")[0].status()["step"] > 3
    )
    job = cluster.job("two-sft").partition("_")[0]
    cluster("scontrol", "requeue", f"{job}_0")
    cluster.until(lambda: "BeginTime" in cluster.hurry(f"{job}_0"))
    output = started.communicate()[0]
    assert "2 of 2 staged runs finished" in output, output
    failing = cluster.start(
        "-m", "sft.seed=0,1", *words, "sft.trainer.args.max_length=20", "name=failing"
    )
    output = failing.communicate()[0]
    assert failing.returncode == 2 and output.count("not begun") == 2, output
    assert not cluster("squeue", "--noheader").strip()
    return "aftercorr: 2 of 2 finished, though one was put back; a failed one leaves none pending"


STAGES = """# @package _global_
name: two
stages:
  sft: [trainer=sft, metric=none, dataset.limit.eval=8, trainer.args.max_steps=30,
    callback.slow._target_=mine.Slow]
  more: [trainer=sft, metric=none, dataset.limit.eval=8, trainer.args.max_steps=3,
    "model.path=${run:sft}"]
"""


def machines(cluster: Cluster) -> str:
    """One run on two nodes, both on this machine, requeued between its steps."""
    cluster_words = ("launcher.num_machines=2", "launcher.partition=two", "batch=8")
    return put_back(cluster, None, 25, cluster_words, ("launcher.num_processes=2", "batch=8"))


def killed(cluster: Cluster) -> str:
    """The process of a run is killed, as if memory ran out."""
    words = (
        *WORDS,
        "trainer.args.max_steps=41",
        "trainer.args.save_steps=5",
        "name=killed",
        *SLURM,
    )
    started = cluster.start(*words, "launcher.wait=true")
    cluster.until(lambda: cluster.runs("killed") and cluster.runs("killed")[0].status()["step"] > 6)
    os.kill(cluster.runs("killed")[0].status()["pid"], signal.SIGKILL)
    output = started.communicate()[0]
    status = cluster.runs("killed")[0].status()
    assert (
        started.returncode == 143
        and status["state"] == "interrupted"
        and "queue" in status["cause"]
    ), (output, status)
    cluster.command(*words, "launcher.wait=true")
    assert "resumes   from step 5" in cluster.log("killed")
    return "interrupted, with its cause; the same command went on from its last checkpoint"


def refused(cluster: Cluster) -> str:
    """Words that this cluster does not accept."""
    refusals = []
    for word in (
        "partition=nope",
        "gpus_per_node=8",
        "nodelist=n7",
        "constraint=a100",
        "parameters.foo=1",
        "mem=9000G",
    ):
        done = cluster.start(*WORDS, *SLURM, f"launcher.{word}", "name=refused")
        done.communicate()
        state = cluster.runs("refused")[0].status()["state"]
        refusals.append(f"{word} {done.returncode}")
        assert done.returncode == 5 and state == "created", (word, done.returncode, state)
    return ", ".join(refusals)


CASES = {
    case.__name__: case
    for case in (run, array, put_back, time_limit, cancel, twice, stages, machines, killed, refused)
}


def main(names: list[str]) -> int:
    if missing := lacking():
        sys.exit(f"{missing}: apt-get install slurm-wlm munge")
    failed = 0
    with tempfile.TemporaryDirectory() as place, running(Path(place)) as cluster:
        for name in names or CASES:
            began = time.monotonic()
            try:
                text = CASES[name](cluster)
            except AssertionError as error:
                text = f"FAILED: {error}"
                failed = 1
                cluster("scancel", "--me")
                cluster.until(lambda: not cluster("squeue", "--noheader").strip())
            failed |= "OTHER" in text
            print(f"{name:<11} {time.monotonic() - began:5.0f} s  {text}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
