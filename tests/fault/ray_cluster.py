"""Ray itself, on this machine: runs that it starts, stops and starts again end as they would alone.

    pip install 'ray>=2.40,<3'
    python tests/fault/ray_cluster.py            about ten minutes
    python tests/fault/ray_cluster.py node cancel

Each case is the public command with ``launcher=ray``: on a cluster that it starts for itself, or on
one of two nodes on this machine. Prints a line for each: what was seen, and how long it took; the
exit code is 1 where one fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parent.parent.parent)
sys.path.insert(0, ROOT)

from runner.errors import EnvironmentFault
from runner.io.files import sha256
from runner.run import Run, held

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
# of a cluster that outlives a command
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}
WORDS = (
    "trainer=sft",
    "dataset.limit.train=64",
    "dataset.limit.eval=8",
    "trainer.args.logging_steps=1",
    "metric=none",
)
SHORT = (*WORDS, "trainer.args.max_steps=4")
LONG = (*WORDS, "trainer.args.max_steps=60", "trainer.args.save_steps=5")
ENDLESS = (*WORDS, "trainer.args.max_steps=5000")
MACHINE = "launcher=ray"


class Commands:
    """The public command in a folder of a case's own, and the runs that it has made there."""

    def __init__(self, folder: Path, **environment: str):
        self.folder = folder
        self.environment = os.environ | QUIET | environment
        self.environment |= {"PYTHONPATH": ROOT, "RAY_TMPDIR": str(folder)}

    def start(self, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "runner", *words]
        settings = {
            "cwd": self.folder,
            "env": self.environment,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        return subprocess.Popen(command, text=True, start_new_session=True, **settings)

    def __call__(self, *words: str, code: int = 0) -> str:
        """The output of a command; AssertionError if its exit code is another."""
        return self.end(self.start(*words), code)

    def end(self, process: subprocess.Popen, code: int = 0) -> str:
        out, err = process.communicate(timeout=240)
        assert process.returncode == code, (
            f"exit code {process.returncode}, not {code}:\n{out}{err}"
        )
        assert "Traceback" not in out + err and "raylet" not in out + err, out + err
        return out + err

    def runs(self, name: str) -> list[Run]:
        return sorted(
            map(Run, (self.folder / "outputs" / name).glob("*-*")), key=lambda run: run.folder
        )

    def wait_for(self, name: str, step: int = 1, count: int = 1) -> list[Run]:
        """The runs of a name, once so many train and have made a step."""
        wait_for(
            lambda: (
                sum(run.status()["step"] >= step and held(run) for run in self.runs(name)) >= count
            )
        )
        return self.runs(name)

    def model(self, name: str) -> str:
        [run] = self.runs(name)
        assert run.status()["state"] == "finished", run.status()
        return sha256(run.model / "model.safetensors")


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def family(pid: int) -> list[int]:
    """The number of a process, its parent's, and so on, up to the raylet."""
    pids = [pid]
    while b"raylet/raylet" not in Path(f"/proc/{pids[-1]}/cmdline").read_bytes():
        stat = Path(f"/proc/{pids[-1]}/stat").read_text()
        _, _, after_name = stat.rpartition(")")
        pids.append(int(after_name.split()[1]))
    return pids


def listening() -> set[str]:
    """The addresses at which something listens on this machine."""
    lines = subprocess.run(["ss", "-ltn"], capture_output=True, text=True).stdout.splitlines()[1:]
    return {line.split()[3].rpartition(":")[0] for line in lines}


@contextmanager
def cluster_of(folder: Path, *cpus: int) -> Iterator[tuple[str, Any]]:
    """A cluster of nodes on this machine that outlives each command, and the word that names it."""
    os.environ |= QUIET | LOCAL | {"RAY_TMPDIR": str(folder)}
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False}
    )
    for cpu in cpus[1:]:
        cluster.add_node(num_cpus=cpu)
    try:
        yield f"launcher.address={cluster.address}", cluster
    finally:
        cluster.shutdown()


