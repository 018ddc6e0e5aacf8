"""The queue of Slurm: sbatch submits arrays of runs, squeue lists and scancel ends them."""

import contextlib
import math
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.io.files import display_path, write_text
from runner.launch.accelerate import accelerate
from runner.launch.plan import Task
from runner.launch.processes import MARGIN
from runner.launch.queue import Note, Place
from runner.launch.slurm_arrays import Array, arrange
from runner.report.number import plural
from runner.schema.ranges import Natural, Positive, Processes, Seconds

LIMIT = 120.0  # seconds for an answer
ROUNDED = 60  # seconds that Slurm may send its signal earlier
# Words of sbatch that are the runner's own, that hide a job from its squeue, or that a key of the
# launcher stands for.
TAKEN = {
    "array",
    "job-name",
    "output",
    "error",
    "signal",
    "requeue",
    "no-requeue",
    "open-mode",
    "dependency",
    "kill-on-invalid-dep",
    "wrap",
    "parsable",
    "hold",
    "wait",
    "test-only",
    "chdir",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "gpus-per-node",
    "cpus-per-task",
    "partition",
    "account",
    "qos",
    "time",
    "mem",
    "constraint",
    "nodelist",
    "clusters",
}
# The states of a job, as squeue has them, in which its processes are there.
BEGUN = ("RUNNING", "COMPLETING", "SUSPENDED")


class RefusedKey(NamedTuple):
    """The beats of a fault where Slurm refuses, by a pattern of its words."""

    pattern: str
    where: str
    expected: str
    fix: str


