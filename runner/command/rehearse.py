"""python -m runner rehearse [-m] [key=value ...] [memory=80] [speed=300]

Plays a run through in seconds before it takes days: the same configuration, stages and sweeps too, with small random
clones of its models and a few short rows. It takes two steps, saves, goes on in a second process from what was saved,
evaluates and exports. Of a sweep, runs that differ in numbers only are played once. Then it tells what the real run
will need: memory of each kind, time, and disk. It takes exactly what a training takes, and these words of its own:

    memory=80      GB of the device that it is meant for, in place of what is free here
    speed=300      TFLOP/s that this device reaches, in place of what this machine was measured at

Of a model only its config and tokenizer are read, of a dataset of the hub the first rows. Nothing is tracked, pushed or
left in outputs/. Where a part fails, the exit code is that of the error, and the folder with its log is kept.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import config
from runner.errors import ConfigError, Fault, Interrupted
from runner.estimate.device import Device, this_device
from runner.estimate.group import group_by_structure, model_of
from runner.estimate.memory import Precision, Training, source_of
from runner.estimate.smoke import SmokeResult, SmokeRunner, measure_small
from runner.estimate.steps import Rows
from runner.estimate.table import Forecast, to_lines
from runner.io.terminal import quiet
from runner.launch import axis, stages
from runner.launch.worker import Stop, prepare_environment
from runner.model.clone import Source
from runner.run import Run

OWN = ("memory", "speed")
MAX_WHOLE_FORECASTS = 3  # of which all lines are printed


def main(line: Any) -> int:
    """Play through what the command line means, tell what the real thing will need, and return the exit code."""
    target, words = read_target(line.overrides)
    if line.runs:
        expected = "overrides as for a training"
        raise ConfigError(Fault("command line", " ".join(line.runs), expected, "python -m runner rehearse trainer=dpo"))
    jobs = jobs_of(words, line.folders, line.multirun)
    prepare_environment()
    chains, cases = group_by_structure(jobs)
    if len(jobs) > 1:
        others = "the others differ in numbers only"
        print(f"rehearsal {len(jobs)} jobs, {len(cases)} of them to play: {others}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="rehearsal-"))
    code = 0
    try:
        with quiet():
            with one_thread():
                results, code = SmokeRunner(place, line.debug).play(chains)
            print_forecasts([] if code else results, target, place / "measured")
        causes = [str(cause) for each in results if each.failed and (cause := each.run.status().get("cause"))]
        print("\n".join(causes), end="\n" if causes else "", file=sys.stderr)
    finally:
        if code:
            print(f"kept      {place}", flush=True)
        else:
            shutil.rmtree(place, ignore_errors=True)
    return code


def jobs_of(words: Sequence[str], folders: Sequence[Path], multirun: bool) -> list[list[config.Composed]]:
    """The runs of each job; of a search only the first, because it chooses the others by what comes out."""
    if not multirun and axis.chosen_sweep(words) is None:
        return [stages.compose_runs(words, folders)]
    axes, plugin = axis.read_sweep(words, folders)
    whole = config.override.latest([*axes, *config.override.latest(words)])
    return [stages.compose_runs(axis.first_of(whole), folders)] if plugin else stages.compose_jobs(whole, folders)


def read_target(overrides: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """The memory and speed that are typed for a device, and the words of a training; raises ConfigError."""
    own = dict(word.split("=", 1) for word in overrides if word.partition("=")[0] in OWN)
    target, faults = {}, []
    for name, text in own.items():
        try:
            target[name] = float(text)
        except ValueError:
            target[name] = 0.0
        if target[name] <= 0:
            unit = "GB of memory" if name == "memory" else "TFLOP/s"
            faults.append(Fault(name, text, f"a number of {unit}", f"{name}=80"))
    if faults:
        raise ConfigError(faults)
    return target, [word for word in overrides if word.partition("=")[0] not in OWN]


def print_forecasts(results: Sequence[SmokeResult], target: Mapping[str, float], place: Path) -> None:
    """Print what each real run will need, as far as its rows could be read."""
    import torch

    gpus = (True,) if torch.cuda.is_available() else (False, True)
    origins: dict[str, Source] = {}
    measured = []
    with one_thread():
        for number, result in enumerate(results):
            cfg = result.case.composed.cfg
            source = source_of(cfg, origins)
            if result.rows:
                precisions = [Precision.of(cfg["trainer"]["args"], gpu) for gpu in gpus]
                asked = [each.autocast for each in precisions] if number < MAX_WHOLE_FORECASTS else []
                small = {autocast: measure_small(result.small.cfg, source, autocast, place) for autocast in {*asked}}
                measured.append((result, dict(origins), [small.get(each.autocast, ([], "")) for each in precisions]))
            origins |= dict.fromkeys(map(model_of, result.case.runs), source)
    # Only now: with threads in this process, which measuring its speed begins, no other could be forked from it.
    devices = devices_for(target) if measured else []
    for number, (result, known, small) in enumerate(measured):
        cfg, rows = result.case.composed.cfg, rows_of(result)
        forecasts = [
            Forecast(Training(cfg, rows, seen, gpu=device.gpu, origins=known), device, why)
            for device, (seen, why) in zip(devices, small, strict=True)
        ]
        lines = to_lines(forecasts)
        shown = lines if number < MAX_WHOLE_FORECASTS else lines[:1]
        print(f"forecast  {result.name}", *shown, sep="\n", flush=True)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside: a process forked from one that has several of OpenMP would wait for ever."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def devices_for(target: Mapping[str, float]) -> list[Device]:
    """This machine, and where it has no GPU, one; with the memory and speed that were typed."""
    here = this_device()
    meant = here if here.gpu else Device("a GPU", True)
    if "memory" in target:
        meant = replace(meant, memory=int(target["memory"] * 1e9))
    if "speed" in target:
        meant = replace(meant, speed=target["speed"] * 1e12, how="as typed")
    return [meant] if here.gpu else [here, meant]


def rows_of(result: SmokeResult) -> Rows:
    """The rows that were seen, and how many of them the trainer gets out of all that there are."""
    seen = result.rows
    share = seen["rows"] / max(1, seen["read"])
    return Rows(seen["lengths"], seen["limit"], None if result.small.rows is None else result.small.rows * share)


def rehearse(run: Run, stop: Any) -> None:
    """Train a run to its first save, and leave it interrupted there; what the worker calls."""
    from runner.command.train import train

    asked = Stop()
    asked.number = signal.SIGTERM  # as soon as it can save a step
    try:
        train(run, asked)
    except Interrupted:
        run.set_status("interrupted", cause=None)
