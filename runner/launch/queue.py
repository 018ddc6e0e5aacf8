"""Tasks -> the queue of a cluster, each once; the same command says how far they are. README.md.

What is in the queue, the cluster is asked; ``status.json`` keeps the ticket by which a run is found
there.
"""

import contextlib
import fcntl
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from runner.config.build import asked_for, build
from runner.config.experiment import LauncherPart, key_names
from runner.config.resolution import Composed
from runner.errors import (
    ConfigError,
    EnvironmentFault,
    Fault,
    FolderError,
    RunnerError,
    code_of,
    error_of,
)
from runner.io.files import display_path, open_own
from runner.io.terminal import MAX_LINES
from runner.launch import signals
from runner.launch.plan import Task, state_of
from runner.launch.progress import LiveProgress, Stages
from runner.run import Run, foreign_faults, held, locked, open_run
from runner.run.completion import is_finished
from runner.run.record import one_line
from runner.schema.text import to_override

HIDDEN = ".queue"  # the folder beside the runs of a name for what their cluster reads and writes
POLL = 0.5  # seconds between two pictures
PAUSE = 10.0  # seconds between two questions to a cluster
PATIENCE = 60.0  # seconds that another command has for submitting its own


class Place(NamedTuple):
    """A run in a queue."""

    ticket: str
    words: str  # its state there, in the cluster's own words; empty where it was just submitted
    begun: bool = False


Note = Callable[[Task, str], None]  # keeps the ticket of a task; an empty one takes it back


class ClusterQueue(Protocol):
    """A launcher that has a queue. README.md says what each method has to do."""

    @property
    def wait(self) -> bool:
        """The command stays until all runs have ended."""

    def check(self) -> None:
        """Raise EnvironmentFault where this machine cannot reach the cluster."""

    def preview(self, tasks: Sequence[Task]) -> str:
        """The text of what would be submitted."""

    def submit(self, tasks: Sequence[Task], places: Mapping[Path, Place], note: Note) -> None:
        """Submit runs, and note their tickets."""

    def look(self) -> dict[str, Place]:
        """The places of all that is in the queue, by their tickets."""

    def cancel(self, tickets: Sequence[str]) -> None:
        """Have runs taken out of the queue."""


@runtime_checkable
class HasStore(Protocol):
    """A queue whose machines do not see the run folders of this one."""

    def fetch(self, folders: Sequence[Path]) -> None:
        """Bring what the machines have given back of runs."""


def look(queue: ClusterQueue, folders: Sequence[Path]) -> dict[str, Place]:
    """The places of all that is in a queue; what its machines gave back of runs is brought here."""
    places = queue.look()
    if isinstance(queue, HasStore):
        queue.fetch([folder.absolute() for folder in folders])
    return places


def place_of(
    status: Mapping[str, Any], queue: ClusterQueue, seen: Mapping[str, Place]
) -> Place | None:
    """The place of a run in a queue, by the ticket in its status."""
    tickets = status.get("queued") or {}
    return seen.get(str(tickets.get(_name_of(queue))))


def has_finished(folder: Path) -> bool:
    """True where the status of a run says that it is finished."""
    return bool(Run(folder.absolute()).status()["state"] == "finished")


def _name_of(queue: ClusterQueue) -> str:
    """The name under which the status of a run holds its ticket in this kind of queue."""
    return type(queue).__name__.lower()


def set_gone(run: Run, cause: str | RunnerError, state: str = "interrupted") -> None:
    """Record that a run is in no queue any more, where it has not said itself how it ended."""
    with contextlib.suppress(FolderError), locked(run):
        if run.status()["state"] in ("queued", "running"):
            error = {}
            if isinstance(cause, RunnerError):
                error["error"] = cause.to_dict()
            run.set_status(state, cause=str(cause), **error)


@contextlib.contextmanager
def locked_group(group: Path) -> Iterator[None]:
    """Let no other command submit runs of this name.

    A process that is started meanwhile keeps the lock to its end.
    """
    hidden = group / HIDDEN
    if hidden.is_symlink():
        FolderError.refuse(foreign_faults([hidden]))
    hidden.mkdir(parents=True, exist_ok=True)
    with open_own(hidden / "lock", "a") as file:
        os.set_inheritable(file.fileno(), True)
        for _ in range(round(PATIENCE / POLL)):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(POLL)
        else:
            raise EnvironmentFault(
                Fault(
                    where=display_path(group),
                    found="another command has been submitting its runs for a minute",
                    expected="one at a time",
                    fix="the same command when the other one has ended; it submits nothing twice",
                )
            )
        yield


