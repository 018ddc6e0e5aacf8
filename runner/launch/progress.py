"""The progress of runs that train, one after the other or many at a time, as it is printed."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from runner.io.files import read_last_row
from runner.launch.plan import Plan, Task
from runner.report.number import format_duration
from runner.report.score import list_figures
from runner.run import Run
from runner.run.completion import finished
from runner.run.record import one_line

REFRESH = 0.5  # seconds between two pictures on a terminal
PULSE = 60.0  # seconds between two totals in a log file


class Stages:
    """One run after the other, each with the terminal to itself: only its beginning is shown."""

    def __init__(self, tasks: Sequence[Task]):
        self.numbers = {task.folder: number for number, task in enumerate(tasks, 1)}

    def started(self, task: Task) -> None:
        """Print which run begins, before it prints anything itself."""
        stage = task.composed.stage
        if stage:
            number = self.numbers[task.folder]
            print(f"stage     {stage}, {number} of {len(self.numbers)}")
        print(f"run       {Run(task.folder.absolute())}", flush=True)

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None:
        """Print the end of a run that has not trained now: it was finished, or could not start."""
        if seconds is not None:  # the run has said so itself
            return
        run = Run(task.folder.absolute())
        if state == "finished":
            text = finished(run)
        else:
            text = f"{state:<9} {run}: {one_line(cause, heading=False)}"
        print(text, flush=True)

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        """Nothing: the run itself shows how far it is."""

    def close(self) -> None:
        """Nothing: no picture is open."""


class LiveProgress:
    """Many runs at a time, drawn over and over on a terminal, or one event a line."""

    def __init__(self, plan: Plan, jobs: int, out: TextIO | None = None):
        from rich.console import Console
        from rich.live import Live

        out = out or sys.stdout
        self.total = len(plan.tasks)
        self.jobs = jobs
        self.labels = {task.folder: task.label(plan.sizes) for task in plan.tasks}
        self.counts = {"finished": 0, "failed": 0}
        self.seconds: list[float] = []  # that each of the finished runs has taken
        self.console = Console(
            file=out,
            force_terminal=out.isatty(),
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
        )
        # Not in the way of what others print, such as warnings.
        self.picture = Live(
            console=self.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.next = time.monotonic()  # when to draw or to print again
        if not self.console.is_terminal:
            self.next += PULSE

    def started(self, task: Task) -> None:
        """Print the beginning of a run as an event; the picture of a terminal shows the run."""
        if not self.console.is_terminal:
            self.console.print(f"start     {self.labels[task.folder]}")

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None:
        """Count a run that has ended, and print its line above the picture, where it stays.

        ``seconds`` are those that it has trained, None where it did not train now.
        """
        from rich.text import Text

        is_finished = state == "finished"
        self.counts["finished" if is_finished else "failed"] += 1
        if is_finished and seconds is None and cause == "already" and self.total > 1:
            return  # the plan has counted it
        outcome = one_line(cause, heading=False)
        if is_finished and seconds is None:
            outcome = cause
        elif is_finished and seconds is not None:
            self.seconds.append(seconds)
            duration = format_duration(seconds)
            outcome = f"{duration}  {outcome}" if cause else duration
        colour = "green" if is_finished else "red"
        title = (f"{state:<9}", colour)
        label = self.labels[task.folder]
        line = Text.assemble(title, f" {label}  {outcome}")
        self.console.print(line)

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        """Draw the picture, or print a total, if it is time to.

        ``live`` are the runs that train, each with the seconds so far; ``waiting`` are not begun.
        """
        from rich.text import Text

        now = time.monotonic()
        if now < self.next:
            return
        pause = REFRESH if self.console.is_terminal else PULSE
        self.next = now + pause
        total = self._describe_total([seconds for _, seconds in live], waiting)
        if not self.console.is_terminal:
            self.console.print(total)
            return
        lines = [self._describe_run(task, seconds) for task, seconds in live]
        text = "\n".join([*lines, total])
        self.picture.update(Text(text, no_wrap=True, overflow="ellipsis"))
        self.picture.start()
        self.picture.refresh()

    def _describe_total(self, running: Sequence[float], waiting: int) -> str:
        """A line on all runs, given the seconds that each of the running ones has trained."""
        finished_count = self.counts["finished"]
        failed_count = self.counts["failed"]
        parts = [f"{finished_count} of {self.total} finished", f"{len(running)} running"]
        if failed_count:
            parts.append(f"{failed_count} failed")
        if self.seconds and finished_count + failed_count < self.total:
            # The others may take as long as those that have finished.
            mean = sum(self.seconds) / len(self.seconds)
            remaining = mean * waiting
            for seconds in running:
                remaining += max(0.0, mean - seconds)
            side_by_side = max(self.jobs, len(running), 1)
            duration = format_duration(remaining / side_by_side)
            parts.append(f"about {duration} left")
        return f"progress  {', '.join(parts)}"

    def _describe_run(self, task: Task, seconds: float) -> str:
        """A line on a run that trains: its step, its newest figure, its time and its label."""
        status = Run(task.folder).status()
        figures = ["starting"]
        if status["max_steps"]:
            figures = [f"step {status['step']}/{status['max_steps']}"]
        last_row = read_last_row(task.folder / "metrics.jsonl")
        figures += list_figures(last_row)[:1]
        text = "  ".join(figures)
        duration = format_duration(seconds)
        return f"  {text:<34} {duration:>7}  {self.labels[task.folder]}"

    def close(self) -> None:
        """Take the picture from the terminal."""
        self.picture.stop()
