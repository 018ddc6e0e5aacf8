"""The queue of Ray: an actor for each run, which trains it in a process of its own, again where it dies. README.md."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, EnvironmentFault, check_library, describe, fault
from runner.io.terminal import Copied
from runner.launch import worker
from runner.launch.local import local
from runner.launch.plan import Task
from runner.launch.queue import POLL, Place, set_gone
from runner.run import Run, held
from runner.schema.text import read_tables

TABLES = read_tables(__file__)
ENDS: dict[str, Any] = {}  # the actors that this command has made, each with what comes when it ends


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A launcher for a cluster of Ray; conf/launcher/ray.yaml says what the arguments mean."""

    wait: bool = True
    num_processes: int = 1
    jobs: int | None = None
    address: str | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: dict[str, float] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    start_seconds: int = 180
    max_restarts: int = 10

    def check(self) -> None:
        """Reach the cluster, if there is one; EnvironmentFault where it does not answer, or Ray is not installed."""
        check_library("ray", "launcher")
        # What ray start has begun on this machine.
        begun = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray/ray_current_cluster")
        address = self.address or os.environ.get("RAY_ADDRESS") or (begun.read_text() if begun.exists() else "local")
        os.environ |= TABLES["environment"] | {"RAY_raylet_start_wait_time_s": str(self.start_seconds)}
        if address != "local":
            return _connect(address)
        EnvironmentFault.refuse([] if self.wait else [fault("launch.no_cluster")])
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}  # which is written nowhere

    def preview(self, tasks: Sequence[Task]) -> str:
        """Each command, below what the actors are made of."""
        commands = [f"python -m runner.launch {Run(task.folder.absolute())} --trust\n" for task in tasks]
        return f"\n# {self}\n{''.join(commands)}"

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Callable[[Task, str], None]) -> None:
        """Make an actor for each run that builds on none which is not finished, for ``jobs`` of them at a time."""
        import ray

        if is_own := not ray.is_initialized():
            _connect("local")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = self.num_gpus if any("GPU" in node for node in nodes) else self.num_gpus or 0
        cpus, gpus = (self.num_processes if count is None else count for count in (self.num_cpus, gpus))
        wanted = {"CPU": cpus, "GPU": gpus, **self.resources}
        short = (name for name, count in wanted.items() if all(node.get(name, 0) < count for node in nodes))
        lacking = ", ".join(f"{name}: {wanted[name]:g}" for name in short)
        EnvironmentFault.refuse([fault("launch.no_node", lacking=lacking)] if lacking and is_own else [])
        there = {place.ticket for place in places.values()}.intersection(ray.util.list_named_actors())
        room = max(0, (self.jobs or len(tasks)) - len(there))
        done = {each for task in tasks for each in task.after if Run(each.absolute()).status()["state"] == "finished"}
        ready = [task for task in tasks if done.issuperset(task.after)][:room]
        own = {"num_cpus": cpus, "num_gpus": gpus, "resources": self.resources, "runtime_env": self.runtime_env}
        try:
            trainer = ray.remote(max_restarts=self.max_restarts, **own)(Trainer)
        except (TypeError, ValueError) as error:
            raise ConfigError(fault("launch.odd_options", said=describe(error))) from None
        more = {"lifetime": None if self.wait else "detached", "get_if_exists": True}
        for name, task in ((str(task.folder.absolute()), task) for task in ready):
            note(task, name)
            made = trainer.options(name=name, **more).remote(name, os.getcwd())
            ENDS[name] = made, made.__ray_ready__.remote()
        if ready:
            print(f"submitted {len(ready)} to Ray{lacking and f', where no node has {lacking} now'}", flush=True)

    def look(self) -> dict[str, Place]:
        """The user's actors of the cluster; of a run whose actor has ended in silence, it is recorded why."""
        import ray

        if not ray.is_initialized():
            return {}
        for name in [name for name, (_, end) in ENDS.items() if ray.wait([end], timeout=0)[0]]:
            try:
                ray.get(ENDS.pop(name)[1])
            except ray.exceptions.RayError as error:
                said, run = str(error).strip(), Run(Path(name))
                cause = EnvironmentFault(fault("launch.actor", run=run, said=said.splitlines()[-1]))
                if "killed by `ray.kill`" not in said:
                    set_gone(run, str(cause), "failed")
        names = ray.util.list_named_actors()
        begun = {name: os.path.exists(f"{name}/config.yaml") and held(Run(Path(name))) for name in names}
        return {name: Place(name, "trains" if its else "waits for a node", its) for name, its in begun.items()}

    def cancel(self, tickets: Sequence[str]) -> None:
        """Kill actors, at which the processes that train save their step."""
        import ray

        for name in tickets:
            with contextlib.suppress(ValueError):  # it has ended
                ray.kill(ray.get_actor(name))

    def train(self, folder: Path, debug: bool) -> int:
        """Train in a process that outlives this one, which Ray kills: it is asked to save its step then."""
        pid = worker.fork(lambda: local(folder, num_processes=self.num_processes, debug=debug))
        if (code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) < 0:
            os.kill(os.getpid(), -code)
        return code


class Trainer:
    """The actor of a run, which trains as it is made: where it dies, Ray makes it again on this node or another."""

    def __init__(self, folder: str, place: str):
        import ray

        run = Run(Path(folder))
        if not (run.folder / "config.yaml").exists():
            raise FileNotFoundError(f"{folder} is not seen on {socket.gethostname()}")
        while held(run):  # by what an actor that is gone has left, and saves its step
            time.sleep(POLL)
        # In a session of its own, or Ray would kill what it starts as well.
        words = [*worker.python_words("runner.launch"), folder, "--trust", "--launch"]
        code = subprocess.call(words, cwd=place, start_new_session=True)
        if run.status()["state"] in ("queued", "running"):
            raise ChildProcessError(f"its process {worker.describe_exit(code)}")
        ray.kill(ray.get_runtime_context().current_actor)


class MainThread(Copied):
    """An output without what other threads write, such as the log of a node that has died, which Ray shows there."""

    def write(self, text: str) -> int:
        return super().write(text) if threading.current_thread() is threading.main_thread() else len(text)


def _connect(address: str) -> None:
    import ray

    before, (host, _, port) = signal.getsignal(signal.SIGTERM), address.rpartition(":")
    try:
        if host:
            socket.create_connection((host, int(port)), timeout=10).close()  # for which Ray would wait for minutes
        ray.init(address, namespace=f"runner-{os.getuid()}", **TABLES["arguments"])
    except Exception as error:
        raise EnvironmentFault(fault("launch.no_ray", address=address, said=describe(error))) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.stdout = MainThread(sys.stdout)
