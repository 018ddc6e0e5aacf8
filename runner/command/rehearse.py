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

import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import config, stage
from runner.errors import ConfigError, Fault, Interrupted
from runner.forecast.machine import Device, this_device
from runner.forecast.plan import Rows, source_of
from runner.forecast.structure import Source
from runner.forecast.table import find_forecast, to_lines
from runner.rehearsal.cast import cast, model_of
from runner.rehearsal.perform import Performance, Theatre, name_of
from runner.run import Run
from runner.sweep import axis
from runner.sweep.plan import compose_jobs
from runner.terminal import quiet
from runner.work import prepare_environment

OWN = ("memory", "speed")
MOST = 3  # forecasts with all their lines


def main(line: Any) -> int:
    """Play through what the command line means, tell what the real thing will need, and return the exit code."""
    target, words = read_target(line.overrides)
    if line.runs:
        expected = "overrides as for a training"
        raise ConfigError(Fault("command line", " ".join(line.runs), expected, "python -m runner rehearse trainer=dpo"))
    jobs = jobs_of(words, line.folders, line.multirun)
    prepare_environment()
    plays, acts = cast(jobs)
    if len(jobs) > 1:
        print(f"rehearsal {len(jobs)} jobs, {len(acts)} of them to play: the others differ in numbers only", flush=True)
    place = Path(tempfile.mkdtemp(prefix="rehearsal-"))
    code = 0
    try:
        with quiet():
            shown, code = Theatre(place, line.debug).play(plays)
            tell_forecasts([] if code else shown, target)
        causes = [one.outcome.cause for one in shown if one.outcome.failed and one.outcome.cause]
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
        return [stage.compose(words, folders)]
    axes, plugin = axis.read_sweep(words, folders)
    whole = config.latest([*axes, *config.latest(words)])
    return [stage.compose(axis.first_of(whole), folders)] if plugin else compose_jobs(whole, folders)


def read_target(overrides: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """What is said of the device that a run is meant for, and the words of a training; raises ConfigError."""
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


def tell_forecasts(shown: Sequence[Performance], target: Mapping[str, float]) -> None:
    """Print what each real run will need, as far as its rows could be read."""
    devices = devices_for(target)
    origins: dict[str, Source] = {}
    for place, one in enumerate(shown):
        cfg = one.act.composed.cfg
        if one.rows:
            founds = [find_forecast(cfg, rows_of(one), device, origins) for device in devices]
            lines = to_lines(founds)
            print(f"forecast  {name_of(one.act)}", *(lines if place < MOST else lines[:1]), sep="\n", flush=True)
        origins |= dict.fromkeys(map(model_of, one.act.runs), source_of(cfg, origins))


def devices_for(target: Mapping[str, float]) -> list[Device]:
    """This machine, and where it has no GPU, one; with the memory and speed that were typed."""
    here = this_device()
    meant = here if here.gpu else Device("a GPU", True)
    if "memory" in target:
        meant = replace(meant, memory=int(target["memory"] * 1e9))
    if "speed" in target:
        meant = replace(meant, speed=target["speed"] * 1e12, how="as typed")
    return [meant] if here.gpu else [here, meant]


def rows_of(one: Performance) -> Rows:
    """What was seen of the rows, and how many of them the trainer gets out of all that there are."""
    seen = one.rows
    share = seen["rows"] / max(1, seen["read"])
    total = None if one.small.rows is None else one.small.rows * share
    return Rows(seen["sequences"] or seen["lengths"], seen["trained"], seen["limit"], total)


class AtFirstStep:
    """Asks a training to stop as soon as it can save a step, as a signal would."""

    listening = False
    number = signal.SIGTERM

    def error(self) -> Interrupted:
        return Interrupted(Fault("rehearsal", "asked to stop after the first step"), self.number)


def rehearse(run: Run, stop: Any) -> None:
    """Train a run to its first save, and leave it interrupted there; what the worker calls."""
    from runner.command.train import train

    try:
        train(run, AtFirstStep())
    except Interrupted:
        run.set_status("interrupted", cause=None)