def case_one(run: Commands) -> str:
    """A run on a cluster that the command starts; nothing of it is left, and the run resumes."""
    before = listening()
    token = Path.home() / ".ray"
    had = token.exists()
    process = run.start(*SHORT, MACHINE, "name=one")
    wait_for(lambda: [run_folder for run_folder in run.runs("one") if held(run_folder)])
    opened = {address.strip("[]").removeprefix("::ffff:") for address in listening() - before}
    run.end(process)
    assert opened <= {"127.0.0.1", "::1"} and token.exists() == had, opened
    assert "finished" in run(*SHORT, MACHINE, "name=one")
    run(*SHORT, "name=alone")
    assert run.model("one") == run.model("alone")
    return f"the bits of launcher=local; listens on {', '.join(opened) or '127.0.0.1'} alone"


def case_sweep(run: Commands) -> str:
    """Four runs, two at a time."""
    process = run.start("-m", "seed=0,1,2,3", *SHORT, MACHINE, "launcher.jobs=2", "name=four")
    most = 0
    while process.poll() is None:
        most = max(most, sum(map(held, run.runs("four"))))
        time.sleep(0.2)
    output = run.end(process)
    assert "4 of 4 runs finished" in output, output
    assert most == 2, most
    return "4 of 4, at most 2 at a time"


def case_two_processes(run: Commands) -> str:
    """Two processes of one run on a node."""
    run(*SHORT, MACHINE, "launcher.num_processes=2", "name=two")
    [two] = run.runs("two")
    assert two.manifest()["hardware"]["processes"] == 2
    return "processes 2 in the manifest"


def case_fails(run: Commands) -> str:
    """A run that fails, in a sweep of two: once."""
    output = run("-m", "trainer.args.max_length=20,64", *SHORT, MACHINE, "name=fails", code=2)
    states = sorted(run_folder.status()["state"] for run_folder in run.runs("fails"))
    starts = [run_folder.manifest()["starts"] for run_folder in run.runs("fails")]
    assert states == ["failed", "finished"] and "1 of 2 runs finished" in output, output
    assert starts == [1, 1], starts
    return "exit code 2, one of two finished; each was started once"


def case_trainer(run: Commands) -> str:
    """The process of a run is killed: it has failed, once, and the same command resumes it."""
    process = run.start(*LONG, MACHINE, "name=killed")
    [killed] = run.wait_for("killed", 7)
    os.kill(killed.status()["pid"], signal.SIGKILL)
    output = run.end(process, EnvironmentFault.code)
    assert "SIGKILL" in output and killed.status()["state"] == "failed", output
    run(*LONG, MACHINE, "name=killed")
    run(*LONG, "name=alone")
    assert run.model("killed") == run.model("alone")
    return "failed once, exit code 5; then the same bits"


def case_worker(run: Commands) -> str:
    """The worker of Ray is killed: the run saves its step, and is retried in another."""
    process = run.start(*LONG, MACHINE, "name=worker")
    [killed] = run.wait_for("worker", 7)
    os.kill(family(killed.status()["pid"])[-2], signal.SIGKILL)
    run.end(process)
    assert killed.manifest()["starts"] == 2, killed.manifest()["starts"]
    run(*LONG, "name=alone")
    assert run.model("worker") == run.model("alone")
    return "tried again; the same bits"


def case_node(run: Commands) -> str:
    """A node dies with everything on it: the run is retried on the other."""
    with cluster_of(run.folder, 0, 1) as (address, cluster):
        process = run.start(*LONG, MACHINE, address, "name=node")
        [moved] = run.wait_for("node", 7)
        for pid in reversed(family(moved.status()["pid"])):  # the raylet first
            os.kill(pid, signal.SIGKILL)
        time.sleep(3)
        assert process.poll() is None
        cluster.add_node(num_cpus=1)
        run.end(process)
    assert moved.manifest()["starts"] == 2
    run(*LONG, "name=alone")
    assert run.model("node") == run.model("alone")
    return "tried again on another; the same bits"