# The first whose pattern is found counts; the last one always is.
REFUSED_KEYS = (
    RefusedKey(
        "partition",
        where="launcher.partition",
        expected="a partition of this cluster (sinfo lists them)",
        fix="launcher.partition=null  (that of the cluster)",
    ),
    RefusedKey(
        "(?i)gres|generic resource|gpu",
        where="launcher.gpus_per_node",
        expected="what its machines have",
        fix="launcher.gpus_per_node=0  (where it has none)",
    ),
    RefusedKey(
        "account",
        where="launcher.account",
        expected="an account of yours, in this partition",
        fix="launcher.account=null  (your own)",
    ),
    RefusedKey(
        "(?i)qos",
        where="launcher.qos",
        expected="a quality of service that you may use",
        fix="launcher.qos=null  (your own)",
    ),
    RefusedKey(
        "time limit",
        where="launcher.time",
        expected="at most the limit of the partition",
        fix="launcher.time=null  (the partition's)",
    ),
    RefusedKey(
        "(?i)job array",
        where="launcher.jobs",
        expected="an array as large as the cluster takes",
        fix="the same command with fewer values at a time",
    ),
    RefusedKey(
        "feature|node configuration|node list|nodelist",
        where="launcher.constraint",
        expected="machines that it has",
        fix="launcher.constraint=null launcher.nodelist=null",
    ),
    RefusedKey(
        "unrecognized option|invalid option|[Ii]nvalid.*specification|not allowed",
        where="launcher.parameters",
        expected="options of sbatch",
        fix="launcher.parameters={}",
    ),
    RefusedKey(
        "",
        where="Slurm",
        expected="an answer",
        fix="the same command when the cluster can be reached; it submits nothing twice",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A launcher for a machine that submits to Slurm; conf/launcher/slurm.yaml has its keys."""

    wait: bool = False
    num_processes: Processes = 1
    num_machines: Processes = 1
    jobs: Processes | None = None
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
    signal_seconds: Seconds = 120
    grace_seconds: Positive | None = None
    max_requeues: Natural = 100

    def __post_init__(self) -> None:
        """Raise ConfigError with what Slurm would not take, or take for something else."""
        faults = []
        for word in self.parameters:
            if word.replace("_", "-") in TAKEN:
                faults.append(_taken_parameter(word))
        seconds = seconds_of(self.time)
        least = self.signal_seconds + ROUNDED
        if seconds is None:
            faults.append(
                Fault(
                    where="launcher.time",
                    found=str(self.time),
                    expected="minutes, hours:minutes:seconds or days-hours:minutes:seconds",
                    fix="=24:00:00",
                )
            )
        elif seconds < least:
            faults.append(
                Fault(
                    where="launcher.time",
                    found=f"{self.time}, but the step must be saved {self.signal_seconds} s "
                    "before its end (launcher.signal_seconds)",
                    expected=f"at least {least} s, as Slurm may be a minute early",
                    fix=f"={math.ceil(least / 60)}",
                )
            )
        least_signal = math.ceil((self.grace_seconds or 0) + MARGIN)
        if self.grace_seconds and self.signal_seconds < least_signal:
            faults.append(
                Fault(
                    where="launcher.signal_seconds",
                    found=f"{self.signal_seconds}, and a run has {self.grace_seconds:g} s for its "
                    "save (launcher.grace_seconds)",
                    expected=f"at least {least_signal}, or Slurm kills it before it is saved",
                    fix=f"={least_signal}",
                )
            )
        ConfigError.refuse(faults)

    def check(self) -> None:
        """Raise EnvironmentFault with each command of Slurm that is not here."""
        names = [name for name in ("sbatch", "squeue", "scancel") if not shutil.which(name)]
        EnvironmentFault.refuse(map(_missing_command, names))

    def preview(self, tasks: Sequence[Task]) -> str:
        """Each script, below the command that submits it."""
        text = ""
        tickets: dict[Path, str] = {}
        for number, array in enumerate(arrange(tasks, tickets), 1):
            text += f"\n# {shlex.join(array.command)}\n{array.script}"
            for index, task in array.tasks.items():
                tickets[task.folder] = f"<job {number}>_{index}"
        return text

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Note) -> None:
        """Submit an array of the runs that can begin, and one of those of each stage.

        A stage waits in the queue for the one before.
        """
        tickets = {folder: place.ticket for folder, place in places.items()}
        for array in arrange(tasks, tickets):
            write_text(array.path, array.script)
            for index, task in array.tasks.items():
                # By this name it is found if this command dies before it knows more.
                note(task, array.name_of(index))
            try:
                job = _submit_array(array)
            except EnvironmentFault:
                # It may be there all the same; where that cannot be asked, the notes stay.
                with contextlib.suppress(EnvironmentFault):
                    seen = self.look()
                    for index, task in array.tasks.items():
                        if array.name_of(index) not in seen:
                            note(task, "")
                raise
            for index, task in array.tasks.items():
                tickets[task.folder] = f"{job}_{index}"
                note(task, tickets[task.folder])
            count = plural(len(array.tasks), "run")
            path = display_path(array.path)
            print(f"submitted {count}: squeue --job={job}  {path}", flush=True)

    def look(self) -> dict[str, Place]:
        """The user's jobs in the queue, by their numbers and by their names."""
        places: dict[str, Place] = {}
        answer = _ask("squeue", "--me", "--array", "--noheader", "--format=%i|%T|%r|%j")
        for line in answer.splitlines():
            if line.count("|") < 3:
                _refuse("squeue", line)
            job, state, reason, name = line.split("|", 3)
            words = state if reason == "None" else f"{state} ({reason})"
            place = Place(job, words, state in BEGUN)
            places[job] = place
            places[f"{name}_{job.partition('_')[2]}"] = place
        return places

    def cancel(self, tickets: Sequence[str]) -> None:
        """Have jobs ended.

        Those that run are asked by SIGTERM, and killed after the KillWait of the cluster.
        """
        _ask("scancel", "--quiet", *tickets)

    def train(self, folder: Path, debug: bool) -> int:
        """Train as one of the machines of a job."""
        return accelerate(
            folder, num_processes=self.num_processes, num_machines=self.num_machines, debug=debug
        )


def _taken_parameter(word: str) -> Fault:
    """The fault of an option of sbatch that the script of an array has already."""
    return Fault(
        where=f"launcher.parameters.{word}",
        found="the runner sets this option itself",
        expected="another option of sbatch",
        fix="leave it out; python -m runner options launcher lists what has its own key",
    )


def _missing_command(name: str) -> Fault:
    """The fault of a machine from which nothing can be submitted."""
    return Fault(
        where="launcher",
        found=f"{name} is not installed here",
        expected="a machine that submits to Slurm",
        fix="launcher=local, or what puts it on PATH, as: module load slurm",
    )


def seconds_of(time: str | int | None) -> float | None:
    """The seconds of a time limit as Slurm writes it, infinite for none.

    None of what is no such time.
    """
    if time is None or str(time).upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    limit = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(time))
    if not limit:
        return None
    days, first, second, third = (int(part or 0) for part in limit.groups())
    if limit[1] or limit[4]:
        return 86400 * days + 3600 * first + 60 * second + third
    return 60 * first + second


def _submit_array(array: Array) -> str:
    """The number of the job that sbatch makes of an array."""
    answer = _ask(*array.command)
    job = re.search(r"^(\d+)(;.*)?$", answer, re.MULTILINE)
    if not job:
        _refuse("sbatch", f"no job number in the answer: {answer}")
    return job[1]


def _ask(*words: str) -> str:
    """The answer of a command of Slurm; EnvironmentFault where it refuses or gives none.

    The command inherits our lock, and keeps it: if we are killed, it may submit all the same.
    Ctrl-C waits for its end.
    """
    timeout = None if words[0] == "sbatch" else LIMIT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            close_fds=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        _refuse(words[0], f"no answer in {LIMIT:g} s")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if done.returncode:
        silent_end = f"{words[0]} ended with {done.returncode}"
        _refuse(words[0], done.stderr.strip() or silent_end)
    return done.stdout


def _refuse(command: str, answer: str) -> NoReturn:
    """Raise the fault of a command of Slurm's, at the key that its answer complains of.

    The last of REFUSED_KEYS is of every answer.
    """
    for refused in REFUSED_KEYS:
        if re.search(refused.pattern, answer):
            break
    raise EnvironmentFault(
        Fault(
            where=refused.where,
            found=f"{command}: {answer}",
            expected=refused.expected,
            fix=refused.fix,
        )
    )
