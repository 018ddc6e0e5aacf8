"""Jobs -> the runs that they need, each once, in an order that works; and what is in their folders today."""

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.config import Composed
from runner.errors import ConfigError, Fault, FolderError
from runner.run import Run, held
from runner.run.key import folder_of, key_of, label_of
from runner.run.read import read_run


@dataclass(frozen=True)
class Task:
    """A run to be trained, once those in ``after`` are finished."""

    composed: Composed
    folder: Path
    after: tuple[Path, ...] = ()

    def label(self, axes: Collection[str]) -> str:
        """The label of this run among its neighbours: the values of what is swept, and the stage."""
        swept = [word for word in self.composed.overrides if word.lstrip("+").partition("=")[0] in axes]
        return f"{self.composed.stage} {label_of(swept or self.composed.overrides)}".strip()


def tasks_of(jobs: Sequence[Sequence[Composed]]) -> list[Task]:
    """Each run of each job once: jobs that differ in their last stage only share those before it.

    Raises ConfigError where two jobs are the same run, FolderError where their folders are of another format.
    """
    tasks: dict[Path, Task] = {}
    ends: dict[Path, Composed] = {}
    faults = []
    for runs in jobs:
        before: tuple[Path, ...] = ()
        for composed in runs:
            folder = folder_of(composed.cfg, composed.overrides)
            run = folder.parent / key_of(composed.cfg)  # whatever the words that lead there
            tasks.setdefault(run, Task(composed, folder, before))
            before = (tasks[run].folder,)
        if run in ends:
            first, second = ends[run].overrides, runs[-1].overrides
            found = f"{' '.join(second)}: the same run " + ("twice" if first == second else f"as {' '.join(first)}")
            fix = shlex.join(word for word in first if word not in second) or "each value once"
            faults.append(Fault("sweep", found, "jobs that differ in something that is trained", fix))
        ends[run] = runs[-1]
    ConfigError.refuse(faults)
    known = [read_run(task.folder) for task in tasks.values() if (task.folder / "config.yaml").exists()]
    FolderError.refuse([fault for run in known for fault in run.faults])
    return list(tasks.values())


@dataclass(frozen=True)
class Plan:
    """The runs of a command and the states of their folders, before any starts."""

    tasks: Sequence[Task]
    sizes: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = Counter(state_of(task.folder) for task in self.tasks)
        names = {**TODO, **dict.fromkeys(counts, "")}
        parts = [f"{counts[state]} {TODO[state]}" for state in names if counts[state]]
        groups = sorted({str(task.folder.parent) for task in self.tasks})
        shape = " x ".join(f"{axis} {size}" for axis, size in self.sizes.items() if size > 1)
        where = groups[0] if len(groups) == 1 else f"{len(groups)} folders"
        many = "run" if len(self.tasks) == 1 else "runs"
        head = f"{len(self.tasks)} {many} in {where}{f': {shape}' if shape else ''}"
        return f"sweep     {head}\n          {', '.join(parts)}"

    def lines(self) -> Iterator[str]:
        """One line for each run: its state, and its folder."""
        for task in self.tasks:
            state = state_of(task.folder)
            yield f"{state:<9} {Run(task.folder.absolute()) if state != 'new' else task.folder}"


# What a state means for the command that is about to start.
TODO = {"new": "new", "created": "not begun", "queued": "queued", "interrupted": "to continue"}
TODO |= {"failed": "failed, to try again", "running": "running elsewhere", "finished": "finished"}


def state_of(folder: Path) -> str:
    """The state of a run folder as it is: a run is running where a process holds it, whatever its status says."""
    if not (folder / "config.yaml").exists():
        return "new"
    run = Run(folder)
    state = run.status()["state"]
    if state in ("running", "created") and held(run):
        return "running"
    return "interrupted" if state == "running" else state
