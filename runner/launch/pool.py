"""Tasks -> processes: each run in one of its own, several at a time, and what becomes of one touches no other.

The heavy libraries are imported once, here, and every process inherits them. A process that ends in whatever way, or
hangs, is a failed run with its cause; the others go on. When this one dies, its children save their step and end.
"""

import contextlib
import functools
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from runner import config
from runner.config import Composed
from runner.config.build import locate
from runner.config.machines import processes_here
from runner.errors import ConfigError, EnvironmentFault, FolderError, RunnerError, fault
from runner.io.files import shipped
from runner.io.temporary import uncollected
from runner.io.terminal import HidingLog, mute_libraries
from runner.launch import worker
from runner.launch.plan import LiveProgress, Stages, Task
from runner.launch.worker import launch
from runner.report.plot import run_pictures
from runner.run import Run, held, locked, open_run
from runner.schema.text import Node, number
from runner.tracker.variable import set_variables

POLL = 0.05  # seconds between two looks at the children
POLL_ELSEWHERE = 0.5  # and at runs that another process holds


@dataclass(frozen=True)
class Settings:
    """The processes, their devices and their time; the keys of ``launcher`` that are not the launcher's own."""

    jobs: int = 1
    processes: int = 1  # of a run, at most, on this machine
    timeout_seconds: float | None = None
    devices: Sequence[str] = ()
    attached: bool = False
    debug: bool = False


@dataclass
class Child:
    """A process that trains a task, the slot it holds, since when, and whether its time was over."""

    task: Task
    slot: int
    log: HidingLog | None
    deadline: float
    began: float = field(default_factory=time.monotonic)
    timed_out: bool = False