class Submission:
    """Submits tasks that are in no queue, and tells how far the others are.

    With ``queue.wait`` it stays until all have ended.
    """

    def __init__(self, tasks: Sequence[Task], queue: ClusterQueue, show: Stages | LiveProgress):
        self.queue = queue
        self.name = _name_of(queue)
        self.show = show
        self.open = {task.folder: task for task in tasks}
        self.places: dict[Path, Place] = {}  # of those that were seen in the queue, or submitted
        # The status that those had which this command has submitted.
        self.before: dict[Path, dict[str, Any]] = {}
        self.began: dict[Path, float] = {}
        self.codes: dict[Path, int] = {}
        self.signals: list[int] = []

    def run(self) -> tuple[dict[Path, int], list[int]]:
        """The exit code of each task that has ended, by its folder, and the signals that came.

        The first one cancels what this command has submitted, at the second it leaves; a closed
        terminal ends it alone.
        """
        self.queue.check()
        with (
            signals.handle_signals(lambda number, _: self.signals.append(number)),
            contextlib.closing(self.show),
        ):
            self._look()
            if self.queue.wait:
                self._wait()
        self._print_open()
        return self.codes, self.signals

    def _print_open(self) -> None:
        """Print how far those are that have not ended, and how to ask again or to cancel them."""
        if not self.open:
            return
        for folder in list(self.open)[:MAX_LINES]:
            place = self.places.get(folder)
            if place and not place.words:  # its submission has just been printed
                continue
            status = Run(folder).status()
            words = []
            if status["max_steps"]:
                words.append(f"step {status['step']} of {status['max_steps']}")
            if place:
                words.append(f"{place.ticket} {place.words}")
            state = state_of(folder)
            run = Run(folder.absolute())
            print(f"{state:<9} {run}: {', '.join(words)}")
        if len(self.open) > MAX_LINES:
            print(f"          and {len(self.open) - MAX_LINES} more")
        groups = dict.fromkeys(display_path(folder.parent) for folder in self.open)
        command = f"python -m runner cancel {shlex.join(groups)}"
        address = getattr(self.queue, "address", None)
        if address:
            command += f" {to_override('launcher.address', address)}"
        print(f"next      the same command says how far they are; {command}", flush=True)

    def _wait(self) -> None:
        """Ask the cluster again and again until all have ended, or a signal comes."""
        due = time.monotonic() + PAUSE
        is_cancelled = False
        while self.open and len(self.signals) < 2:
            submitted = [folder for folder in self.open if folder in self.before]
            if signal.SIGHUP in self.signals:
                signals.detach_terminal()
                return
            if self.signals and not submitted:
                return
            if self.signals and not is_cancelled:
                self.show.close()
                text = f"cancelled {len(submitted)} in the queue: running ones save their step"
                print(text, flush=True)
                tickets = [self.places[folder].ticket for folder in submitted]
                self.queue.cancel(tickets)
                is_cancelled = True
            now = time.monotonic()
            if now >= due:
                due = now + PAUSE
                with contextlib.suppress(EnvironmentFault):  # a cluster may be away for a while
                    self._look()
            live = []
            for folder, began in self.began.items():
                if folder in self.open:
                    live.append((self.open[folder], now - began))
            self.show.tick(live, len(self.open) - len(live))
            time.sleep(POLL)

    def _look(self) -> None:
        """Ask the cluster for all that is in its queue, and submit what is to be there."""
        with contextlib.ExitStack() as locks:
            if self.open.keys() - self.places:  # something may have to be submitted
                for group in sorted({folder.parent.absolute() for folder in self.open}):
                    locks.enter_context(locked_group(group))
            seen = look(self.queue, list(self.open))
            new = [task for task in list(self.open.values()) if self._is_left(task, seen)]
            if new and not self.signals:
                self.queue.submit(new, self.places, self._note)

    def _is_left(self, task: Task, seen: Mapping[str, Place]) -> bool:
        """True for a task that is to be submitted; the place or the end of any other is noted.

        A task that is in the queue, or that another process or cluster has, is left where it is, so
        that the same command, typed again, submits nothing twice.
        """
        run = Run(task.folder.absolute())
        status = run.status()
        place = place_of(status, self.queue, seen)
        state = status["state"]
        failed = [folder for folder in task.after if self.codes.get(folder)]
        if failed:
            cause = f"it builds on {failed[0]}, which has failed"
            self._end(task, self.codes[failed[0]], "not begun", cause)
            return False
        if place and state != "finished":
            self.places[task.folder] = place
            if self.queue.wait and place.begun and task.folder not in self.began:
                self.began[task.folder] = time.monotonic()
                self.show.started(task)
            return False
        tickets = status.get("queued")
        is_elsewhere = state == "queued" and tickets and self.name not in tickets
        if state != "finished" and (held(run) or is_elsewhere):
            return False  # another process has it, or the queue of another cluster
        if task.folder in self.places:
            self._tell_end(task, status)
            return False
        return self._is_to_be_submitted(task, str(state), str(status.get("cause")))

    def _tell_end(self, task: Task, status: Mapping[str, Any]) -> None:
        """Note the end of a task that was in the queue and is there no more, by its status."""
        state = str(status["state"])
        cause = status.get("cause")
        now = time.monotonic()
        if state == "finished":
            self._end(task, 0, state, str(cause or ""), now)
            return
        code = code_of(signal.SIGTERM)
        if state == "failed":
            code = error_of(status).code
        else:
            state = "interrupted"
        ticket = self.places[task.folder].ticket
        silent = f"{ticket} is no longer in the queue of the cluster"
        self._end(task, code, state, str(cause or silent), now)

    def _is_to_be_submitted(self, task: Task, state: str, cause: str) -> bool:
        """True for a task in no queue, unless it is finished or its folder is damaged."""
        composed = task.composed
        try:
            run = open_run(composed.cfg, composed.overrides, composed.command, composed.choices)
            has_ended = is_finished(run)
        except FolderError as error:
            self._end(task, error.code, "failed", str(error))
            return False
        if has_ended:
            self._end(task, 0, "finished", "already")
            return False
        if state in ("queued", "running"):
            print(f"gone      {run}: its job is no longer in the queue; it is submitted again")
        elif state == "failed":
            print(f"failed    {run}: {one_line(cause, heading=False)}; it is submitted again")
        return True

    def _end(self, task: Task, code: int, state: str, cause: str, now: float | None = None) -> None:
        """Note the end of a task; ``now`` is given where it was in the queue."""
        del self.open[task.folder]
        self.codes[task.folder] = code
        if code:
            set_gone(Run(task.folder.absolute()), cause)
        seconds = None
        if now is not None:
            seconds = now - self.began.get(task.folder, now)
        self.show.ended(task, state, cause, seconds)

    def _note(self, task: Task, ticket: str) -> None:
        """Record the ticket of a task, empty where it is not submitted after all."""
        run = Run(task.folder.absolute())
        before = self.before.setdefault(task.folder, run.status())
        if not ticket:
            del self.before[task.folder], self.places[task.folder]
            kept = {name: before.get(name) for name in ("cause", "queued")}
            if "error" in before:
                kept["error"] = before["error"]
            run.set_status(before["state"], **kept)
            return
        with contextlib.suppress(FolderError), locked(run):
            # Where another ticket was noted before, the run may have begun by now.
            if task.folder not in self.places or run.status()["state"] == "queued":
                run.set_status("queued", cause=None, queued={self.name: ticket})
        self.places[task.folder] = Place(ticket, "")


