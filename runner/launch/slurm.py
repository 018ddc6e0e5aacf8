"""The queue of Slurm: sbatch submits arrays of runs, squeue says which are there, scancel ends them. README.md."""

import contextlib
import hashlib
import math
import re
import shlex
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sys import executable
from typing import Any, NoReturn

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
LIMIT = 120.0  # seconds for an answer
ROUNDED = 60  # seconds that Slurm may send its signal earlier
Array = tuple[Path, str, list[str], dict[int, Task]]
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
        taken = {word for word in self.parameters if word.replace("_", "-") in TABLES["taken"]}
        faults = [fault("launch.taken_word", word=word) for word in taken]
        if (seconds := seconds_of(self.time)) is None:
            faults.append(fault("launch.odd_time", time=self.time))
        elif seconds < (least := self.signal_seconds + ROUNDED):
            known = {"time": self.time, "ahead": self.signal_seconds, "least": least, "minutes": math.ceil(least / 60)}
            faults.append(fault("launch.short_time", **known))
        ConfigError.refuse(faults)

    def check(self) -> None:
        """Raise EnvironmentFault with each command of Slurm that is not here."""
        names = [name for name in ("sbatch", "squeue", "scancel") if not shutil.which(name)]
        EnvironmentFault.refuse(fault("launch.no_command", command=name) for name in names)

    def preview(self, tasks: Sequence[Task]) -> str:
        """Each script, below the command that submits it."""
        shown, tickets = list[str](), dict[Path, str]()
        for _, script, words, array in _arrange(tasks, tickets):
            shown.append(f"\n# {shlex.join(words)}\n{script}")
            tickets |= {task.folder: f"<job {len(shown)}>_{number}" for number, task in array.items()}
        return "".join(shown)

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Callable[[Task, str], None]) -> None:
        """Submit an array of the runs that can begin, and one of those of each stage, which wait for the one before."""
        tickets = {folder: place.ticket for folder, place in places.items()}
        for path, script, words, array in _arrange(tasks, tickets):
            write_text(path, script)
            for number, task in array.items():
                note(task, f"{path.stem}_{number}")  # by which it is found if this command dies before it knows more
            try:
                found = re.search(r"^(\d+)(;.*)?$", said := _ask(*words), re.MULTILINE)
                job = found[1] if found else _refuse("sbatch", f"no number of a job: {said}")
            except EnvironmentFault:
                with contextlib.suppress(EnvironmentFault):  # unless it is there all the same, or nobody knows
                    seen = self.look()
                    for task in (task for number, task in array.items() if f"{path.stem}_{number}" not in seen):
                        note(task, "")
                raise
            for number, task in array.items():
                tickets[task.folder] = f"{job}_{number}"
                note(task, tickets[task.folder])
            print(f"submitted {plural(len(array), 'run')}: squeue --job={job}  {display_path(path)}", flush=True)

    def look(self) -> dict[str, Place]:
        """The user's jobs in the queue, by their numbers and by their names."""
        seen: dict[str, Place] = {}
        for line in _ask("squeue", "--me", "--array", "--noheader", "--format=%i|%T|%r|%j").splitlines():
            job, state, reason, name = line.split("|", 3) if line.count("|") > 2 else _refuse("squeue", line)
            place = Place(job, state if reason == "None" else f"{state} ({reason})", state in TABLES["begun"])
            seen |= {job: place, f"{name}_{job.partition('_')[2]}": place}
        return seen

    def cancel(self, tickets: Sequence[str]) -> None:
        """Have jobs ended; those that run are asked by SIGTERM, and killed after the KillWait of the cluster."""
        _ask("scancel", "--quiet", *tickets)

    def train(self, folder: Path, debug: bool) -> int:
        """Train as one of the machines of a job."""
        return accelerate(folder, num_processes=self.num_processes, num_machines=self.num_machines, debug=debug)


