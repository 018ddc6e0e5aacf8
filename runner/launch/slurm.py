"""The queue of Slurm: sbatch submits arrays of runs, squeue says which are there, scancel ends them. README.md."""

import hashlib
import math
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sys import executable

from runner.config.build import build
from runner.errors import ConfigError, EnvironmentFault, fault
from runner.io.files import display_path, write_text
from runner.launch.accelerate import accelerate
from runner.launch.plan import Task
from runner.launch.queue import HIDDEN, Place
from runner.report.number import plural
from runner.schema import upstream
from runner.schema.text import read_tables

MAX_TASKS = 1000  # of an array, which is what Slurm takes where its MaxArraySize says nothing else
ROUNDED = 60  # seconds that Slurm may send its signal earlier
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
TABLES = read_tables(__file__)


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A launcher for a machine that can submit to Slurm; conf/launcher/slurm.yaml says what the arguments mean."""

    wait: bool = False
    num_processes: int = 1
    num_machines: int = 1
    jobs: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | int | None = None
    gpus_per_node: str | int | None = None
    cpus_per_task: int | None = None
    mem: str | int | None = None
    constraint: str | None = None
    nodelist: str | None = None
    parameters: dict[str, str | int | bool] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    signal_seconds: int = 120
    max_requeues: int = 100

    def __post_init__(self) -> None:
        """Raise ConfigError with what Slurm would not take, or take for something else."""
        taken = [word for word in self.parameters if word.replace("_", "-") in TABLES["taken"]]
        faults = [fault("launch.taken_word", word=word) for word in taken]
        seconds, least = seconds_of(self.time), self.signal_seconds + ROUNDED
        if seconds is None:
            faults.append(fault("launch.odd_time", time=self.time))
        elif seconds < least:
            minutes, ahead = math.ceil(least / 60), self.signal_seconds
            faults.append(fault("launch.short_time", time=self.time, ahead=ahead, least=least, minutes=minutes))
        ConfigError.refuse(faults)

    def check(self) -> None:
        """Raise EnvironmentFault with each command of Slurm that is not here."""
        names = [name for name in ("sbatch", "squeue", "scancel") if not shutil.which(name)]
        EnvironmentFault.refuse(fault("launch.no_command", command=name) for name in names)

    def preview(self, tasks: Sequence[Task]) -> str:
        """Each script, below the command that submits it."""
        shown: list[str] = []

        def show(path: Path, script: str, array: Mapping[int, Task], dependency: str) -> str:
            shown.append(f"\n# {shlex.join(_sbatch(path, dependency))}\n{script}")
            return f"<job {len(shown)}>"

        self._arrange(tasks, {}, show)
        return "".join(shown)

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Callable[[Task, str], None]) -> None:
        """Submit an array of the runs that can begin, and one of those of each stage, which wait for the one before."""

        def send(path: Path, script: str, array: Mapping[int, Task], dependency: str) -> str:
            write_text(path, script)
            for number, task in array.items():
                note(task, f"{path.stem}_{number}")  # by which it is found if this command dies before it knows more
            try:
                job = _ask(*_sbatch(path, dependency)).strip().partition(";")[0]
            except EnvironmentFault:
                for task in array.values():
                    note(task, "")
                raise
            for number, task in array.items():
                note(task, f"{job}_{number}")
            print(f"submitted {plural(len(array), 'run')}: squeue --job={job}  {display_path(path)}", flush=True)
            return job

        self._arrange(tasks, {folder: place.ticket for folder, place in places.items()}, send)

    def look(self) -> dict[str, Place]:
        """The user's jobs in the queue, by their numbers and by their names."""
        seen: dict[str, Place] = {}
        for line in _ask("squeue", "--me", "--array", "--noheader", "--format=%i|%T|%r|%j").splitlines():
            job, state, reason, name = line.split("|", 3)
            words = state if reason == "None" else f"{state} ({reason})"
            place = Place(job, words, state in TABLES["begun"])
            seen |= {job: place, f"{name}_{job.partition('_')[2]}": place}
        return seen

    def cancel(self, tickets: Sequence[str]) -> None:
        """Have jobs ended; those that run are asked by SIGTERM, and killed after the KillWait of the cluster."""
        _ask("scancel", "--quiet", *tickets)

    def train(self, folder: Path, debug: bool) -> int:
        """Train as one of the machines of a job."""
        return accelerate(folder, num_processes=self.num_processes, num_machines=self.num_machines, debug=debug)

    def _arrange(self, tasks: Sequence[Task], tickets: dict[Path, str], send: Callable[..., str]) -> None:
        """Have tasks sent in arrays, each after those that it builds on, which have tickets then or are finished."""
        left = list(tasks)
        while left:
            ahead = {task.folder for task in left}
            ready = [task for task in left if not ahead & {*task.after}]
            left = [task for task in left if ahead & {*task.after}]
            before = {task.folder: next((tickets[one] for one in task.after if one in tickets), "") for task in ready}
            uses = Counter(before.values())
            groups: dict[tuple[str, ...], list[Task]] = {}
            for task in ready:
                ticket = before[task.folder]
                awaited = ticket if uses[ticket] > 1 else ticket.partition("_")[0]
                settings = repr((task.composed.cfg["launcher"], _gpus_of(task)))
                groups.setdefault((awaited, str(task.folder.parent), settings), []).append(task)
            for (awaited, *_), members in groups.items():
                is_each = awaited and "_" not in awaited  # each task waits for that of its number
                dependency = awaited and f"{'aftercorr' if is_each else 'afterok'}:{awaited}"
                for first in range(0, len(members), MAX_TASKS):
                    part = members[first : first + MAX_TASKS]
                    each = (
                        [int(before[task.folder].partition("_")[2]) for task in part] if is_each else range(len(part))
                    )
                    array = dict(zip(each, part, strict=True))
                    job = send(*_script_of(array), array, dependency)
                    tickets |= {task.folder: f"{job}_{number}" for number, task in array.items()}
                    if self.jobs and not awaited:  # which each array counts for itself
                        dependency = f"afterany:{job}"


