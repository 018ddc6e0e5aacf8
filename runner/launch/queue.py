"""Tasks -> the queue of a cluster: each is in it once, and the same command says how far it is. README.md beside it.

What is in the queue, the cluster is asked; ``status.json`` keeps the ticket by which a run is found there.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.errors import EnvironmentFault, FolderError, code_of, fault, read_error
from runner.io.files import display_path, open_own
from runner.launch import worker
from runner.launch.plan import LiveProgress, Stages, Task
from runner.run import Run, foreign_faults, held, locked, open_run

HIDDEN = ".queue"  # the folder beside the runs of a name for what their cluster reads and writes
POLL = 0.5  # seconds between two pictures
PAUSES = (1.0, 15.0)  # seconds between two questions to a cluster, at first and at most
PATIENCE = 60.0  # seconds that another command has for submitting its own


@dataclass(frozen=True)
class Place:
    """A run in a queue: its ticket and its state there, in the cluster's own words, and whether it has begun."""

    ticket: str
    words: str
    begun: bool = False


class Queue(Protocol):
    """The launcher of a cluster, made with the keys of its YAML; raises ConfigError where they cannot work together."""

    wait: bool

    def check(self) -> None:
        """Raise EnvironmentFault where this machine cannot reach the cluster."""

    def preview(self, tasks: Sequence[Task]) -> str:
        """Show what would be submitted; nothing is asked or written."""

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Callable[[Task, str], None]) -> None:
        """Submit those that can be; ``places`` are those of others that they may build on."""

    def look(self) -> Mapping[str, Place]:
        """All that is in the queue, by each ticket that was noted of it."""

    def cancel(self, tickets: Sequence[str]) -> None:
        """Take runs out of the queue; those that have begun save their step."""

    def train(self, folder: Path, debug: bool) -> int:
        """Train by several processes, within the job; gives the exit code."""


def name_of(queue: Queue) -> str:
    """The key of a queue's tickets in the status of a run."""
    return type(queue).__name__.lower()


def place_of(run: Run, queue: Queue, seen: Mapping[str, Place]) -> Place | None:
    """The place of a run in a queue, or None."""
    return seen.get(str((run.status().get("queued") or {}).get(name_of(queue))))


def set_gone(run: Run, cause: str) -> None:
    """Record that a run is in no queue any more, where it has not said itself how it ended."""
    with contextlib.suppress(FolderError), locked(run):
        if run.status()["state"] in ("queued", "running"):
            run.set_status("interrupted", cause=cause)


@contextlib.contextmanager
def locked_group(group: Path) -> Iterator[None]:
    """Let no other command submit runs of this name; a process that is started meanwhile keeps the lock to its end."""
    FolderError.refuse(foreign_faults(path for path in [group / HIDDEN] if path.is_symlink()))
    (group / HIDDEN).mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + PATIENCE
    with open_own(group / HIDDEN / "lock", "a") as file:
        os.set_inheritable(file.fileno(), True)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvironmentFault(fault("launch.submitting", folder=display_path(group))) from None
                time.sleep(POLL)
        yield


