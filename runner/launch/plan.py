"""Jobs -> the runs that they need, each once, in an order that works; what their folders hold, how far they are."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from runner.config import Composed
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import read_last_row
from runner.report.number import format_duration, plural
from runner.report.objective import list_figures
from runner.run import Run, held
from runner.run.key import folder_of, label_of
from runner.run.read import finished, one_line, read_state

# What a state means for the command that is about to start.
TODO = {"new": "new", "created": "not begun", "queued": "queued", "interrupted": "to continue"}
TODO |= {"failed": "failed, to try again", "running": "running elsewhere", "finished": "finished"}
REFRESH = 0.5  # seconds between two pictures on a terminal
PULSE = 60.0  # seconds between two totals in a log file


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
    """Each run of each job once, as first stages that jobs share; raises where two jobs are one, or a format is old."""
    tasks: dict[Path, Task] = {}
    ends: dict[Path, Composed] = {}
    faults = []
    for runs in jobs:
        before: tuple[Path, ...] = ()
        for composed in runs:
            folder = folder_of(composed.cfg, composed.overrides)
            run = folder.parent / folder.name.rpartition("-")[2]  # its key, whatever the words that lead there
            tasks.setdefault(run, Task(composed, folder, before))
            before = (tasks[run].folder,)
        if run in ends:
            first, second = ends[run].overrides, runs[-1].overrides
            found = f"{' '.join(second)}: the same run " + ("twice" if first == second else f"as {' '.join(first)}")
            fix = shlex.join(word for word in first if word not in second) or "each value once"
            faults.append(Fault("sweep", found, "jobs that differ in something that is trained", fix))
        ends[run] = runs[-1]
    ConfigError.refuse(faults)
    begun = [task.folder for task in tasks.values() if os.path.lexists(task.folder / "config.yaml")]
    FolderError.refuse(fault for folder in begun for fault in _find_faults(folder))
    return list(tasks.values())


def _find_faults(folder: Path) -> Sequence[Fault]:
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
    sizes: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = Counter(state_of(task.folder) for task in self.tasks)
        parts = [f"{counts[state]} {text}" for state, text in TODO.items() if counts[state]]
        groups = sorted({str(task.folder.parent) for task in self.tasks})
        shape = " x ".join(f"{axis} {size}" for axis, size in self.sizes.items() if size > 1)
        where = groups[0] if len(groups) == 1 else f"{len(groups)} folders"
        head = f"{plural(len(self.tasks), 'run')} in {where}{f': {shape}' if shape else ''}"
        return f"sweep     {head}\n          {', '.join(parts)}"

    def lines(self) -> Iterator[str]:
        """One line for each run: its state, and its folder."""
        for task in self.tasks:
            state = state_of(task.folder)
            yield f"{state:<9} {Run(task.folder.absolute()) if state != 'new' else task.folder}"


def state_of(folder: Path) -> str:
    """The state of a run folder as it is: a run is running where a process holds it, whatever its status says."""
    if not (folder / "config.yaml").exists():
        return "new"
    run = Run(folder)
    if (state := run.status()["state"]) in ("running", "created") and held(run):
        return "running"
    return "interrupted" if state == "running" else state


class Stages:
    """One run after the other, each with the terminal to itself: only its beginning is shown."""

    def __init__(self, tasks: Sequence[Task]):
        self.numbers = {task.folder: number for number, task in enumerate(tasks, 1)}

    def started(self, task: Task) -> None:
        if task.composed.stage:
            print(f"stage     {task.composed.stage}, {self.numbers[task.folder]} of {len(self.numbers)}")
        print(f"run       {Run(task.folder.absolute())}", flush=True)

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None:
        if seconds is None:
            run = Run(task.folder.absolute())
            text = f"{state:<9} {run}: {one_line(cause, heading=False)}"
            print(finished(run) if state == "finished" else text, flush=True)

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        """Nothing: the run itself shows how far it is."""

    def close(self) -> None:
        """Nothing: no picture is open."""


class LiveProgress:
    """Many runs at a time, drawn over and over on a terminal, or one event a line."""

    def __init__(self, plan: Plan, jobs: int, out: TextIO | None = None):
        from rich import console, live

        self.total, self.jobs = len(plan.tasks), jobs
        self.labels = {task.folder: task.label(plan.sizes) for task in plan.tasks}
        self.counts = {"finished": 0, "failed": 0}
        self.seconds: list[float] = []
        out = out or sys.stdout
        plain = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": True}
        self.console = console.Console(file=out, force_terminal=out.isatty(), **plain)
        # Not in the way of what others print, such as warnings.
        quietly = {"auto_refresh": False, "transient": True, "redirect_stdout": False, "redirect_stderr": False}
        self.picture = live.Live(console=self.console, **quietly)
        self.next = time.monotonic() + (0 if self.console.is_terminal else PULSE)

    def started(self, task: Task) -> None:
        if not self.console.is_terminal:
            self.console.print(f"start     {self.labels[task.folder]}")

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None:
        from rich.text import Text

        self.counts["finished" if state == "finished" else "failed"] += 1
        if state != "finished":
            outcome = one_line(cause, heading=False)
        elif seconds is not None:
            self.seconds.append(seconds)
            outcome = format_duration(seconds) + (f"  {one_line(cause, heading=False)}" if cause else "")
        elif cause == "already" and self.total > 1:
            return  # the plan has counted it
        else:
            outcome = cause
        style = "green" if state == "finished" else "red"
        self.console.print(Text.assemble((f"{state:<9}", style), f" {self.labels[task.folder]}  {outcome}"))

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        from rich.text import Text

        if (now := time.monotonic()) < self.next:
            return
        self.next = now + (REFRESH if self.console.is_terminal else PULSE)
        done = sum(self.counts.values())
        parts = [f"{self.counts['finished']} of {self.total} finished", f"{len(live)} running"]
        parts += [f"{self.counts['failed']} failed"] if self.counts["failed"] else []
        if self.seconds and done < self.total:  # the others may take as long as those that have finished
            each = sum(self.seconds) / len(self.seconds)
            running = sum(max(0.0, each - seconds) for _, seconds in live)
            parts.append(f"about {format_duration((each * waiting + running) / max(self.jobs, len(live), 1))} left")
        total = f"progress  {', '.join(parts)}"
        if not self.console.is_terminal:
            return self.console.print(total)
        lines = []
        for task, seconds in live:
            status, logged = Run(task.folder).status(), read_last_row(task.folder / "metrics.jsonl")
            step = f"step {status['step']}/{status['max_steps']}" if status["max_steps"] else "starting"
            figures = "  ".join([step, *list_figures(logged)[:1]])
            lines.append(f"  {figures:<34} {format_duration(seconds):>7}  {self.labels[task.folder]}")
        self.picture.update(Text("\n".join([*lines, total]), no_wrap=True, overflow="ellipsis"))
        self.picture.start()
        self.picture.refresh()

    def close(self) -> None:
        self.picture.stop()