def stopped(run: Commands, number: int, code: int) -> str:
    process = run.start("-m", "seed=0,1,2", *ENDLESS, MACHINE, f"name=stop{number}")
    runs = run.wait_for(f"stop{number}", 3, 2)
    began = time.monotonic()
    if number == signal.SIGINT:  # as of a terminal, to all that the command has started there
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == code, process.returncode
    wait_for(lambda: not any(map(held, runs)))
    seconds = time.monotonic() - began
    for folder_of_run in runs:
        status = folder_of_run.status()
        saved = status["state"] == "interrupted" and status.get("sealed") == status["step"] >= 3
        assert saved or not status["step"], status
    time.sleep(3)
    assert not any(map(held, runs))
    return (
        f"exit code {code}; after {seconds:.0f} s two "
        "had saved their step, and the third never began"
    )


def case_ctrl_c(run: Commands) -> str:
    """Ctrl-C."""
    return stopped(run, signal.SIGINT, 130)


def case_sigterm(run: Commands) -> str:
    """SIGTERM."""
    return stopped(run, signal.SIGTERM, 143)


def case_kill(run: Commands) -> str:
    """A command that is killed."""
    return stopped(run, signal.SIGKILL, -9)


def case_leave(run: Commands) -> str:
    """wait=false: submitted once, with progress; killed while it submits; cancelled."""
    with cluster_of(run.folder, 1) as (address, _):
        words = ("-m", "seed=0,1", *ENDLESS, MACHINE, address, "launcher.wait=false", "name=left")
        began = time.monotonic()
        output = run(*words)
        seconds = time.monotonic() - began
        assert "submitted 2 to Ray" in output, output
        run.wait_for("left", 2)
        again = run(*words)
        assert "submitted" not in again and "running" in again and "queued" in again, again
        starts = [run_folder.manifest().get("starts") for run_folder in run.runs("left")]
        cancelled = run("cancel", "outputs/left")
        assert cancelled.count("cancelled ") == 2, cancelled
        wait_for(lambda: not any(map(held, run.runs("left"))))
        time.sleep(2)
        states = [run_folder.status()["state"] for run_folder in run.runs("left")]
        assert states == ["interrupted"] * 2 and not any(map(held, run.runs("left"))), states
        assert "no job" in run("cancel", "outputs/left")
    return (
        f"submitted in {seconds:.0f} s; "
        f"the same again submits none (starts {starts}); cancel: both interrupted"
    )


def case_refused(run: Commands) -> str:
    """Impossible requests are refused in words."""
    told = {
        "launcher.wait=false": "launcher.wait",
        "launcher.address=127.0.0.1:9": "refused",
        "launcher.address=no.such.host.invalid:6379": "launcher.address",
        "launcher.num_cpus=999": "CPU: 999",
        "launcher.resources={moon: 1}": "moon: 1",
    }
    seconds = []
    for word, expected in told.items():
        began = time.monotonic()
        output = run(*SHORT, MACHINE, word, "name=refused", code=5)
        seconds.append(time.monotonic() - began)
        assert expected in output, output
    run(*SHORT, MACHINE, "launcher.num_machines=2", "name=refused", code=2)
    output = run(
        *SHORT,
        MACHINE,
        "launcher.runtime_env={pip: [no-such-package-at-all]}",
        "name=environment",
        code=5,
    )
    assert "environment" in output, output
    return (
        f"{len(told)} refused in at most {max(seconds):.0f} s; "
        "a runtime_env that cannot be made is said"
    )


def main(words: list[str]) -> int:
    cases = {
        name.removeprefix("case_"): case
        for name, case in globals().items()
        if name.startswith("case_")
    }
    failed = 0
    for name in words or cases:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"ray-{name}-") as folder:
            try:
                outcome = cases[name](Commands(Path(folder)))
            except Exception:
                failed += 1
                outcome = f"FAILED\n{traceback.format_exc()}"
        print(f"{name:<14} {time.monotonic() - began:4.0f} s  {outcome}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
