"""Smoke runs: each case reads rows, trains and saves a step, goes on from it and is exported.

Jobs that differ in numbers only are one case: a learning rate or a seed changes what is learnt, and
not what is done; a batch size, a rank or a zero changes that too. Each part is a process of its
own, so that a resume is one.
"""

import copy
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyarrow import parquet

from runner.config.experiment import Experiment
from runner.config.menu import read_options
from runner.config.resolution import Composed
from runner.config.speed import choose_speed
from runner.errors import ConfigError, EnvironmentFault
from runner.estimate.forecast import Device, Forecast, format_forecasts, this_device
from runner.estimate.measure import measure_small, one_thread, run_apart
from runner.estimate.memory import MeasuredStep, Training
from runner.estimate.model_weights import source_of
from runner.estimate.reduce import Clones, Reduced, linked, reduce, rows_of
from runner.estimate.steps import Rows
from runner.io.files import read_json, write_json
from runner.io.terminal import quiet
from runner.launch import processes, signals, worker
from runner.launch.warming import warm_up
from runner.run import Run, open_run, write_config
from runner.run.disk import sized
from runner.run.key import folder_of, key_of, label_of, lasting
from runner.run.record import read_run
from runner.run.seal import sealed_checkpoints
from runner.schema.literal import number
from runner.schema.text import Config, scalars
from runner.training.export import export
from runner.training.inspection import inspect_training
from runner.training.inspection_faults import find_faults, summary_of
from runner.training.stand_in import first_rows_prepared

# Whole numbers that only say how long, how often, or which chance.
LENGTHS = re.compile(
    r"(^|\.)((data_)?seed|(max|save|eval|logging|warmup)_steps|num_train_epochs|total_episodes"
    r"|limit\.(train|eval))$"
)
PROCESSES = 3  # of a smoke run: it trains, resumes and scores, and exports
MAX_WHOLE = 3  # forecasts of which all lines are printed
# Files in the folder of a smoke run.
UNREDUCED = "unreduced"
ROWS = "rows.json"
UNEXPORTED = "unexported.json"


@dataclass
class Case:
    """One run that is tried, and the runs that it stands for."""

    composed: Composed
    before: "Case | None" = None  # of the stage before it
    runs: dict[str, Composed] = field(default_factory=dict)  # by their keys, with itself
    small: Reduced = field(init=False)  # what is played for it
    run: Run = field(init=False)  # whose folder that is in
    seconds: float = 0.0
    code: int | None = None  # until it has ended

    @property
    def name(self) -> str:
        """A case as a person knows it: the name of its runs, and its label."""
        name = str(self.composed.experiment.name)
        label = label_of(self.composed.overrides)
        return name if label == "default" else f"{name} {label}"


# --- Which runs are alike -------------------------------------------------------------------------


def group_by_structure(jobs: Sequence[Sequence[Composed]]) -> list[Case]:
    """The runs that differ in structure, in the order in which they are played.

    Stages follow those that they build on.
    """
    cases: dict[str, Case] = {}
    for runs in jobs:
        links: dict[str, str] = {}  # the structures of the stages so far, by their models
        case = None
        for composed in runs:
            structure = structure_of(composed.cfg, links)
            case = cases.setdefault(structure, Case(composed, case))
            case.runs.setdefault(key_of(composed.cfg), composed)
            links[model_of(composed)] = structure
    return list(cases.values())


def model_of(composed: Composed) -> str:
    """The folder in which a run will leave its model, as later stages name it."""
    return str(folder_of(composed.cfg, composed.overrides) / "model")


def structure_of(cfg: Config, links: Mapping[str, str]) -> str:
    """Ten hex digits that are equal where two runs do the same with other numbers."""
    structure = {}
    for path, value in scalars(lasting(cfg)):
        is_length = isinstance(value, int) and LENGTHS.search(path)
        if isinstance(value, float) or is_length:
            structure[path] = "a number" if value else 0
        elif isinstance(value, str):
            structure[path] = links.get(value, value)
        else:
            structure[path] = value
    return key_of(structure)


# --- How they are played --------------------------------------------------------------------------


def play(cases: Sequence[Case], folder: Path, debug: bool) -> int:
    """Play cases in order below a folder and print how each went; the first exit code that fails.

    A signal raises Interrupted.
    """
    warm_up(case.composed for case in cases)
    clones = Clones(folder / "models")
    for index, case in enumerate(cases):
        place = folder / str(index)
        case.small = reduce(case.composed.cfg, place, clones)
        case.small.cfg["output_root"] = str(place / "outputs")
        case.run = open_run(case.small.cfg, case.composed.overrides, command=case.composed.command)
        write_config(case.run.folder / UNREDUCED, case.small.unreduced)
        for composed in case.runs.values():
            clones.links[model_of(composed)] = str(case.run.model)
    with one_thread(), signals.handle_signals(signals.Stop()):
        for case in cases:
            before = case.before
            if before and before.code:
                case.code = before.code
                cause = f"it builds on {before.name}, which has failed"
                print(f"not begun {case.name}: {cause}", flush=True)
            else:
                _play_parts(case, folder / "cache", debug)
                print("\n".join(describe_case(case)), flush=True)
    for case in cases:
        if case.code:
            return case.code
    return 0