class Pool:
    """Trains tasks until each is finished, has failed, or waits in vain for one that has."""

    def __init__(self, tasks: Sequence[Task], settings: Settings, show: Stages | LiveProgress):
        self.settings, self.show = settings, show
        self.waiting = list(tasks)
        self.elsewhere: dict[Path, float] = {}  # held by another process, and when to look again
        self.live: dict[int, Child] = {}
        self.codes: dict[Path, int] = {}
        self.signals: list[int] = []

    def run(self) -> tuple[dict[Path, int], list[int]]:
        """The exit code of each task by its folder, but of those that a signal kept from starting; and the signals."""
        with worker.handle_signals(self._hand_on):
            try:
                while self.live or (self.waiting and not self.signals):
                    if not self.signals:
                        self._start()
                    self._reap()
                    self._end_late_ones()
                    now = time.monotonic()
                    self.show.tick([(child.task, now - child.began) for child in self.live.values()], len(self.waiting))
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
            worker.detach_terminal()
        for pid in list(self.live):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number if len(self.signals) == 1 else signal.SIGKILL)

    def _start(self) -> None:
        for task in list(self.waiting) if len(self.live) < self.settings.jobs else ():  # there may be thousands
            if failed := [folder for folder in task.after if self.codes.get(folder, 0)]:
                self.waiting.remove(task)
                self._end(task, self.codes[failed[0]], "not begun", f"it builds on {failed[0]}, which has failed")
            elif all(folder in self.codes for folder in task.after) and len(self.live) < self.settings.jobs:
                self._open(task)

    def _open(self, task: Task) -> None:
        if self.elsewhere.get(task.folder, 0) > time.monotonic():
            return
        try:
            run = open_run(task.composed.cfg, task.composed.overrides, task.composed.command, task.composed.choices)
            is_held = held(run)  # before its state is read: who holds it may end in between
            done = worker.is_finished(run)
        except FolderError as error:  # such as a file that is garbage, or rows that have changed since
            self.waiting.remove(task)
            return self._end(task, error.code, "failed", str(error))
        status, was_elsewhere = run.status(), task.folder in self.elsewhere
        if is_held and not done:
            self.elsewhere[task.folder] = time.monotonic() + POLL_ELSEWHERE
            return
        self.waiting.remove(task)
        if done:
            self._end(task, 0, "finished", "elsewhere" if was_elsewhere else "already")
        elif status["state"] == "failed" and was_elsewhere:
            self._end(task, 1, "failed", str(status["cause"]))
        else:
            self._fork(task, run)

    def _fork(self, task: Task, run: Run) -> None:
        worker.prepare_environment()
        # Before trainers bring their trackers along, some of which read where to write as they are imported.
        set_variables(task.composed.cfg["tracker"], task.folder.absolute(), str(task.composed.cfg["name"]))
        warm_up([task.composed])
        taken = {child.slot for child in self.live.values()}
        slot = next(number for number in range(self.settings.jobs) if number not in taken)
        self.show.started(task)
        # Not by multiprocessing's forkserver: a sweep of 6 tiny runs, 2 at a time, takes 16.5 s of CPU like this, and
        # 19.4 s with a forkserver that has preloaded the same modules (medians of 3): Python starts a second time.
        # Nor could a number be kept until all of a run is killed.
        log = None if self.settings.attached else HidingLog.open(run.log)
        # A driver of GPUs that an import has woken works in no process forked from here, but in a Python of its own.
        torch = sys.modules.get("torch")
        afresh = worker.python_words("runner.launch") if torch and torch.cuda.is_initialized() else []

        def train() -> int:
            os.setpgid(0, 0)
            if log:
                log.take_output()
            confine(slot, self.settings, run.cfg)
            if afresh:
                debug = ["--debug"] if self.settings.debug else []
                os.execv(afresh[0], [*afresh, str(run.folder), "--trust", "--launch", *debug])
            return launch(run, debug=self.settings.debug)

        pid = worker.fork(train)
        if log:
            log.close()
        self.live[pid] = Child(task, slot, log, time.monotonic() + (self.settings.timeout_seconds or math.inf))

    def _reap(self) -> None:
        for pid, child in list(self.live.items()):
            if (status := end_group(pid)) is not None:
                del self.live[pid]
                if child.log:
                    child.log.wait()
                self._judge(child, os.waitstatus_to_exitcode(status))

    def _judge(self, child: Child, ended: int) -> None:
        run, task = Run(child.task.folder.absolute()), child.task
        status, code = run.status(), EnvironmentFault.code if ended < 0 else ended or RunnerError.code
        seconds = time.monotonic() - child.began
        if status["state"] == "finished":
            return self._end(task, 0, "finished", str(status.get("cause") or ""), seconds)
        # Another process was quicker; or its launcher says so, and without one that holds the folder only once.
        taken = held(run) or task.folder not in self.elsewhere
        if code == FolderError.code and status["state"] != "failed" and taken:
            self.waiting.append(task)
            self.elsewhere[task.folder] = 0.0
            return None
        state, cause = status["state"], str(status["cause"])
        if child.timed_out or state in ("created", "running"):  # it could not record its end itself
            state = "interrupted" if self.signals and not child.timed_out else "failed"
            cause = f"the process {worker.describe_exit(ended)}"
            if child.timed_out:
                cause = f"no end after {number(self.settings.timeout_seconds)} s (launcher.timeout_seconds)"
            with contextlib.suppress(FolderError), locked(run):  # unless another process has it by now
                run.set_status(state, cause=cause)
        return self._end(task, code, state, cause, seconds)

    def _end(self, task: Task, code: int, state: str, cause: str = "", seconds: float | None = None) -> None:
        self.codes[task.folder] = code
        self.show.ended(task, state, cause, seconds)

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        for pid, child in self.live.items():
            if now >= child.deadline:
                os.kill(pid, signal.SIGKILL if child.timed_out else signal.SIGTERM)
                child.timed_out = True
                child.deadline = now + worker.patience_with(child.task.composed.cfg["launcher"])

    def _let_end(self) -> None:
        """Have what still trains save its step, where the handler of somebody else has this process leave."""
        launchers = [child.task.composed.cfg["launcher"] for child in self.live.values()]
        deadline = time.monotonic() + max(map(worker.patience_with, launchers), default=0)
        for pid in self.live:
            os.kill(pid, signal.SIGUSR2)
        while self.live and time.monotonic() < deadline:
            time.sleep(POLL)
            self._reap()


