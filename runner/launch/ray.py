"""The queue of Ray: an actor for each run, which trains it in a process of its own. README.md.

Where the actor dies, Ray makes it again.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, EnvironmentFault, Fault, check_library, describe
from runner.io.terminal import Copied
from runner.launch import processes
from runner.launch.local import local
from runner.launch.plan import Task
from runner.launch.queue import POLL, Note, Place, has_finished, set_gone
from runner.run import Run, held
from runner.schema.ranges import Positive, Processes

# Ray reads some of these variables as it is imported. Nothing is sent anywhere. A cluster that is
# started for one command listens on 127.0.0.1 alone, which is what the last one does, whatever its
# name says; another is reached as ever.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
# The actors that this command has made by their names, each with what comes when it ends.
ENDS: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A launcher for a cluster of Ray; conf/launcher/ray.yaml says what the arguments mean."""

    wait: bool = True
    num_processes: Processes = 1
    jobs: Processes | None = None
    address: str | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: dict[str, float] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    start_seconds: int = 180
    grace_seconds: Positive | None = None
    max_restarts: int = 10

    def check(self) -> None:
        """Reach the cluster, if there is one.

        Raises EnvironmentFault where it does not answer, or Ray is not installed.
        """
        check_library("ray", "launcher")
        address = self.address or os.environ.get("RAY_ADDRESS") or _address_here()
        os.environ |= ENVIRONMENT | {"RAY_raylet_start_wait_time_s": str(self.start_seconds)}
        if address != "local":
            _connect(address)
            return
        if not self.wait:
            raise EnvironmentFault(
                Fault(
                    where="launcher.wait",
                    found="false, but no cluster of Ray remains when this command has ended",
                    expected="a cluster that keeps the runs",
                    fix="=true, or launcher.address=<host:port>, or: ray start --head",
                )
            )
        # A cluster of this command's own has a token that is written nowhere.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}

    def preview(self, tasks: Sequence[Task]) -> str:
        """Each command, below what the actors are made of."""
        lines = [f"\n# {self}"]
        for task in tasks:
            lines.append(f"python -m runner.launch {Run(task.folder.absolute())} --trust")
        return "\n".join(lines) + "\n"

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Note) -> None:
        """Make an actor for each run that can begin, for ``jobs`` of them at a time."""
        import ray

        is_own = not ray.is_initialized()
        if is_own:
            _connect("local")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = self._wanted_resources(nodes)
        lacking = _lacking_resources(wanted, nodes)
        if lacking and is_own:  # another cluster may grow
            raise EnvironmentFault(
                Fault(
                    where="launcher",
                    found=f"a run needs {lacking}, which this machine does not have",
                    expected="what this machine has",
                    fix="launcher.num_cpus=1 launcher.num_gpus=0 launcher.resources={}",
                )
            )
        try:
            trainer = ray.remote(
                max_restarts=self.max_restarts,
                num_cpus=wanted["CPU"],
                num_gpus=wanted["GPU"],
                resources=self.resources,
                runtime_env=self.runtime_env,
            )(Trainer)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                Fault(
                    where="launcher",
                    found=describe(error),
                    expected="what an actor of Ray accepts",
                    fix="another value of num_cpus, num_gpus, resources, runtime_env or "
                    "max_restarts",
                )
            ) from None
        tickets = {place.ticket for place in places.values()}
        count_there = len(tickets.intersection(ray.util.list_named_actors()))
        room = max(0, (self.jobs or len(tasks)) - count_there)
        awaited = {folder for task in tasks for folder in task.after}
        done = set(filter(has_finished, awaited))
        ready = [task for task in tasks if done.issuperset(task.after)][:room]
        lifetime = None if self.wait else "detached"
        for task in ready:
            name = str(task.folder.absolute())
            note(task, name)
            named = trainer.options(name=name, lifetime=lifetime, get_if_exists=True)
            actor = named.remote(name, os.getcwd())
            ENDS[name] = actor, actor.__ray_ready__.remote()
        if ready:
            where = f", where no node has {lacking} now" if lacking else ""
            print(f"submitted {len(ready)} to Ray{where}", flush=True)

    def _wanted_resources(self, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The amounts that a run needs; by default with GPUs where the cluster has some."""
        cpus = self.num_processes if self.num_cpus is None else self.num_cpus
        gpus: float = 0
        if self.num_gpus is not None:
            gpus = self.num_gpus
        elif any("GPU" in node for node in nodes):
            gpus = self.num_processes
        return {"CPU": cpus, "GPU": gpus, **self.resources}

    def look(self) -> dict[str, Place]:
        """The user's actors of the cluster; why an actor has ended in silence is recorded."""
        import ray

        if not ray.is_initialized():
            return {}
        ended = []
        for name, (_, end) in ENDS.items():
            ready, _ = ray.wait([end], timeout=0)
            if ready:
                ended.append(name)
        for name in ended:
            try:
                ray.get(ENDS.pop(name)[1])
            except ray.exceptions.RayError as error:
                text = str(error).strip()
                run = Run(Path(name))
                fault = Fault(
                    where=str(run),
                    found=text.splitlines()[-1],
                    expected="an actor of Ray that trains it, on a node that has this package and "
                    "sees this folder",
                    fix="run the same command again to continue",
                )
                cause = EnvironmentFault(fault)
                if "killed by `ray.kill`" not in text:
                    set_gone(run, cause, "failed")
        places = {}
        for name in ray.util.list_named_actors():
            has_begun = os.path.exists(f"{name}/config.yaml")
            trains = has_begun and held(Run(Path(name)))
            words = "trains" if trains else "waits for a node"
            places[name] = Place(name, words, trains)
        return places

    def cancel(self, tickets: Sequence[str]) -> None:
        """Kill actors, at which the processes that train save their step."""
        import ray

        for name in tickets:
            with contextlib.suppress(ValueError):  # it has ended
                ray.kill(ray.get_actor(name))

    def train(self, folder: Path, debug: bool) -> int:
        """Train in a process that outlives this one, and saves its step when Ray kills this one."""
        pid = processes.fork(lambda: local(folder, num_processes=self.num_processes, debug=debug))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        return code


def _address_here() -> str:
    """The address of a cluster that ``ray start`` has begun on this machine, or else ``local``."""
    root = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    address = Path(root, "ray/ray_current_cluster")
    return address.read_text() if address.exists() else "local"


def _lacking_resources(wanted: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    """The resources of which no node has enough, as text."""
    texts = []
    for name, count in wanted.items():
        if all(node.get(name, 0) < count for node in nodes):
            texts.append(f"{name}: {count:g}")
    return ", ".join(texts)


class Trainer:
    """The actor of a run, which trains as it is made.

    Where it dies, Ray makes it again on this node or another.
    """

    def __init__(self, folder: str, place: str):
        import ray

        run = Run(Path(folder))
        if not (run.folder / "config.yaml").exists():
            raise FileNotFoundError(f"{folder} is not seen on {socket.gethostname()}")
        while held(run):  # by what an actor that is gone has left, and saves its step
            time.sleep(POLL)
        # In a session of its own, or Ray would kill what it starts as well.
        words = [*processes.python_words("runner.launch"), folder, "--trust", "--launch"]
        code = subprocess.call(words, cwd=place, start_new_session=True)
        if run.status()["state"] in ("queued", "running"):
            raise ChildProcessError(f"its process {processes.describe_exit(code)}")
        ray.kill(ray.get_runtime_context().current_actor)


class MainThread(Copied):
    """An output without what other threads write, such as Ray the log of a node that has died."""

    def write(self, text: str) -> int:
        if threading.current_thread() is not threading.main_thread():
            return len(text)
        return super().write(text)


def _connect(address: str) -> None:
    """Connect to a cluster, or start one for ``local``, and keep our answer to SIGTERM."""
    import ray

    answer = signal.getsignal(signal.SIGTERM)
    host, _, port = address.rpartition(":")
    try:
        if host:  # Ray would wait for minutes for one that does not answer
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(
            address,
            namespace=f"runner-{os.getuid()}",
            log_to_driver=False,
            configure_logging=False,
            include_dashboard=False,
        )
    except Exception as error:
        raise EnvironmentFault(
            Fault(
                where="launcher.address",
                found=f"{address}: {describe(error)}",
                expected="a cluster of Ray that answers, or local for one of this command's own",
                fix="launcher.address=<host:port>, or launcher.address=local",
            )
        ) from None
    finally:
        signal.signal(signal.SIGTERM, answer)
    sys.stdout = MainThread(sys.stdout)
