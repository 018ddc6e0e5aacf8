"""The progress of a sweep, for people: a line for each run that is on, and a total; in a log file, a line an event."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from runner.io.files import read_last_row
from runner.launch.plan import Plan, Task
from runner.report.number import format_duration
from runner.report.objective import list_figures
from runner.run import Run
from runner.run.read import finished, one_line

REFRESH = 0.5  # seconds between two pictures on a terminal
PULSE = 60.0  # seconds between two totals in a log file


class Stages:
    """One run after the other, each with the terminal to itself: only its beginning is shown."""

    def __init__(self, tasks: Sequence[Task]):
        self.numbers = {task.folder: number for number, task in enumerate(tasks, 1)}

    def started(self, task: Task) -> None:
        if task.composed.stage:
            print(f"stage     {task.composed.stage}, {self.numbers[task.folder]} of {len(self.numbers)}")
        print(f"run       {Run(task.folder.absolute())}", flush=True)

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None:
        run = Run(task.folder.absolute())
        if state == "finished" and seconds is None:
            print(finished(run), flush=True)
        elif seconds is None:
            print(f"{state:<9} {run}: {one_line(cause, heading=False)}", flush=True)

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
        elif cause == "already":
            return  # the plan has counted it
        else:
            outcome = cause
        style = "green" if state == "finished" else "red"
        self.console.print(Text.assemble((f"{state:<9}", style), f" {self.labels[task.folder]}  {outcome}"))

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        from rich.text import Text

        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + (REFRESH if self.console.is_terminal else PULSE)
        done = sum(self.counts.values())
        parts = [f"{self.counts['finished']} of {self.total} finished", f"{len(live)} running"]
        parts += [f"{self.counts['failed']} failed"] if self.counts["failed"] else []
        if self.seconds and done < self.total:  # the others may take as long as those that have finished
            each = sum(self.seconds) / len(self.seconds)
            running = sum(max(0.0, each - seconds) for _, seconds in live)
            parts.append(f"about {format_duration((each * waiting + running) / max(1, self.jobs))} left")
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