def settings_of(launcher: Node, runs: Sequence[Composed] = (), attached: bool = False, debug: bool = False) -> Settings:
    """The pool's part of a launcher's keys; devices are those of this machine where none are named.

    Raises ConfigError where the processes of these ``runs`` are more than the devices, one for each. A queue has none.
    """
    if "wait" in launcher:
        return Settings(debug=debug)
    jobs, processes = launcher.get("jobs") or 1, max((processes_here(run.cfg) for run in runs), default=1)
    named = worker.visible_devices() if launcher.get("devices") is None else launcher["devices"]
    devices = [] if config.world_size() > 1 else list(map(str, named))  # who started several gave each its own
    if devices and jobs * processes > len(devices):
        key, fix = "jobs", f"launcher.jobs={len(devices) // processes}"
        if processes > len(devices):
            key, fix = "num_processes", f"launcher.num_processes={len(devices)} launcher.jobs=1"
        if processes == 1:
            fix += f", or launcher.devices=[{','.join((devices * jobs)[:jobs])}] to share them"
        raise ConfigError(fault("launch.few_devices", key=key, jobs=jobs, each=processes, count=len(devices), fix=fix))
    return Settings(jobs, processes, launcher.get("timeout_seconds"), devices, attached, debug)


def idle_devices(settings: Settings, cfg: Mapping[str, Any]) -> str:
    """A line about devices that no process uses; empty where each has one."""
    count, used = len(settings.devices), settings.jobs * settings.processes
    if count <= used or cfg["model"].get("device_map"):
        return ""
    shown = ", ".join(f"cuda:{number}" for number in range(used))
    more = f"launcher.num_processes={count}" if settings.jobs == 1 else f"launcher.jobs={count // settings.processes}"
    return f"note      {count} GPUs here, {used} used ({shown}); {more} uses {'both' if count == 2 else 'all'}\n"


def warm_up(runs: Iterable[Composed]) -> None:
    """Import what runs need, so that each process forked from here inherits it: 4 s of CPU once and not for each."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # the driver must not wake before a fork
    with uncollected():
        _do_first_things()
        for target in {str(run.cfg["trainer"]["_target_"]) for run in runs}:
            if target.startswith(("trl.", "runner.")):  # a user's own module may hold a state, which no two runs share
                locate(target)
    gc.freeze()  # what is here stays: no child needs to look through it for garbage (0.4 s each)


@functools.cache
def _do_first_things() -> None:
    """Have the libraries do what they do once: find fonts, and load a model, here without weights or threads."""
    import_module("runner.training.components")
    mute_libraries()
    locate("transformers.AutoModelForCausalLM").from_pretrained(shipped("runner://model/tiny"), device_map="meta")
    next(run_pictures([{"step": 1, "loss": 1.0}])).figure.canvas.draw()


def end_group(pid: int) -> int | None:
    """End what a child that has ended left running, and return its status; None while it runs itself."""
    can_look = hasattr(os, "waitid")  # on macOS from Python 3.13 on
    if can_look and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    ended, status = (pid, 0) if can_look else os.waitpid(pid, os.WNOHANG)
    if not ended:
        return None
    # Before its number is given back, where we can look first, and may be that of somebody else.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1] if can_look else status


def count_cores() -> int:
    """The cores that this process may use, or those of the machine where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def confine(slot: int, settings: Settings, cfg: Mapping[str, Any]) -> None:
    """Give one of several runs its own devices and its share of the CPU."""
    first, last = slot * settings.processes, (slot + 1) * settings.processes
    devices = settings.devices[first:last] if settings.jobs > 1 else settings.devices
    worker.take_devices(cfg, devices, processes_here(cfg))
    if settings.jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        import torch

        threads = max(1, count_cores() // settings.jobs)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)
