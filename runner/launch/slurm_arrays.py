"""Tasks -> the arrays of jobs that Slurm is to run, with their scripts and commands."""

import hashlib
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner.config.build import build
from runner.io.files import display_path
from runner.launch.plan import Task
from runner.launch.queue import HIDDEN

if TYPE_CHECKING:
    from jinja2 import Template

# Tasks of an array, which is what Slurm takes where its MaxArraySize says nothing else.
MAX_TASKS = 1000


@dataclass(frozen=True)
class Array:
    """An array of jobs."""

    path: Path  # of its script
    script: str
    command: Sequence[str]  # that submits it
    tasks: Mapping[int, Task]  # by their numbers in the array

    def name_of(self, number: int) -> str:
        """The name by which a task is found in the queue before its job has a number."""
        return f"{self.path.stem}_{number}"


class Kind(NamedTuple):
    """The properties that the tasks of one array have in common."""

    dependency: str  # of sbatch; empty where they wait for nothing
    group: Path
    launcher: str
    on_cpu: bool


def arrange(tasks: Sequence[Task], tickets: Mapping[Path, str]) -> Iterator[Array]:
    """The arrays that train tasks, those first that wait for no other task.

    ``tickets`` holds the tickets of runs in the queue. Who asks for the next array must have added
    those of the one before.
    """
    template = _read_template()
    left = list(tasks)
    while left:
        ahead = {task.folder for task in left}
        ready = [task for task in left if not ahead.intersection(task.after)]
        left = [task for task in left if ahead.intersection(task.after)]
        awaited = {task.folder: _awaited_ticket(task, tickets) for task in ready}
        for kind, members in _sort_by_kind(ready, awaited).items():
            dependency = kind.dependency
            for first in range(0, len(members), MAX_TASKS):
                array_tasks = dict(enumerate(members[first : first + MAX_TASKS]))
                if dependency.startswith("aftercorr"):  # each has the number of what it awaits
                    array_tasks = {
                        int(awaited[task.folder].partition("_")[2]): task
                        for task in array_tasks.values()
                    }
                yield _build_array(template, kind, dependency, array_tasks)
                has_bound = bool(members[0].composed.experiment.launcher.jobs)
                if has_bound and not dependency.startswith(("afterok", "aftercorr")):
                    # Each array counts its own jobs at a time, so that one comes after the other.
                    job = tickets[members[first].folder].partition("_")[0]
                    dependency = f"afterany:{job}"


def _awaited_ticket(task: Task, tickets: Mapping[Path, str]) -> str:
    """The ticket of the run that a task builds on, empty where that is in no queue."""
    for folder in task.after:
        if folder in tickets:
            return tickets[folder]
    return ""


def _sort_by_kind(ready: Sequence[Task], awaited: Mapping[Path, str]) -> dict[Kind, list[Task]]:
    """Tasks that can share an array, by what they have in common."""
    uses = Counter(awaited.values())
    members: dict[Kind, list[Task]] = {}
    for task in ready:
        ticket = awaited[task.folder]
        dependency = ""
        if ticket and uses[ticket] == 1:  # the task of an array waits for that of its number
            dependency = f"aftercorr:{ticket.partition('_')[0]}"
        elif ticket:
            dependency = f"afterok:{ticket}"
        experiment = task.composed.experiment
        launcher = repr(experiment.launcher.node)
        on_cpu = bool(experiment.trainer.args.get("use_cpu"))
        kind = Kind(dependency, task.folder.parent, launcher, on_cpu)
        members.setdefault(kind, []).append(task)
    return members


def _build_array(
    template: "Template", kind: Kind, dependency: str, tasks: Mapping[int, Task]
) -> Array:
    """The array of some tasks of a kind, by their numbers in it.

    The digest of its runs is in its name, so that each array is found in the queue by its own.
    """
    first_task = next(iter(tasks.values()))
    launcher = first_task.composed.experiment.launcher
    place = kind.group.absolute() / HIDDEN
    runs = {}
    for number, task in tasks.items():
        runs[number] = display_path(task.folder.absolute())
    content = repr((place, runs))
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    group_name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", place.parent.name)
    name = f"{group_name}.{digest}"
    script = template.render(
        launcher=build(launcher.node),
        executable=sys.executable,
        on_cpu=kind.on_cpu,
        name=name,
        place=display_path(place),
        runs=runs,
    )
    path = place / f"{name}.sh"
    command = ["sbatch", "--parsable"]
    if dependency:
        command.append(f"--dependency={dependency}")
    return Array(path, script, [*command, display_path(path)], tasks)


def _read_template() -> "Template":
    """The template of an array's script, in which every value of the user's is to be quoted."""
    from jinja2 import Environment, StrictUndefined

    jinja = Environment(trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True)
    jinja.filters["quote"] = _quote
    file = Path(__file__).with_name("slurm.sh")
    text = file.read_text(encoding="utf-8")
    return jinja.from_string(text)


def _quote(value: object) -> str:
    """A value as bash takes it, on one line: one of its own would be run."""
    return shlex.quote(str(value).replace("\n", " "))
