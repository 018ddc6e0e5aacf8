"""Tasks -> the queue of a cluster: each is in it once, and the same command says how far it is. README.md beside it.

What is in the queue, the cluster is asked; ``status.json`` keeps the ticket by which a run is found there.
"""

import contextlib
import fcntl
import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runner.errors import EnvironmentFault, FolderError, code_of, fault, read_error
from runner.io.files import display_path, open_own
from runner.launch import worker
from runner.launch.plan import LiveProgress, Stages, Task, state_of
from runner.report.table import MAX_LINES
from runner.run import Run, foreign_faults, held, locked, open_run
from runner.run.read import one_line
from runner.schema.text import to_override

HIDDEN = ".queue"  # the folder beside the runs of a name for what their cluster reads and writes
POLL = 0.5  # seconds between two pictures
PAUSE = 10.0  # seconds between two questions to a cluster
PATIENCE = 60.0  # seconds that another command has for submitting its own


class Place(NamedTuple):
    """A run in a queue: its ticket and its state there, in the cluster's own words, and whether it has begun."""

    ticket: str
    words: str
    begun: bool = False


def place_of(run: Run, queue: Any, seen: Mapping[str, Place]) -> Place | None:
    """The place of a run in a queue, by the ticket in its status."""
    return seen.get(str((run.status().get("queued") or {}).get(type(queue).__name__.lower())))


def set_gone(run: Run, cause: str, state: str = "interrupted") -> None:
    """Record that a run is in no queue any more, where it has not said itself how it ended."""
    with contextlib.suppress(FolderError), locked(run):
        if run.status()["state"] in ("queued", "running"):
            run.set_status(state, cause=cause)


@contextlib.contextmanager
def locked_group(group: Path) -> Iterator[None]:
    """Let no other command submit runs of this name; a process that is started meanwhile keeps the lock to its end."""
    FolderError.refuse(foreign_faults(path for path in [group / HIDDEN] if path.is_symlink()))
    (group / HIDDEN).mkdir(parents=True, exist_ok=True)
    with open_own(group / HIDDEN / "lock", "a") as file:
        os.set_inheritable(file.fileno(), True)
        for _ in range(round(PATIENCE / POLL)):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(POLL)
        else:
            raise EnvironmentFault(fault("launch.submitting", folder=display_path(group)))
        yield


