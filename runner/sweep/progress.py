"""How far a sweep is, for people: a line for each run that is on, and a total; in a log file, a line for each event."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TextIO

from runner.files import read_last_row
from runner.run import Run
from runner.sweep.plan import Plan, Task
from runner.work import finished

REFRESH = 0.5  # seconds between two pictures on a terminal
PULSE = 60.0  # seconds between two totals in a log file


class Show(Protocol):
    """What the pool tells as it goes."""

    def started(self, task: Task) -> None: ...

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None: ...

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None: ...

    def close(self) -> None: ...


class Stages:
    """One run after the other, each with the terminal to itself: only its beginning is told."""

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
            print(f"{state:<9} {run}: {first_line(cause)}", flush=True)

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        pass

    def close(self) -> None:
        pass


class Live:
    """Many runs at a time, drawn over and over on a terminal, or told one event a line."""

    def __init__(self, plan: Plan, jobs: int, out: TextIO | None = None):
        self.total, self.jobs, self.out = len(plan.tasks), jobs, out or sys.stdout
        self.labels = {task.folder: task.label(plan.sizes) for task in plan.tasks}
        self.counts = {"finished": 0, "failed": 0}
        self.seconds: list[float] = []
        self.drawn = 0
        self.next = time.monotonic() + (0 if self.out.isatty() else PULSE)

    def started(self, task: Task) -> None:
        if not self.out.isatty():
            self._say(f"start     {self.labels[task.folder]}")

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None:
        kind = "finished" if state == "finished" else "failed"
        self.counts[kind] += 1
        if state == "finished" and seconds is None and cause == "already":
            return  # the plan has counted it
        if state == "finished" and seconds is not None:
            self.seconds.append(seconds)
        took = clock(seconds) if seconds is not None else cause
        self._say(f"{state:<9} {self.labels[task.folder]}  {took if state == 'finished' else first_line(cause)}")

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + (REFRESH if self.out.isatty() else PULSE)
        lines = [*self._lines(live), self._total(live, waiting)] if self.out.isatty() else [self._total(live, waiting)]
        self._erase()
        print("\n".join(lines), file=self.out, flush=True)
        self.drawn = len(lines) if self.out.isatty() else 0

    def close(self) -> None:
        self._erase()

    def _say(self, text: str) -> None:
        self._erase()
        print(text, file=self.out, flush=True)

    def _erase(self) -> None:
        if self.drawn:
            print(f"\x1b[{self.drawn}F\x1b[J", end="", file=self.out, flush=True)
            self.drawn = 0

    def _lines(self, live: Iterable[tuple[Task, float]]) -> list[str]:
        width = shutil.get_terminal_size().columns - 1
        return [
            f"  {_figures(task.folder):<34} {clock(seconds):>7}  {self.labels[task.folder]}"[:width]
            for task, seconds in live
        ]

    def _total(self, live: Sequence[tuple[Task, float]], waiting: int) -> str:
        done = sum(self.counts.values())
        parts = [f"{self.counts['finished']} of {self.total} finished", f"{len(live)} running"]
        parts += [f"{self.counts['failed']} failed"] if self.counts["failed"] else []
        if self.seconds and done < self.total:
            parts.append(f"about {clock(self._remaining(live, waiting))} left")
        return f"progress  {', '.join(parts)}"

    def _remaining(self, live: Sequence[tuple[Task, float]], waiting: int) -> float:
        """Seconds until all are done, if the others take as long as those that have finished."""
        each = sum(self.seconds) / len(self.seconds)
        on = sum(max(0.0, each - seconds) for _, seconds in live)
        return (each * waiting + on) / max(1, self.jobs)


def clock(seconds: float) -> str:
    """A time as people read it.

    >>> clock(7.2), clock(75), clock(7500)
    ('7 s', '1:15', '2:05 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"


def _figures(folder: Path) -> str:
    """The step of a run and what it logged last."""
    status = Run(folder).status()
    line = read_last_row(folder / "metrics.jsonl")
    shown = [f"step {status['step']}/{status['max_steps']}"] if status["max_steps"] else ["starting"]
    for name in ("objective/scores", "reward", "rewards/margins", "loss"):
        value: Any = line.get(name)
        if isinstance(value, int | float):
            shown.append(f"{name.rpartition('/')[2]} {value:.4g}")
            break
    return "  ".join(shown)


def first_line(cause: str) -> str:
    """A cause without its heading and its cure: where it is, and what was found.

    >>> first_line("data\\n  dataset.limit.train\\n    found     0\\n    type      more")
    'dataset.limit.train: 0'
    """
    lines = [line.strip() for line in cause.splitlines() if line.strip()]
    for where, line in pairwise(lines):
        if line.startswith("found "):
            found = line.removeprefix("found").strip()
            return found if where.endswith("log.txt") else f"{where}: {found}"
    return (lines or ["no cause was written"])[0]
