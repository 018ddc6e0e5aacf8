"""Tasks -> processes: each run in one of its own, several at a time.

The heavy libraries are imported once, by ``warming``, and every process inherits them. A process
that ends in whatever way, or hangs, is a failed run with its cause; the others go on. When this one
dies, its children save their step and end.
"""

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import EnvironmentFault, FolderError, RunnerError
from runner.io.terminal import HidingLog
from runner.launch import processes, signals
from runner.launch.by_launcher import launch
from runner.launch.plan import Task
from runner.launch.pool_settings import Settings, confine
from runner.launch.progress import LiveProgress, Stages
from runner.launch.warming import warm_up
from runner.run import Run, held, locked, open_run
from runner.run.completion import is_finished
from runner.schema.literal import number
from runner.tracker.variable import set_variables

POLL = 0.05  # seconds between two looks at the children
POLL_ELSEWHERE = 0.5  # seconds between two looks at runs that another process holds


@dataclass
class Child:
    """A process that trains a task."""

    task: Task
    slot: int  # which of the runs at a time it is
    log: HidingLog | None
    deadline: float
    began: float = field(default_factory=time.monotonic)
    timed_out: bool = False


class Pool:
    """Trains tasks until each is finished, has failed, or waits in vain for one that has."""

    def __init__(self, tasks: Sequence[Task], settings: Settings, show: Stages | LiveProgress):
        self.settings = settings
        self.show = show
        self.waiting = list(tasks)
        # The tasks that another process holds, and when to look at them again.
        self.elsewhere: dict[Path, float] = {}
        self.live: dict[int, Child] = {}
        self.codes: dict[Path, int] = {}
        self.signals: list[int] = []

    def run(self) -> tuple[dict[Path, int], list[int]]:
        """The exit code of each task by its folder, and the signals that came.

        A task that a signal kept from starting has no code.
        """
        with signals.handle_signals(self._hand_on):
            try:
                while self.live or (self.waiting and not self.signals):
                    if not self.signals:
                        self._start()
                    self._reap()
                    self._end_late_ones()
                    now = time.monotonic()
                    live = [(child.task, now - child.began) for child in self.live.values()]
                    self.show.tick(live, len(self.waiting))
                    time.sleep(POLL if self.live or self.waiting else 0)
            finally:
                self._let_end()
                for pid in self.live:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                self.show.close()
        return self.codes, self.signals

    def _hand_on(self, number: int, frame: object) -> None:
        """Hand a signal on to the children, which save their step; kill them at the second."""
        self.signals.append(number)
        if number == signal.SIGHUP:
            signals.detach_terminal()
        for pid in list(self.live):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number if len(self.signals) == 1 else signal.SIGKILL)

    def _start(self) -> None:
        """Start tasks while there is room, and end those that build on one that has failed."""
        if len(self.live) >= self.settings.jobs:  # there may be thousands of tasks to look through
            return
        for task in list(self.waiting):
            failed = [folder for folder in task.after if self.codes.get(folder)]
            if failed:
                self.waiting.remove(task)
                cause = f"it builds on {failed[0]}, which has failed"
                self._end(task, self.codes[failed[0]], "not begun", cause)
            elif all(folder in self.codes for folder in task.after):
                if len(self.live) < self.settings.jobs:
                    self._open(task)

    def _open(self, task: Task) -> None:
        """Start a task, unless it is finished already or another process has it."""
        if self.elsewhere.get(task.folder, 0) > time.monotonic():
            return
        composed = task.composed
        try:
            run = open_run(composed.cfg, composed.overrides, composed.command, composed.choices)
            is_held = held(run)  # before its state is read: who holds it may end in between
            has_ended = is_finished(run)
        except FolderError as error:  # such as a torn file, or rows that have changed since
            self.waiting.remove(task)
            self._end(task, error.code, "failed", str(error))
            return
        status = run.status()
        was_elsewhere = task.folder in self.elsewhere
        if is_held and not has_ended:
            self.elsewhere[task.folder] = time.monotonic() + POLL_ELSEWHERE
            return
        self.waiting.remove(task)
        if has_ended:
            self._end(task, 0, "finished", "elsewhere" if was_elsewhere else "already")
        elif status["state"] == "failed" and was_elsewhere:
            self._end(task, 1, "failed", str(status["cause"]))
        else:
            self._fork(task, run)

    def _fork(self, task: Task, run: Run) -> None:
        """Start the process of a task.

        Not by multiprocessing's forkserver: a sweep of 6 tiny runs, 2 at a time, takes 16.5 s of
        CPU like this, and 19.4 s with a forkserver that has preloaded the same modules (medians of
        3), because Python starts a second time. Nor could the number of a process be kept until
        all that it has started is killed.
        """
        processes.prepare_environment()
        # Before trainers bring their trackers along, some of which read where to write as they are
        # imported.
        experiment = task.composed.experiment
        set_variables(experiment.tracker, task.folder.absolute(), str(experiment.name))
        warm_up([task.composed])
        used_slots = {child.slot for child in self.live.values()}
        slot = min(set(range(self.settings.jobs)) - used_slots)
        self.show.started(task)
        log = None if self.settings.attached else HidingLog.open(run.log)
        pid = processes.fork(self._process_of(run, slot, log))
        if log:
            log.close()
        deadline = time.monotonic() + (self.settings.timeout_seconds or math.inf)
        self.live[pid] = Child(task, slot, log, deadline)

    def _process_of(self, run: Run, slot: int, log: HidingLog | None) -> Callable[[], int]:
        """The function that the process of a run calls."""
        # A driver of GPUs that an import has woken works in no process forked from here, but in a
        # Python of its own.
        torch = sys.modules.get("torch")
        words: list[str] = []
        if torch and torch.cuda.is_initialized():
            words = [
                *processes.python_words("runner.launch"),
                str(run.folder),
                "--trust",
                "--launch",
            ]
            if self.settings.debug:
                words.append("--debug")

        def train() -> int:
            os.setpgid(0, 0)
            if log:
                log.take_output()
            confine(slot, self.settings, run.experiment)
            if words:
                os.execv(words[0], words)
            return launch(run, debug=self.settings.debug)

        return train

    def _reap(self) -> None:
        """Judge each child that has ended."""
        for pid, child in list(self.live.items()):
            status = end_group(pid)
            if status is not None:
                del self.live[pid]
                if child.log:
                    child.log.wait()
                self._judge(child, os.waitstatus_to_exitcode(status))

    def _judge(self, child: Child, ended: int) -> None:
        """End the task of a child that has ended with this code, or have it wait again."""
        task = child.task
        run = Run(task.folder.absolute())
        status = run.status()
        state = str(status["state"])
        seconds = time.monotonic() - child.began
        if state == "finished":
            self._end(task, 0, "finished", str(status.get("cause") or ""), seconds)
            return
        code = EnvironmentFault.code if ended < 0 else ended or RunnerError.code
        # Another process was quicker; or its launcher says so, and without one that holds the
        # folder only once.
        is_taken = held(run) or task.folder not in self.elsewhere
        if code == FolderError.code and state != "failed" and is_taken:
            self.waiting.append(task)
            self.elsewhere[task.folder] = 0.0
            return
        cause = str(status["cause"])
        if child.timed_out or state in ("created", "running"):  # it could not record its end itself
            state = "failed"
            cause = f"the process {processes.describe_exit(ended)}"
            if child.timed_out:
                limit = number(self.settings.timeout_seconds)
                cause = f"no end after {limit} s (launcher.timeout_seconds)"
            elif self.signals:
                state = "interrupted"
            # Unless another process has it by now.
            with contextlib.suppress(FolderError), locked(run):
                run.set_status(state, cause=cause)
        self._end(task, code, state, cause, seconds)

    def _end(
        self, task: Task, code: int, state: str, cause: str = "", seconds: float | None = None
    ) -> None:
        """Note how a run has ended, for those that build on it and for people."""
        self.codes[task.folder] = code
        self.show.ended(task, state, cause, seconds)

    def _end_late_ones(self) -> None:
        """Ask children whose time is over to end, and kill them if they do not."""
        now = time.monotonic()
        for pid, child in self.live.items():
            if now >= child.deadline:
                os.kill(pid, signal.SIGKILL if child.timed_out else signal.SIGTERM)
                child.timed_out = True
                child.deadline = now + processes.patience_with(
                    child.task.composed.experiment.launcher
                )

    def _let_end(self) -> None:
        """Have what still trains save its step, when somebody else's handler ends this process."""
        launchers = [child.task.composed.experiment.launcher for child in self.live.values()]
        deadline = time.monotonic() + max(map(processes.patience_with, launchers), default=0)
        for pid in self.live:
            os.kill(pid, signal.SIGUSR2)
        while self.live and time.monotonic() < deadline:
            time.sleep(POLL)
            self._reap()


def end_group(pid: int) -> int | None:
    """End what a child that has ended left running, and return its status; None while it runs."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return None
        _kill_group(pid)
        return status
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    # Before its number is given back, and may be that of somebody else.
    _kill_group(pid)
    return os.waitpid(pid, 0)[1]


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