def _arrange(tasks: Sequence[Task], tickets: Mapping[Path, str]) -> Iterator[Array]:
    """Arrays of tasks by their numbers, each with its script, where that belongs, and the words that submit it."""
    from jinja2 import Environment, StrictUndefined

    jinja = Environment(trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True)
    jinja.filters["quote"] = lambda value: shlex.quote(str(value).replace("\n", " "))  # a line of its own would be run
    template, left = jinja.from_string(Path(__file__).with_name("slurm.sh").read_text(encoding="utf-8")), [*tasks]
    while left:
        ahead = {task.folder for task in left}
        ready = [task for task in left if not ahead & {*task.after}]
        left = [task for task in left if ahead & {*task.after}]
        before = {task.folder: next((tickets[one] for one in task.after if one in tickets), "") for task in ready}
        uses, groups = Counter(before.values()), dict[tuple[str, Path, str, bool], list[Task]]()
        for task in ready:  # where each builds on another task of one array, each waits for that of its number
            ticket, cfg = before[task.folder], task.composed.cfg
            awaited = ticket and (f"aftercorr:{ticket.partition('_')[0]}" if uses[ticket] == 1 else f"afterok:{ticket}")
            on_cpu = bool(cfg["trainer"]["args"].get(upstream.USE_CPU))
            groups.setdefault((awaited, task.folder.parent, repr(cfg["launcher"]), on_cpu), []).append(task)
        for (awaited, group, _, on_cpu), members in groups.items():
            cfg, place = members[0].composed.cfg, group.absolute() / HIDDEN
            for first in range(0, len(members), MAX_TASKS):
                array = dict(enumerate(members[first : first + MAX_TASKS]))
                if awaited.startswith("aftercorr"):
                    array = {int(before[task.folder].partition("_")[2]): task for task in array.values()}
                runs = {number: display_path(task.folder.absolute()) for number, task in array.items()}
                digest = hashlib.sha256(repr((place, runs)).encode()).hexdigest()[:8]
                name = f"{re.sub(r'[^a-zA-Z0-9_.-]+', '-', place.parent.name)}.{digest}"
                known = {"own": build(cfg["launcher"]), "executable": executable, "on_cpu": on_cpu}
                script = template.render(known, name=name, place=display_path(place), runs=runs)
                dependency = [f"--dependency={awaited}"] if awaited else []
                path = place / f"{name}.sh"
                yield path, script, ["sbatch", "--parsable", *dependency, display_path(path)], array
                if cfg["launcher"].get("jobs") and not awaited.startswith(("afterok", "aftercorr")):
                    awaited = f"afterany:{tickets[members[first].folder].partition('_')[0]}"  # each counts its own


def seconds_of(time: str | int | None) -> float | None:
    """The seconds of a time limit as Slurm writes it, infinite for none; None where it is no such time."""
    if not (found := re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(time))):
        return math.inf if time is None or str(time).upper() in ("UNLIMITED", "INFINITE") else None
    units = (86400, 3600, 60, 1) if found[1] or found[4] else (0, 60, 1, 0)
    return sum(int(part or 0) * unit for part, unit in zip(found.groups(), units, strict=True))


def _ask(*words: str) -> str:
    # It has inherited the lock, and keeps it: if we are killed, it may submit all the same. Ctrl-C waits for its end.
    own: dict[str, Any] = {"close_fds": False, "timeout": LIMIT if words[0] != "sbatch" else None}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", **own)
    except subprocess.TimeoutExpired:
        _refuse(words[0], f"no answer in {LIMIT:g} s")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    said = done.stderr.strip() or f"{words[0]} ended with {done.returncode}"
    return done.stdout if done.returncode == 0 else _refuse(words[0], said)


def _refuse(command: str, said: str) -> NoReturn:
    beats = next({**each, "like": ""} for each in TABLES["refusals"] if re.search(each["like"], said))
    raise EnvironmentFault(fault("launch.refused", command=command, said=said, **beats))
