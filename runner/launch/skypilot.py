"""The queue of SkyPilot: a managed job for each run, on a machine of a cloud or of Kubernetes.

Its machines see no disk of this one, so each run travels by a store (``store``). ``sky`` is called
as a command: its package pins libraries of which ours need newer ones, so it is best installed
apart.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import yaml

from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.io.files import display_path, write_text
from runner.launch.accelerate import accelerate
from runner.launch.plan import Task
from runner.launch.queue import HIDDEN, Note, Place, has_finished, set_gone
from runner.launch.store import Store, used_folders
from runner.run import Run
from runner.schema.ranges import Natural, Processes

# SkyPilot tells its makers what it is used for, unless a variable says not to.
ENVIRONMENT = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
LIMIT = 300.0  # seconds for an answer
# Resources of a task for which the launcher has keys of its own.
TAKEN = ("accelerators", "cpus", "memory", "disk_size", "use_spot", "infra", "image_id")
# What may stand in the name of a job.
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9-]+")


@dataclass(frozen=True)
class ManagedJob:
    """A managed job, as SkyPilot lists it."""

    number: int
    name: str
    state: str
    reason: str  # why SkyPilot has given it up; empty where it has not

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "ManagedJob":
        """A job as SkyPilot lists it in JSON."""
        state = str(values.get("status"))
        reason = ""
        if state.startswith("FAILED"):
            why = values.get("failure_reason") or "no reason given"
            reason = f"{state}: {why}"
        number = int(values.get("job_id") or 0)
        name = str(values.get("job_name"))
        return cls(number, name, state, reason)

    @property
    def is_live(self) -> bool:
        """True for a job that has not ended."""
        return not self.reason and self.state not in ("SUCCEEDED", "CANCELLED")


@dataclass(frozen=True, kw_only=True)
class SkyPilot:
    """A launcher for clouds; conf/launcher/skypilot.yaml says what the arguments mean."""

    store: str | None = None
    wait: bool = False
    num_processes: Processes = 1
    jobs: Processes | None = None
    infra: str | None = None
    accelerators: str | None = None
    cpus: str | int | None = None
    memory: str | int | None = None
    disk_size: int | None = None
    use_spot: bool = False
    image_id: str | None = None
    max_restarts: Natural = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    workdir: str = "."
    setup: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    python: str = "python"
    # The newest job of each name, as it was when SkyPilot was last asked.
    seen: dict[str, ManagedJob] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ConfigError with what SkyPilot could not run."""
        faults = []
        if not self.store:
            faults.append(
                Fault(
                    where="launcher.store",
                    found="no place where runs are fetched and given back",
                    expected="a bucket that this machine and those of the cloud can write",
                    fix="=s3://my-bucket/runs",
                )
            )
        for key in TAKEN:
            if key in self.parameters:
                faults.append(
                    Fault(
                        where=f"launcher.parameters.{key}",
                        found="it has a key of its own",
                        expected=f"launcher.{key}",
                        fix=f"launcher.{key}={self.parameters[key]}",
                    )
                )
        ConfigError.refuse(faults)

    @cached_property
    def _store(self) -> Store:
        return Store(str(self.store))

    def check(self) -> None:
        """Raise EnvironmentFault where SkyPilot is not installed, or a variable is not set."""
        faults = []
        if not shutil.which("sky"):
            faults.append(
                Fault(
                    where="launcher",
                    found="sky, the command of SkyPilot, is not installed",
                    expected="the package skypilot, in an environment of its own",
                    fix="uv tool install 'skypilot[aws]'  (or pipx; with your cloud's name)",
                )
            )
        for name in self.variables:
            if not os.environ.get(name):
                faults.append(
                    Fault(
                        where="launcher.variables",
                        found=f"{name} is not set in this environment",
                        expected="the variable that the machines are to have",
                        fix=f"export {name}=...",
                    )
                )
        EnvironmentFault.refuse(faults)

    def preview(self, tasks: Sequence[Task]) -> str:
        """Each task as SkyPilot reads it, below the command that submits it."""
        text = ""
        for task in tasks:
            words = self._words_of(self._name_of(task.folder), _path_of(task.folder))
            text += f"\n# {shlex.join(words)}\n{self._task_yaml(task)}"
        return text

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Note) -> None:
        """Give the store the folders of the runs that can begin, and submit a job for each.

        At most ``jobs`` runs are in the queue at a time.
        """
        room = len(tasks)
        if self.jobs:
            live = sum(place.words != "" for place in places.values())
            room = max(0, self.jobs - live)
        ready = [task for task in tasks if all(map(has_finished, task.after))]
        for task in ready[:room]:
            folder = task.folder.absolute()
            name = self._name_of(folder)
            path = _path_of(folder)
            note(task, name)
            try:
                for used in used_folders(folder):
                    self._store.give(used)
                self._store.give(folder)
                write_text(path, self._task_yaml(task))
                _ask(*self._words_of(name, path))
            except EnvironmentFault:
                if name not in self.look():
                    note(task, "")
                raise
            print(f"submitted {name}: sky jobs logs -n {name}  {display_path(path)}", flush=True)

    def _words_of(self, name: str, path: Path) -> list[str]:
        """The command that submits a job; values of variables are in no words of it."""
        words = ["sky", "jobs", "launch", "--yes", "--detach-run", "--name", name]
        for variable in self.variables:
            words += ["--secret", variable]
        return [*words, display_path(path)]

    def _name_of(self, folder: Path) -> str:
        """The name of a run's job: that of the run, its key, and a digest of where its copy is."""
        group = NOT_IN_NAMES.sub("-", folder.parent.name).strip("-")[:30] or "run"
        _, _, key = folder.name.rpartition("-")
        copy = f"{self.store}/{folder.parent.name}"
        digest = hashlib.sha256(copy.encode()).hexdigest()[:6]
        return f"r-{group}-{key}-{digest}".lower()

    def _task_yaml(self, task: Task) -> str:
        """The task of a run, as SkyPilot reads it."""
        resources: dict[str, Any] = {}
        if self.accelerators:
            name, _, count = self.accelerators.partition(":")
            resources["accelerators"] = f"{name}:{count or self.num_processes}"
        for key in ("infra", "cpus", "memory", "disk_size", "image_id"):
            if getattr(self, key) is not None:
                resources[key] = getattr(self, key)
        if self.use_spot:
            resources["use_spot"] = True
        if self.max_restarts:
            resources["job_recovery"] = {"max_restarts_on_errors": self.max_restarts}
        folder = shlex.quote(_relative(task.folder))
        store = shlex.quote(f"--store={self.store}")
        description: dict[str, Any] = {
            "workdir": self.workdir,
            "resources": resources | self.parameters,
            "setup": "\n".join(self.setup),
            "run": f"exec {self.python} -m runner.launch {folder} --trust {store}",
        }
        filled = {key: value for key, value in description.items() if value}
        return str(yaml.safe_dump(filled, sort_keys=False, width=1000))

    def look(self) -> dict[str, Place]:
        """The jobs that have not ended, by their names."""
        answer = _ask("sky", "jobs", "queue", "--all", "--output", "json")
        # A run that is submitted again has a second job of the same name: the newest one counts.
        self.seen.clear()
        for job in sorted(_jobs_of(answer), key=attrgetter("number")):
            self.seen[job.name] = job
        places = {}
        for name, job in self.seen.items():
            if job.is_live:
                places[name] = Place(name, job.state, job.state == "RUNNING")
        return places

    def fetch(self, folders: Sequence[Path]) -> None:
        """Fetch what the machines have given back of runs; why a job was given up is recorded."""
        for folder in folders:
            run = Run(folder)
            if not run.folder.exists():
                continue
            job = self.seen.get(self._name_of(run.folder))
            is_live = job is not None and job.is_live
            is_newest = is_live or _is_elsewhere(run)
            self._store.fetch(run.folder, is_newest, is_live)
            if job and job.reason and _is_elsewhere(run):
                fault = Fault(
                    where=str(run),
                    found=f"its job ended without a word of the run: {job.reason[:300]}",
                    expected="a machine on which launcher.setup installs this package",
                    fix=f"sky jobs logs -n {job.name}; then the same command",
                )
                set_gone(run, EnvironmentFault(fault), "failed")

    def cancel(self, tickets: Sequence[str]) -> None:
        """Have jobs ended, with their machines; what was given back by then remains."""
        for name in tickets:
            _ask("sky", "jobs", "cancel", "--yes", "--name", name)

    def train(self, folder: Path, debug: bool) -> int:
        """Train in the processes of one machine."""
        return accelerate(folder, num_processes=self.num_processes, debug=debug)