class Submission:
    """Submits tasks that are in no queue, and says of the others how far they are, or waits until all have ended."""

    def __init__(self, tasks: Sequence[Task], queue: Queue, show: Stages | LiveProgress):
        self.queue, self.show, self.open = queue, show, list(tasks)
        self.places: dict[Path, Place] = {}  # of those that were seen in the queue, or submitted
        self.before: dict[Path, dict[str, Any]] = {}  # the status of those that this command has submitted
        self.began: dict[Path, float] = {}
        self.codes: dict[Path, int] = {}
        self.signals: list[int] = []

    def run(self) -> tuple[dict[Path, int], list[int]]:
        """The exit code of each task that has ended, by its folder, and the signals that came.

        The first one cancels what this command has submitted, at the second it leaves; a terminal that is closed ends
        this command alone.
        """
        self.queue.check()
        with worker.handle_signals(self._hand_on), contextlib.closing(self.show):
            self._look()
            if self.queue.wait:
                self._wait()
        for task in () if self.queue.wait else self.open:
            run, place = Run(task.folder.absolute()), self.places.get(task.folder)
            if task.folder not in self.before and place:
                status = run.status()
                steps = f"step {status['step']} of {status['max_steps']}, " if status["max_steps"] else ""
                print(f"{'running' if place.begun else 'queued':<9} {run}: {steps}{place.ticket} {place.words}")
            elif not place:
                print(f"{'running' if held(run) else 'not yet':<9} {run}")
        if self.open:
            groups = " ".join(dict.fromkeys(display_path(task.folder.parent) for task in self.open))
            print(f"next      the same command says how far they are; python -m runner cancel {groups}", flush=True)
        return self.codes, self.signals

    def _hand_on(self, number: int, frame: object) -> None:
        self.signals.append(number)
        if number == signal.SIGHUP:
            worker.detach_terminal()

    def _wait(self) -> None:
        """Show how far they are until all have ended, or a signal says otherwise."""
        pause, cancelled = PAUSES[0], False
        due = time.monotonic() + pause
        while self.open and len(self.signals) < 2 and signal.SIGHUP not in self.signals:
            left = [self.places[task.folder].ticket for task in self.open if task.folder in self.before]
            if self.signals and not left:
                break
            if self.signals and not cancelled:
                self.show.close()
                print(f"cancelled {len(left)} of {name_of(self.queue)}: those that run save their step", flush=True)
                self.queue.cancel(left)
                cancelled = True
            if time.monotonic() >= due:
                with contextlib.suppress(EnvironmentFault):  # a cluster may be away for a while
                    self._look()
                pause = min(PAUSES[1], 1.5 * pause)
                due = time.monotonic() + pause
            now = time.monotonic()
            live = [(task, now - self.began[task.folder]) for task in self.open if task.folder in self.began]
            self.show.tick(live, len(self.open) - len(live))
            time.sleep(POLL if self.open else 0)

    def _look(self) -> None:
        """Take note of what has changed, and submit what is in no queue and may be."""
        with contextlib.ExitStack() as alone:
            if any(task.folder not in self.places for task in self.open):
                for group in sorted({task.folder.parent.absolute() for task in self.open}):
                    alone.enter_context(locked_group(group))
            seen = self.queue.look()
            new = [task for task in list(self.open) if self._sort(task, seen)]
            if new and not self.signals:
                self.queue.submit(new, self.places, self._note)

    def _sort(self, task: Task, seen: Mapping[str, Place]) -> bool:
        """True for a task that is to be submitted; of any other it is noted what has become of it."""
        run = Run(task.folder.absolute())
        place, known = place_of(run, self.queue, seen), self.places.get(task.folder)
        state, cause = run.status()["state"], str(run.status().get("cause"))
        if failed := [folder for folder in task.after if self.codes.get(folder, 0)]:
            self._end(task, self.codes[failed[0]], "not begun", f"it builds on {failed[0]}, which has failed")
        elif place and state != "finished":
            self.places[task.folder] = place
            if place.begun and task.folder not in self.began:
                self.began[task.folder] = time.monotonic()
                self.show.started(task)
        elif state != "finished" and held(run):
            return False  # another process has it
        elif not known:
            try:
                composed = task.composed
                run = open_run(composed.cfg, composed.overrides, composed.command, composed.choices)
                if not worker.is_finished(run):
                    if state in ("queued", "running"):
                        print(f"gone      {run}: its job is in the queue no more; it is submitted again")
                    return True
                self._end(task, 0, "finished", "already")
            except FolderError as error:
                self._end(task, error.code, "failed", str(error))
        elif state == "finished":
            self._end(task, 0, "finished", cause if cause != "None" else "", time.monotonic())
        elif state == "failed":
            self._end(task, type(read_error(cause, 1)).code, state, cause)
        else:
            cause = cause if state == "interrupted" else f"{known.ticket} is in the queue of the cluster no more"
            self._end(task, code_of(signal.SIGTERM), "interrupted", cause)
        return False

    def _end(self, task: Task, code: int, state: str, cause: str, now: float | None = None) -> None:
        self.open.remove(task)
        self.codes[task.folder] = code
        if code:
            set_gone(Run(task.folder.absolute()), cause)
        self.show.ended(task, state, cause, now and now - self.began.get(task.folder, now))

    def _note(self, task: Task, ticket: str) -> None:
        """Record the ticket of a task, empty where it is not submitted after all."""
        run, queued = Run(task.folder.absolute()), {name_of(self.queue): ticket}
        before = self.before.setdefault(task.folder, run.status())
        if not ticket:
            del self.before[task.folder], self.places[task.folder]
            run.set_status(before["state"], cause=before.get("cause"), queued=before.get("queued"))
            return
        with contextlib.suppress(FolderError), locked(run):  # unless it has begun
            if task.folder not in self.places or run.status()["state"] == "queued":
                run.set_status("queued", cause=None, queued=queued)
        self.places[task.folder] = Place(ticket, "submitted")
