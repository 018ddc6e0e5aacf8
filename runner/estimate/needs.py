"""The needs of the real runs, forecast from the smoke runs that stand for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from runner.config.experiment import Experiment
from runner.estimate.apart import one_thread
from runner.estimate.case import Case, model_of, read_lengths
from runner.estimate.forecast import Device, Forecast, format_forecasts, this_device
from runner.estimate.learning import forecast_learning
from runner.estimate.measure import measure_small
from runner.estimate.memory import MeasuredStep, Training
from runner.estimate.model_weights import source_of
from runner.estimate.reduce import linked
from runner.estimate.steps import Rows
from runner.io.terminal import quiet
from runner.training.first_rewards import sample_rewards

MAX_WHOLE = 3  # forecasts of which all lines are printed


@dataclass(frozen=True)
class MeasuredCase:
    """A case with the experiment that a forecast is made of, and its step on each device."""

    case: Case
    experiment: Experiment
    steps: Sequence[tuple[MeasuredStep | None, str]]  # or why there is none


@quiet()
def print_forecasts(cases: Sequence[Case], target: Mapping[str, float], folder: Path) -> None:
    """Print what each real run will need, as far as its rows could be read."""
    gpus = (True,) if torch.cuda.is_available() else (False, True)
    with one_thread():
        measured_cases = list(_measure_cases(cases, gpus, folder))
        learning = forecast_learning(cases, sample_rewards, folder)
    if not measured_cases:
        return
    # Only now: with the threads that it starts in this process, no other could be forked from it.
    here = this_device()
    typed: dict[str, Any] = {}
    if "memory" in target:
        typed["memory"] = int(target["memory"] * 1e9)
    if "tflops" in target:
        typed |= {"speed": target["tflops"] * 1e12, "how": "as typed"}
    devices = [here, Device("a GPU", True, **typed)]
    if here.gpu:
        devices = [replace(here, **typed)]
    for index, measured in enumerate(measured_cases):
        facts = read_lengths(measured.case.run)
        total: float | None = measured.case.small.rows
        if total is not None:
            # Of all rows the trainer gets the same share as of those that were seen.
            total *= facts["rows"] / max(1, facts["read"])
        rows = Rows(facts["lengths"], facts["limit"], total)
        forecasts = []
        for device, (step, why) in zip(devices, measured.steps, strict=True):
            training = Training(measured.experiment, rows, step, gpu=device.gpu)
            forecasts.append(Forecast(training, device, why))
        lines = format_forecasts(forecasts)
        if index >= MAX_WHOLE:
            lines = lines[:1]
        print(f"forecast  {measured.case.name}", *lines, sep="\n", flush=True)
    for learning_line in learning:
        print(learning_line, flush=True)


def _measure_cases(
    cases: Sequence[Case], gpus: Sequence[bool], folder: Path
) -> Iterator[MeasuredCase]:
    """Each case whose rows could be read, with its step measured if all its lines are printed."""
    origins: dict[str, str] = {}  # of models that stages have yet to train: those they begin with
    for index, case in enumerate(cases):
        experiment = Experiment.read(linked(case.composed.cfg, origins))
        if read_lengths(case.run):
            steps: list[tuple[MeasuredStep | None, str]] = [(None, "")] * len(gpus)
            if index < MAX_WHOLE:
                steps = [measure_small(case.small.cfg, gpu, folder) for gpu in gpus]
            yield MeasuredCase(case, experiment, steps)
        source = source_of(experiment)
        origin = source.path
        if not origin:  # of a model from nothing its config is all that there is
            origin = str(folder / f"origin{index}")
            source.config().save_pretrained(origin)
        for composed in case.runs.values():
            origins[model_of(composed)] = origin