def _is_elsewhere(run: Run) -> bool:
    """True where the last state of a run is that of a queue, or was written on another machine."""
    status = run.status()
    is_away = status["state"] == "running" and status.get("host") != socket.gethostname()
    return status["state"] == "queued" or is_away


def _path_of(folder: Path) -> Path:
    """The file of the task of a run."""
    return folder.parent / HIDDEN / f"{folder.name}.yaml"


def _relative(folder: Path) -> str:
    """A run folder as the machines have it, below the working folder that they get a copy of."""
    if not folder.absolute().is_relative_to(Path.cwd()):
        raise ConfigError(
            Fault(
                where="output_root",
                found=f"{folder.parent.parent} is outside the working folder",
                expected="a folder inside it, which is where the machines have the run",
                fix="=outputs",
            )
        )
    return os.path.relpath(folder)


def _jobs_of(answer: str) -> list[ManagedJob]:
    """The jobs that SkyPilot lists as JSON; it may print lines of its own around them."""
    bracket = "[\n" if "[\n" in answer else "["
    first = answer.find(bracket)
    text = answer[first:] if first >= 0 else ""
    try:
        jobs, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        _refuse("sky jobs queue", f"no list of jobs in its answer: {answer[-200:]}")
    return [ManagedJob.read(values) for values in jobs]


def _ask(*words: str) -> str:
    """The answer of a command of SkyPilot; EnvironmentFault where it fails or gives none."""
    command = " ".join(words[:3])
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=LIMIT if "launch" not in words else None,
            env=os.environ | ENVIRONMENT,
        )
    except subprocess.TimeoutExpired:
        _refuse(command, f"no answer in {LIMIT:g} s")
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        text = lines[-1].strip() if lines else f"exit code {done.returncode}"
        # SkyPilot raises where it has never had a job.
        if "no in-progress managed jobs" in text.lower() and words[2] == "queue":
            return "[]"
        _refuse(command, text)
    return done.stdout


def _refuse(command: str, text: str) -> NoReturn:
    """Raise the fault of a command of SkyPilot's that failed or did not answer."""
    raise EnvironmentFault(
        Fault(
            where="SkyPilot",
            found=f"{command}: {text}",
            expected="an answer",
            fix="sky check, and the same command when it is well; it submits nothing twice",
        )
    )
