"""Jobs -> the runs that they need, each once, in an order that works; the states of their folders.

``progress`` shows how far they are.
"""

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from runner.config.resolution import Composed
from runner.config.run_name import former_names
from runner.errors import ConfigError, Fault, FolderError
from runner.report.number import plural
from runner.run import Run, held
from runner.run.key import folders_of, label_of
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


def tasks_of(
    jobs: Sequence[Sequence[Composed]], folders: Mapping[int, Path] | None = None
) -> list[Task]:
    """Each run of each job once: jobs may share their first stages.

    ``folders`` are those of the runs, as ``folders_of`` finds them. Raises ConfigError where two
    jobs are one, and FolderError where a folder cannot be read.
    """
    folders = folders or folders_of(jobs)
    tasks: dict[Path, Task] = {}
    ends: dict[Path, Composed] = {}
    faults = []
    for runs in jobs:
        before: tuple[Path, ...] = ()
        for composed in runs:
            folder = folders[id(composed)]
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


def share_name(jobs: Sequence[Sequence[Composed]]) -> dict[int, Path]:
    """Give the runs of a sweep over models or rows of one's own one name in place of several.

    It is that of runs which are there already, or else one that calls the models ``hub`` or the
    rows ``local``. Returns the folders of the runs, as ``folders_of`` finds them.
    """
    folders_by_run = folders_of(jobs)
    folders = list(folders_by_run.values())
    groups = {folder.parent for folder in folders}
    has_stages = any(len(runs) > 1 or runs[0].stage for runs in jobs)
    if has_stages or len(groups) < 2:
        return folders_by_run
    possible_names = []
    for (composed,) in jobs:
        name = str(composed.cfg["name"])
        possible_names.append([name, *former_names(composed.cfg)])
    first, *others = possible_names
    common = [name for name in first if all(name in names for names in others)]
    existing = [folder.parent.name for folder in folders if folder.is_dir()]
    usable = [name for name in existing if name in common] or common
    if not usable:
        return folders_by_run
    for (composed,) in jobs:
        composed.cfg["name"] = usable[0]
    return folders_of(jobs)


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

    @cached_property
    def states(self) -> list[str]:
        """The state of each task's folder when it is first asked for."""
        return [state_of(task.folder) for task in self.tasks]

    @property
    def unfinished(self) -> list[Composed]:
        """The runs that have something left to do."""
        runs = []
        for task, state in zip(self.tasks, self.states, strict=True):
            if state != "finished":
                runs.append(task.composed)
        return runs

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
        counts = Counter(self.states)
        parts = []
        for state, text in TODO.items():
            if counts[state]:
                parts.append(f"{counts[state]} {text}")
        return f"sweep     {title}\n          {', '.join(parts)}"

    def lines(self) -> Iterator[str]:
        """One line for each run: its state, and its folder."""
        for task, state in zip(self.tasks, self.states, strict=True):
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