def seconds_of(time: str | int | None) -> float | None:
    """The seconds of a time limit as Slurm writes it, infinite for none; None where it is no such time.

    >>> [seconds_of(time) for time in (90, "90:30", "4:00:00", "1-12", "1-12:30", "1h", None)]
    [5400, 5430, 14400, 129600, 131400, None, inf]
    """
    if time is None or str(time).upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    if not (found := TIME.fullmatch(str(time))):
        return None
    days, *parts = found.groups()
    units = (3600, 60, 1) if days or parts[2] else (60, 1)
    return int(days or 0) * 86400 + sum(int(part or 0) * unit for part, unit in zip(parts, units, strict=False))


def _gpus_of(task: Task) -> int | str:
    """The GPUs on each machine of a run: those that are asked for, or else one for each process but on a CPU."""
    launcher, args = task.composed.cfg["launcher"], task.composed.cfg["trainer"]["args"]
    asked = launcher["gpus_per_node"]
    return (0 if args.get(upstream.USE_CPU) else launcher["num_processes"]) if asked is None else asked


def _script_of(array: Mapping[int, Task]) -> tuple[Path, str]:
    """The place and the text of the script of an array of tasks, which have the keys of their launcher in common."""
    from jinja2 import Environment, StrictUndefined

    jinja = Environment(trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True)
    jinja.filters["quote"] = lambda value: shlex.quote(str(value))
    runs = {number: display_path(task.folder.absolute()) for number, task in array.items()}
    first, digest = next(iter(array.values())), hashlib.sha256(repr(runs).encode()).hexdigest()[:8]
    own: Slurm = build(first.composed.cfg["launcher"])
    place = first.folder.parent.absolute() / HIDDEN
    name = f"{re.sub(r'[^a-zA-Z0-9_.-]+', '-', place.parent.name)}.{digest}"
    numbers = f"0-{len(array) - 1}" if [*array] == [*range(len(array))] else ",".join(map(str, array))
    known = {"own": own, "name": name, "place": display_path(place), "numbers": numbers, "runs": runs}
    text = Path(__file__).with_name("slurm.sh").read_text(encoding="utf-8")
    script = jinja.from_string(text).render(known, gpus=_gpus_of(first), python=own.python or executable)
    return place / f"{name}.sh", script


def _sbatch(path: Path, dependency: str) -> list[str]:
    """The words that submit a script."""
    return ["sbatch", "--parsable", *([f"--dependency={dependency}"] if dependency else []), display_path(path)]


def _ask(*words: str) -> str:
    """The answer of a command of Slurm; raises EnvironmentFault with what it says where it refuses."""
    # What it has inherited is the lock, which it keeps: if we are killed meanwhile, it may submit all the same.
    done = subprocess.run(words, capture_output=True, text=True, close_fds=False)
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip() or f"{words[0]} ended with {done.returncode}"
    beats = next(dict(each) for each in TABLES["refusals"] if re.search(each.pop("like"), said))
    raise EnvironmentFault(fault("launch.refused", command=words[0], said=said, **beats))
