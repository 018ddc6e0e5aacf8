"""The machine that starts a run: its GPUs, its processes, and the places that must take files."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.config.machines import find_machine_faults, processes_of, rank, world_size
from runner.config.resolution import NUM_PROCESSES, Composed
from runner.config.sharding import (
    NOT_RESUMED,
    find_gpu_faults,
    find_lone_faults,
    has_devices,
    split_layers,
)
from runner.errors import Fault
from runner.io.files import display_path, hub_home
from runner.run.seal import sealed_checkpoints

HERE = ("local", "accelerate")  # launchers that train on this machine


# --- Devices and processes ------------------------------------------------------------------------
def find_device_faults(runs: Iterable[Composed], elsewhere: bool) -> Iterator[Fault]:
    """A fault for each setting that needs a GPU, or several processes, that a run does not have.

    GPUs may be ``elsewhere``, with a launcher that starts the runs on other machines.
    """
    is_without_gpu = not elsewhere and not has_devices()
    for composed in runs:
        yield from _find_device_faults(composed, is_without_gpu)


def _find_device_faults(composed: Composed, is_without_gpu: bool) -> Iterator[Fault]:
    """The same of one run; ``is_without_gpu`` says it of this machine, if it trains on this one."""
    trainer = composed.cfg["trainer"]
    args = trainer["args"]
    is_here = composed.choices.get("launcher", "local") in HERE
    lacking: list[Fault] = []
    if args.get("use_cpu") or (is_here and is_without_gpu):
        lacking += find_gpu_faults(args, composed.typed)
        if trainer.get("needs_gpu"):
            lacking.append(
                Fault(
                    where="trainer",
                    found="it needs a GPU",
                    expected="a CUDA GPU",
                    fix="a machine that has one",
                )
            )
    yield from lacking or find_lone_faults(args, processes_of(composed.cfg))


def find_split_faults(composed: Composed, folder: Path) -> Iterator[Fault]:
    """The fault of a run with split layers that would have to continue from its own checkpoint."""
    split = split_layers(composed.cfg["trainer"]["args"])
    sealed = sealed_checkpoints(folder / "checkpoints") if split else []
    if sealed:
        checkpoint = display_path(sealed[-1])
        yield Fault(
            where=f"trainer.args.parallelism_config.{split[0]}",
            found=f"it would continue from {checkpoint}, but it {NOT_RESUMED}",
            expected="a run from its first step",
            fix="name=<another name>",
        )


def find_other_worlds(composed: Composed) -> Iterator[Fault]:
    """The faults of a wrong number of processes, and of machines that would not find each other."""
    started = world_size()
    processes = processes_of(composed.cfg)
    rank()  # raises where it is none, before a folder is made
    if started > 1 and (processes != started or NUM_PROCESSES in composed.typed):
        word = f"launcher.num_machines={composed.machines}"
        if composed.machines == 1:
            word = f"{NUM_PROCESSES}={processes}"
        yield Fault(
            where="launcher.num_processes",
            found=f"{processes}, in one of {started} processes that torchrun or a similar "
            "launcher started",
            expected="one program that starts the processes",
            fix=f"python -m runner <the same words>, or the same line without {word}",
        )
    # The launcher that accelerate has for a CPU starts one process, whatever --num_processes says.
    names_host = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    if names_host and "WORLD_SIZE" not in os.environ:
        count = max(2, processes)
        yield Fault(
            where="accelerate launch",
            found="one process, though its --num_processes is more than 1",
            expected="one program that starts the processes",
            fix=f"python -m runner <the same words> launcher.num_processes={count}",
        )
    if composed.choices.get("launcher") == "accelerate":
        yield from find_machine_faults(composed.cfg["launcher"], composed.machines)


def find_unnamed_host() -> Iterator[Fault]:
    """The fault of one of several processes that does not know the host of the first one."""
    if world_size() > 1 and "MASTER_ADDR" not in os.environ:
        yield Fault(
            where="MASTER_ADDR",
            found=f"not set, but WORLD_SIZE is {world_size()}",
            expected="the host of the first process, as torchrun sets it",
            fix="unset WORLD_SIZE RANK LOCAL_RANK",
        )


# --- Places that must take files ------------------------------------------------------------------
def find_cache_faults() -> Iterator[Fault]:
    """The fault of a folder in which converted rows, as every run has them, could not be kept."""
    chosen = os.environ.get("HF_DATASETS_CACHE")
    variable = "HF_DATASETS_CACHE" if chosen else "HF_HOME"
    folder = Path(chosen or hub_home() / "datasets").expanduser()
    closed = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _takes_files(folder):
            closed = "it may not be written"
    except OSError as error:
        closed = str(error)
    if closed:
        yield Fault(
            where=variable,
            found=f"{folder}: {closed}",
            expected="a folder for rows and models",
            fix=f"export {variable}=<a folder that you may write>",
        )


def find_root_faults(roots: Iterable[object]) -> Iterator[Fault]:
    """A fault for each folder of runs that could not be made."""
    folders = [Path(str(root)).absolute() for root in roots]
    for folder in dict.fromkeys(folders):
        nearest = folder
        while not nearest.exists():
            nearest = nearest.parent
        if not nearest.is_dir() or not _takes_files(nearest):
            kind = "not writable for you" if nearest.is_dir() else "a file"
            yield Fault(
                where="output_root",
                found=f"{display_path(nearest)} is {kind}",
                expected="a folder",
                fix="=<a folder that you may write>",
            )


def _takes_files(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
