"""Jobs -> the runs that they need, each once, in an order that works; the states of their folders.

``progress`` shows how far they are.
"""

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.resolution import Composed
from runner.config.run_name import former_names
from runner.errors import ConfigError, Fault, FolderError
from runner.report.number import plural
from runner.run import Run, held
from runner.run.key import folder_of, label_of
from runner.run.record import read_state

# What a state means for the command that is about to start.
TODO = {
    "new": "new",
    "created": "not begun",
    "queued": "queued",
    "interrupted": "to continue",
    "failed": "failed, to try again",
    "running": "running elsewhere",
    "finished": "finished",
}


@dataclass(frozen=True)
class Task:
    """A run to be trained, once those in ``after`` are finished."""

    composed: Composed
    folder: Path
    after: tuple[Path, ...] = ()

    def label(self, axes: Collection[str]) -> str:
        """The label of this run among its neighbours: its stage and its swept values."""
        words = self.composed.overrides
        swept = []
        for word in words:
            key, _, _ = word.lstrip("+").partition("=")
            if key in axes:
                swept.append(word)
        label = label_of(swept)
        if not swept:
            label = label_of(words, str(self.composed.cfg["name"]))
        return f"{self.composed.stage} {label}".strip()


def tasks_of(jobs: Sequence[Sequence[Composed]]) -> list[Task]:
    """Each run of each job once: jobs may share their first stages.

    Raises ConfigError where two jobs are one, and FolderError where a folder cannot be read.
    """
    tasks: dict[Path, Task] = {}
    ends: dict[Path, Composed] = {}
    faults = []
    for runs in jobs:
        before: tuple[Path, ...] = ()
        for composed in runs:
            folder = folder_of(composed.cfg, composed.overrides)
            # The key alone says which run it is, whatever the words that lead there.
            run = folder.parent / folder.name.rpartition("-")[2]
            tasks.setdefault(run, Task(composed, folder, before))
            before = (tasks[run].folder,)
        if run in ends:
            faults.append(_doubled_job(ends[run].overrides, runs[-1].overrides))
        ends[run] = runs[-1]
    ConfigError.refuse(faults)
    folder_faults: list[Fault] = []
    for task in tasks.values():
        if os.path.lexists(task.folder / "config.yaml"):
            folder_faults += _find_faults(task.folder)
    FolderError.refuse(folder_faults)
    return list(tasks.values())


def share_name(jobs: Sequence[Sequence[Composed]]) -> None:
    """Give the runs of a sweep over models or rows of one's own one name in place of several.

    It is that of runs which are there already, or else one that calls the models ``hub`` or the
    rows ``local``.
    """
    has_stages = any(len(runs) > 1 or runs[0].stage for runs in jobs)
    if has_stages:
        return
    folders = [folder_of(composed.cfg, composed.overrides) for (composed,) in jobs]
    groups = {folder.parent for folder in folders}
    if len(groups) < 2:
        return
    possible_names = []
    for (composed,) in jobs:
        name = str(composed.cfg["name"])
        possible_names.append([name, *former_names(composed.cfg)])
    first, *others = possible_names
    common = [name for name in first if all(name in names for names in others)]
    existing = [folder.parent.name for folder in folders if folder.is_dir()]
    usable = [name for name in existing if name in common] or common
    if usable:
        for (composed,) in jobs:
            composed.cfg["name"] = usable[0]


def _doubled_job(first: Sequence[str], second: Sequence[str]) -> Fault:
    """The fault of two jobs whose configurations, and so whose run folders, are the same.

    The fix is to leave the second out: it names the words that only the first one has.
    """
    same = "twice"
    if first != second:
        same = f"as {' '.join(first)}"
    only_first = [word for word in first if word not in second]
    return Fault(
        where="sweep",
        found=f"{' '.join(second)}: the same run {same}",
        expected="jobs that differ in something that is trained",
        fix=shlex.join(only_first) or "each value once",
    )


def _find_faults(folder: Path) -> Sequence[Fault]:
    """The faults of a run folder that is there already, whose files may be damaged."""
    record = read_state(folder, depth=None)
    if "config.yaml" in record.damaged:
        try:
            record.run.cfg  # noqa: B018  it says what is wrong
        except FolderError as error:
            return error.faults
    return record.faults


@dataclass(frozen=True)
class Plan:
    """The runs of a command and the states of their folders, before any starts."""

    tasks: Sequence[Task]
    sizes: dict[str, int] = field(default_factory=dict)  # of the axes of a sweep

    def __str__(self) -> str:
        groups = {str(task.folder.parent) for task in self.tasks}
        where = f"{len(groups)} folders"
        if len(groups) == 1:
            where = groups.pop()
        title = f"{plural(len(self.tasks), 'run')} in {where}"
        swept = [f"{axis} {size}" for axis, size in self.sizes.items() if size > 1]
        if swept:
            shape = " x ".join(swept)
            title += f": {shape}"
        counts = Counter(state_of(task.folder) for task in self.tasks)
        parts = []
        for state, text in TODO.items():
            if counts[state]:
                parts.append(f"{counts[state]} {text}")
        return f"sweep     {title}\n          {', '.join(parts)}"

    def lines(self) -> Iterator[str]:
        """One line for each run: its state, and its folder."""
        for task in self.tasks:
            state = state_of(task.folder)
            run = task.folder if state == "new" else Run(task.folder.absolute())
            yield f"{state:<9} {run}"


def state_of(folder: Path) -> str:
    """The state of a run folder: running where a process holds it, whatever its status says."""
    if not (folder / "config.yaml").exists():
        return "new"
    run = Run(folder)
    state = str(run.status()["state"])
    if state in ("running", "created") and held(run):
        return "running"
    if state == "running":  # its process was killed before it could write that
        return "interrupted"
    return state
