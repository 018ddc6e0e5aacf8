"""The queue of Ray: an actor for each run, which trains it in a process of its own, and again where it dies. README.md.

A process beside this one speaks to Ray, which prints, answers signals, waits for ever where nobody is, and aborts.
"""

import contextlib
import functools
import getpass
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from runner.errors import EnvironmentFault, FolderError, RunnerError, check_library, describe, fault
from runner.io.files import display_path
from runner.launch import worker
from runner.launch.local import local
from runner.launch.plan import Task
from runner.launch.queue import POLL, Place
from runner.report.number import plural
from runner.run import Run, held, locked
from runner.schema import upstream
from runner.schema.text import read_tables

TABLES = read_tables(__file__)
ENDS: dict[str, Any] = {}  # of the process that speaks to Ray: its actors, each with what comes when it ends


@dataclass(kw_only=True)
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

    def __post_init__(self) -> None:
        self._ray: ProcessPoolExecutor | None = None

    def check(self) -> None:
        """Raise EnvironmentFault where Ray is not installed, or there is no cluster that answers."""
        check_library("ray", "launcher")
        if self._cluster == "local" and not self.wait:
            raise EnvironmentFault(fault("launch.no_cluster"))

    def preview(self, tasks: Sequence[Task]) -> str:
        """Each command, below what its actor is given."""
        runs = ((self._options(task), display_path(task.folder.absolute())) for task in tasks)
        return "".join(f"\n# {options}\npython -m runner.launch {folder} --trust\n" for options, folder in runs)

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Callable[[Task, str], None]) -> None:
        """Make an actor for each run that builds on none which is not finished, for ``jobs`` of them at a time."""
        names, _ = self._ask(_look)
        room = (self.jobs or len(tasks)) - sum(place.ticket in names for place in places.values())
        done = {each for task in tasks for each in task.after if Run(each.absolute()).status()["state"] == "finished"}
        ready = [task for task in tasks if done.issuperset(task.after)][: max(0, room)]
        runs = {str(task.folder.absolute()): self._options(task) for task in ready}
        for task, ticket in zip(ready, runs, strict=True):
            note(task, ticket)
        try:
            lacking = self._ask(_submit, runs, os.getcwd(), self.num_processes, self._cluster == "local")
        except EnvironmentFault:
            for task in ready:
                note(task, "")
            raise
        if ready:
            print(f"submitted {plural(len(ready), 'run')}: Ray at {self._cluster}{lacking}", flush=True)

    def look(self) -> dict[str, Place]:
        """The user's actors of the cluster; of a run whose actor has ended in silence, it is recorded why."""
        if self._cluster == "local" and not self._ray:
            return {}
        names, causes = self._ask(_look)
        for name, cause in causes.items():
            run, error = Run(Path(name)), EnvironmentFault(fault("launch.actor", run=name, cause=cause))
            with contextlib.suppress(FolderError), locked(run):
                if run.status()["state"] in ("queued", "running"):
                    run.set_status("failed", cause=str(error))
        begun = {name: os.path.exists(f"{name}/config.yaml") and held(Run(Path(name))) for name in names}
        return {name: Place(name, "trains" if its else "waits for a node", its) for name, its in begun.items()}

    def cancel(self, tickets: Sequence[str]) -> None:
        """Kill actors, at which the processes that train save their step."""
        self._ask(_cancel, tickets)

    def train(self, folder: Path, debug: bool) -> int:
        """Train in a process that outlives this one, which Ray kills: it is asked to save its step then."""
        pid = worker.fork(lambda: local(folder, num_processes=self.num_processes, debug=debug))
        if (code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) >= 0:
            return code
        error = EnvironmentFault(fault("launch.actor", run=folder, cause=f"the process {worker.describe_exit(code)}"))
        worker.conclude(Run(folder), "failed", error)
        return error.code

    @functools.cached_property
    def _cluster(self) -> str:
        """The address of the cluster, or local for one that this command is to start."""
        begun = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray/ray_current_cluster")  # by ray start
        address = self.address or os.environ.get("RAY_ADDRESS") or (begun.read_text() if begun.exists() else "local")
        host, _, port = address.rpartition(":")
        try:
            if address != "local":
                socket.create_connection((host, int(port)), timeout=10).close()  # for which Ray would wait for minutes
        except (OSError, ValueError) as error:
            raise EnvironmentFault(fault("launch.no_ray", address=address, said=describe(error))) from None
        return address

    def _options(self, task: Task) -> dict[str, Any]:
        """What the actor of a run is given; where ``num_gpus`` is None, only the cluster knows."""
        gpus = 0 if task.composed.cfg["trainer"]["args"].get(upstream.USE_CPU) else self.num_gpus
        options = {"num_cpus": self.num_processes if self.num_cpus is None else self.num_cpus, "num_gpus": gpus}
        own = {"resources": self.resources, "runtime_env": self.runtime_env, "max_restarts": self.max_restarts}
        return options | own | {"lifetime": None if self.wait else "detached"}

    def _ask(self, call: Callable[..., Any], *given: object) -> Any:
        """The answer of the process that speaks to Ray; raises EnvironmentFault with what that says."""
        try:
            if not self._ray:
                self._ray = ProcessPoolExecutor(1, get_context("fork"))
                self._ray.submit(_reach, os.getpid(), self._cluster, self.start_seconds).result()
            return self._ray.submit(call, *given).result()
        except RunnerError:
            raise
        except BrokenProcessPool:
            self._ray, said = None, f"no answer in {self.start_seconds} s (launcher.start_seconds)"
        except Exception as error:
            said = describe(error)
        raise EnvironmentFault(fault("launch.no_ray", address=self._cluster, said=said))