# --- The queue that a configuration names ---------------------------------------------------------


def queue_of(runs: Sequence[Composed], plugins: Sequence[str] = ()) -> ClusterQueue | None:
    """The queue of a cluster that all runs go to, None where their launcher has none.

    Raises ConfigError where it is only one of several launchers, and for keys of the pool that it
    does not take.
    """
    launchers = [run.experiment.launcher for run in runs]
    queued = [launcher for launcher in launchers if launcher.is_queue]
    if not queued:
        return None
    targets = {launcher.target for launcher in launchers}
    if plugins or len(targets) > 1:
        beside = plugins[0] if plugins else "another launcher"
        raise ConfigError(
            Fault(
                where="launcher",
                found=f"the queue of a cluster, together with {beside}",
                expected="one launcher that starts all of the runs",
                fix="=local, or the same queue for each run",
            )
        )
    keys_of_a_pool = set(key_names(LauncherPart))
    not_taken: set[str] = set()
    for launcher in queued:
        typed_keys = launcher.node.keys() & keys_of_a_pool
        not_taken |= typed_keys - asked_for(launcher.target)
    ConfigError.refuse(map(_key_of_this_machine, sorted(not_taken)))
    # Each of them checks its keys.
    queues: list[ClusterQueue] = [build(launcher.node) for launcher in queued]
    return queues[0]


def _key_of_this_machine(key: str) -> Fault:
    """The fault of a key of ``launcher=local`` that was typed for a cluster."""
    return Fault(
        where=f"launcher.{key}",
        found="a setting for runs on this machine",
        expected="keys of the cluster (python -m runner options launcher names its file)",
        fix=f"leave launcher.{key} out",
    )
