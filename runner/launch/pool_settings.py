"""The keys of a launcher that are the pool's: jobs at a time, devices, and the time of a run."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from runner.config.experiment import Experiment, LauncherPart, ModelPart
from runner.config.machines import world_size
from runner.config.resolution import Composed
from runner.errors import ConfigError, Fault
from runner.launch.processes import take_devices, visible_devices


@dataclass(frozen=True)
class Settings:
    """The processes of a pool, their devices and their time."""

    jobs: int = 1  # runs at a time
    processes: int = 1  # of a run, at most, on this machine
    timeout_seconds: float | None = None
    devices: Sequence[str] = ()
    attached: bool = False  # what a run prints goes to this terminal
    debug: bool = False


def settings_of(
    launcher: LauncherPart,
    runs: Sequence[Composed] = (),
    attached: bool = False,
    debug: bool = False,
) -> Settings:
    """The pool's part of a launcher's keys; that of a queue has none.

    Devices are those of this machine where none are named. Runs that are ``attached`` to this
    terminal train one after the other. Raises ConfigError where the processes
    of these ``runs`` are more than the devices, one for each.
    """
    if launcher.is_queue:
        return Settings(debug=debug)
    jobs = 1
    if launcher.jobs and not attached:
        jobs = launcher.jobs
    processes = max((run.experiment.launcher.num_processes for run in runs), default=1)
    devices: list[str] = []
    if world_size() == 1:  # else who started the processes gave each its own
        devices = visible_devices()
        if launcher.devices is not None:
            devices = [str(device) for device in launcher.devices]
    if devices and jobs * processes > len(devices):
        raise ConfigError(_too_few_devices(jobs, processes, devices))
    return Settings(jobs, processes, launcher.timeout_seconds, devices, attached, debug)


def _too_few_devices(jobs: int, processes: int, devices: Sequence[str]) -> Fault:
    """The fault of more processes than devices.

    The fix is fewer runs at a time, or fewer processes where one run alone has too many. Runs of
    one process may also share devices, each of which is then named several times.
    """
    count = len(devices)
    key = "jobs"
    fix = f"launcher.jobs={count // processes}"
    if processes > count:
        key = "num_processes"
        fix = f"launcher.num_processes={count} launcher.jobs=1"
    if processes == 1:
        shared = [devices[number % count] for number in range(jobs)]
        fix += f", or launcher.devices=[{','.join(shared)}] to share them"
    return Fault(
        where=f"launcher.{key}",
        found=f"{jobs} x {processes} processes (launcher.jobs x num_processes) for {count} devices",
        expected="a device for each process",
        fix=fix,
    )


def idle_devices(settings: Settings, model: ModelPart) -> str:
    """A line about devices that no process uses; empty where each has one."""
    count = len(settings.devices)
    used = settings.jobs * settings.processes
    if count <= used or model.is_spread:
        return ""
    shown = ", ".join(f"cuda:{number}" for number in range(used))
    words = f"launcher.num_processes={count}"
    if settings.jobs > 1:
        words = f"launcher.jobs={count // settings.processes}"
    many = "both" if count == 2 else "all"
    return f"note      {count} GPUs here, {used} used ({shown}); {words} uses {many}\n"


def confine(slot: int, settings: Settings, experiment: Experiment) -> None:
    """Give one of several runs its own devices and its share of the CPU."""
    devices = settings.devices
    if settings.jobs > 1:
        first = slot * settings.processes
        devices = devices[first : first + settings.processes]
    take_devices(experiment.model, devices, experiment.launcher.num_processes)
    if settings.jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        import torch

        threads = max(1, count_cores() // settings.jobs)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


def count_cores() -> int:
    """The cores that this process may use, or where the system does not tell, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