class Submission:
    """Submits tasks that are in no queue, and says of the others how far they are, or waits until all have ended."""

    def __init__(self, tasks: Sequence[Task], queue: Any, show: Stages | LiveProgress):
        self.queue, self.name, self.show = queue, type(queue).__name__.lower(), show
        self.open = {task.folder: task for task in tasks}
        self.places: dict[Path, Place] = {}  # of those that were seen in the queue, or submitted
        self.before: dict[Path, dict[str, Any]] = {}  # the status of those that this command has submitted
        self.began: dict[Path, float] = {}
        self.codes: dict[Path, int] = {}
        self.signals: list[int] = []

    def run(self) -> tuple[dict[Path, int], list[int]]:
        """The exit code of each task that has ended, by its folder, and the signals that came.

        The first one cancels what this command has submitted, at the second it leaves; a closed terminal ends it alone.
        """
        self.queue.check()
        with worker.handle_signals(lambda number, _: self.signals.append(number)), contextlib.closing(self.show):
            self._look()
            if self.queue.wait:
                self._wait()
        for folder in [*self.open][:MAX_LINES]:
            place, status = self.places.get(folder), Run(folder).status()
            if place is None or place.words:  # else it has just been submitted
                words = [f"step {status['step']} of {status['max_steps']}"] if status["max_steps"] else []
                words += [f"{place.ticket} {place.words}"] if place else []
                print(f"{state_of(folder):<9} {Run(folder.absolute())}: {', '.join(words)}")
        if self.open:
            print(f"          and {len(self.open) - MAX_LINES} more\n" if len(self.open) > MAX_LINES else "", end="")
            groups = shlex.join(dict.fromkeys(display_path(folder.parent) for folder in self.open))
            address = getattr(self.queue, "address", None)
            typed = f" {to_override('launcher.address', address)}" if address else ""
            command = f"python -m runner cancel {groups}{typed}"
            print(f"next      the same command says how far they are; {command}", flush=True)
        return self.codes, self.signals

    def _wait(self) -> None:
        due, cancelled = time.monotonic() + PAUSE, False
        while self.open and len(self.signals) < 2:
            own = [self.places[folder].ticket for folder in self.open if folder in self.before]
            if signal.SIGHUP in self.signals:
                worker.detach_terminal()
            if signal.SIGHUP in self.signals or (self.signals and not own):
                return
            if self.signals and not cancelled:
                self.show.close()
                print(f"cancelled {len(own)} in the queue: those that run save their step", flush=True)
                self.queue.cancel(own)
                cancelled = True
            if (now := time.monotonic()) >= due:
                due = now + PAUSE
                with contextlib.suppress(EnvironmentFault):  # a cluster may be away for a while
                    self._look()
            live = [(self.open[folder], now - began) for folder, began in self.began.items() if folder in self.open]
            self.show.tick(live, len(self.open) - len(live))
            time.sleep(POLL)

    def _look(self) -> None:
        with contextlib.ExitStack() as alone:
            if self.open.keys() - self.places:
                for group in sorted({folder.parent.absolute() for folder in self.open}):
                    alone.enter_context(locked_group(group))
            seen = self.queue.look()
            new = [task for task in list(self.open.values()) if self._is_left(task, seen)]
            if new and not self.signals:
                self.queue.submit(new, self.places, self._note)

    def _is_left(self, task: Task, seen: Mapping[str, Place]) -> bool:
        """True for a task that is to be submitted; of any other it is noted what has become of it."""
        run = Run(task.folder.absolute())
        place, known = place_of(run, self.queue, seen), self.places.get(task.folder)
        state, cause, tickets = (run.status().get(key) for key in ("state", "cause", "queued"))
        if failed := [folder for folder in task.after if self.codes.get(folder)]:
            self._end(task, self.codes[failed[0]], "not begun", f"it builds on {failed[0]}, which has failed")
        elif place and state != "finished":
            self.places[task.folder] = place
            if self.queue.wait and place.begun and task.folder not in self.began:
                self.began[task.folder] = time.monotonic()
                self.show.started(task)
        elif state != "finished" and (held(run) or (state == "queued" and tickets and self.name not in tickets)):
            return False  # another process has it, or the queue of another cluster
        elif known:
            codes = {"finished": 0, "failed": type(read_error(str(cause), 1)).code}
            cause = cause or ("" if state == "finished" else f"{known.ticket} is in the queue of the cluster no more")
            state = state if state in codes else "interrupted"
            self._end(task, codes.get(state, code_of(signal.SIGTERM)), state, cause, time.monotonic())
        else:
            try:
                run = open_run(task.composed.cfg, task.composed.overrides, task.composed.command, task.composed.choices)
                if not worker.is_finished(run):
                    if state in ("queued", "running"):
                        print(f"gone      {run}: its job is in the queue no more; it is submitted again")
                    elif state == "failed":
                        print(f"failed    {run}: {one_line(str(cause), heading=False)}; it is submitted again")
                    return True
                self._end(task, 0, "finished", "already")
            except FolderError as error:
                self._end(task, error.code, "failed", str(error))
        return False

    def _end(self, task: Task, code: int, state: str, cause: str, now: float | None = None) -> None:
        self.codes[self.open.pop(task.folder).folder] = code
        if code:
            set_gone(Run(task.folder.absolute()), cause)
        self.show.ended(task, state, cause, now and now - self.began.get(task.folder, now))

    def _note(self, task: Task, ticket: str) -> None:
        """Record the ticket of a task, empty where it is not submitted after all."""
        run = Run(task.folder.absolute())
        before = self.before.setdefault(task.folder, run.status())
        if not ticket:
            del self.before[task.folder], self.places[task.folder]
            return run.set_status(before["state"], cause=before.get("cause"), queued=before.get("queued"))
        with contextlib.suppress(FolderError), locked(run):
            if task.folder not in self.places or run.status()["state"] == "queued":  # else it has begun
                run.set_status("queued", cause=None, queued={self.name: ticket})
        self.places[task.folder] = Place(ticket, "")