def _play_parts(case: Case, cache: Path, debug: bool) -> None:
    """Have the worker play a case, in one process after the other until one fails."""
    start = time.monotonic()
    rehearse = partial(worker.work, case.run.folder, "rehearse", debug=debug)
    for _ in range(PROCESSES):
        code = run_apart(rehearse, case.run.log, cache)
        case.code = EnvironmentFault.code if code < 0 else code
        if code:
            if not case.run.status()["cause"]:
                case.run.set_status("failed", cause=f"the process {processes.describe_exit(code)}")
            break
    case.seconds = time.monotonic() - start


def inspect_rows(run: Run) -> None:
    """Write down how long the first rows of the real run are.

    Raises ConfigError for what a training would be refused for.
    """
    unreduced = Run(run.folder / UNREDUCED).experiment
    with quiet(), first_rows_prepared(unreduced) as (components, how):
        rows = components.train_rows
        inspection = inspect_training(components.trainer, rows, **how)
    ConfigError.refuse(find_faults(inspection, unreduced.tolerate))
    lengths = [len(row.ids) for row in inspection.rows]
    if not lengths:
        lengths = [row.length for row in inspection.encoded]
    count = len(rows) if hasattr(rows, "__len__") else len(inspection.encoded)
    count_read = 0
    for node in rows_of(unreduced.node):
        head = Path(node["path"]) / "train.parquet"
        if head.exists():
            count_read += parquet.read_metadata(head).num_rows
    facts = {
        "lengths": lengths,
        "rows": count,
        "read": count_read or count,
        "limit": inspection.limit,
        "lines": summary_of(inspection),
    }
    write_json(run.folder / ROWS, facts)


def read_lengths(run: Run) -> dict[str, Any]:
    """The lengths and number of the real run's rows, as far as they were seen."""
    return read_json(run.folder / ROWS) or {}


def export_model(run: Run) -> None:
    """Export the model as the verb does, unless it can be shared only as it is."""
    trust = run.experiment.model.trusts_code
    try:
        export(read_run(run.folder), run.folder / "export", trust=trust)
    except ConfigError as error:
        write_json(run.folder / UNEXPORTED, {"why": error.faults[0].found})


# --- What came of it ------------------------------------------------------------------------------


def describe_case(case: Case) -> list[str]:
    """The outcome of a case in lines: the parts that were played, and what was changed."""
    outcomes = {
        "reading rows": _describe_rows(case.run),
        "training, saving": _describe_checkpoint(case.run),
        "resuming, scoring": _describe_scores(case.run),
        "exporting": _describe_export(case.run),
    }
    if case.code:
        missing = [part for part, outcome in outcomes.items() if not outcome]
        part = missing[0] if missing else "exporting"
        lines = [f"failed    {case.name}: {part}, after step {case.run.status()['step']}"]
    else:
        lines = [f"ok        {case.name}: {number(case.seconds, 2)} s"]
        if len(case.runs) > 1:
            lines[0] += f", for {len(case.runs)} runs that differ in numbers only"
    lines += [f"  {part:<19}{outcome}" for part, outcome in outcomes.items() if outcome]
    lines += _with_title("instead", case.small.notes)
    speed = case.composed.speed
    if not speed:  # nothing was asked for
        cfg = copy.deepcopy(case.composed.cfg)
        chosen, _ = choose_speed(cfg, read_options("speed")["max"])
        speed = [f"speed=max would set {line}" for line in chosen]
    return lines + _with_title("speed", speed)


def _with_title(title: str, texts: Sequence[str]) -> list[str]:
    """Indented lines with a title before the first."""
    return [f"  {'' if index else title:<10}{text}" for index, text in enumerate(texts)]


def _describe_rows(run: Run) -> str:
    lines = read_lengths(run).get("lines")
    return lines[0] if lines else ""


def _describe_checkpoint(run: Run) -> str:
    checkpoints = sealed_checkpoints(run.checkpoints)
    if not checkpoints:
        return ""
    files = [path for path in checkpoints[0].rglob("*") if path.is_file()]
    return f"{checkpoints[0].name}, {sized(sum(file.stat().st_size for file in files))}"


def _describe_scores(run: Run) -> str:
    if not run.model.is_dir():
        return ""
    scores = (read_json(run.folder / "scores.json") or {}).get("after")
    if not scores:
        return "no held-out rows"
    name, score = next(iter(scores.items()))
    return f"{len(scores)} held-out scores, such as {name} {number(score, 3)}"


def _describe_export(run: Run) -> str:
    unexported = read_json(run.folder / UNEXPORTED) or {}
    if unexported.get("why"):
        return f"not: {unexported['why']}"
    return "as transformers loads it" if (run.folder / "export").is_dir() else ""


# --- What the real runs need ----------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredCase:
    """A case with the experiment that a forecast is made of, and its step on each device."""

    case: Case
    experiment: Experiment
    steps: Sequence[tuple[MeasuredStep | None, str]]  # or why there is none


def print_forecasts(cases: Sequence[Case], target: Mapping[str, float], folder: Path) -> None:
    """Print what each real run will need, as far as its rows could be read."""
    gpus = (True,) if torch.cuda.is_available() else (False, True)
    with one_thread():
        measured_cases = list(_measure_cases(cases, gpus, folder))
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