class Trainer:
    """The actor of a run, which trains as it is made: where it dies, Ray makes it again on this node or another."""

    def __init__(self, folder: str, place: str):
        import ray

        if not os.path.exists(f"{folder}/config.yaml"):
            raise FileNotFoundError(f"{folder} is not seen on {socket.gethostname()}")
        while held(Run(Path(folder))):  # by what an actor that is gone has left, and saves its step
            time.sleep(POLL)
        # In a session of its own, or Ray would kill what it starts as well.
        words = [*worker.python_words("runner.launch"), folder, "--trust", "--launch"]
        subprocess.call(words, cwd=place, start_new_session=True)
        ray.kill(ray.get_runtime_context().current_actor)


def _reach(parent: int, address: str, seconds: int) -> None:
    """Reach a cluster, or start one that ends with this process, which ends with its parent."""
    os.setsid()  # no Ctrl-C of the terminal
    worker.set_parent_death_signal(parent)
    for descriptor in (1, 2):  # what Ray has to say is in its own logs
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends what never comes back to Python, too
    signal.alarm(seconds)
    own = "start" if address == "local" else "reach"
    os.environ.update(TABLES[own]["environment"] | {"RAY_raylet_start_wait_time_s": str(seconds)})
    if address == "local":
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex()
    import ray

    ray.init(address, namespace=f"runner-{getpass.getuser()}", **TABLES[own]["arguments"])
    signal.alarm(0)


def _submit(runs: Mapping[str, dict[str, Any]], place: str, gpus: int, own: bool) -> str:
    """Make the actors of runs, by their folders; gives what no node has, an error where the cluster is our own."""
    import ray

    nodes, lacking = [node["Resources"] for node in ray.nodes() if node["Alive"]], ""
    for options in runs.values():
        if options["num_gpus"] is None:
            options["num_gpus"] = gpus if any("GPU" in node for node in nodes) else 0
        wanted = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}
        if not any(all(node.get(name, 0) >= count for name, count in wanted.items()) for node in nodes):
            lacking = ", ".join(f"{name}: {count:g}" for name, count in wanted.items())
    if lacking and own:
        raise EnvironmentFault(fault("launch.no_node", lacking=lacking))
    for folder, options in runs.items():
        actor = ray.remote(Trainer).options(name=folder, get_if_exists=True, **options).remote(folder, place)
        ENDS[folder] = actor, actor.__ray_ready__.remote()
    return f"; no node has {lacking} now, for which they wait" if lacking else ""


def _look() -> tuple[list[str], dict[str, str]]:
    """The names of all actors that have not ended, and why others have, but for those that were killed."""
    import ray

    causes = {}
    for name in [name for name, (_, end) in ENDS.items() if ray.wait([end], timeout=0)[0]]:
        try:
            ray.get(ENDS.pop(name)[1])
        except ray.exceptions.RayError as error:
            if "killed by `ray.kill`" not in str(error):
                causes[name] = str(error).strip().splitlines()[-1]
    return ray.util.list_named_actors(), causes


def _cancel(names: Sequence[str]) -> None:
    import ray

    for name in names:
        with contextlib.suppress(ValueError):  # it has ended
            ray.kill(ray.get_actor(name))
