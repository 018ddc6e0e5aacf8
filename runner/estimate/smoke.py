"""Smoke runs: of each case rows are looked at, a step is trained and saved, the run goes on from it and is exported.

Jobs that differ in numbers only are one case: a learning rate or a seed changes what is learnt, and not what is done; a
batch size, a rank or a zero changes that too. Each part is a process of its own, so that a resume is one.
"""

import copy
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pyarrow import parquet

from runner.config import Composed
from runner.config.menu import read_options
from runner.config.speed import choose_speed
from runner.errors import ConfigError, EnvironmentFault
from runner.estimate.measure import measure_small, one_thread, run_apart
from runner.estimate.memory import Rows, Training
from runner.estimate.reduce import Clones, Reduced, linked, reduce, rows_of
from runner.estimate.table import Device, Forecast, format_forecasts, this_device
from runner.estimate.weights import source_of
from runner.io.files import read_json, write_json
from runner.io.terminal import quiet
from runner.launch import worker
from runner.launch.pool import warm_up
from runner.run import Run, open_run, write_config
from runner.run.disk import sized
from runner.run.key import folder_of, key_of, label_of, lasting
from runner.run.read import read_run
from runner.run.seal import sealed_checkpoints
from runner.schema.text import Config, number, scalars
from runner.training.export import export
from runner.training.inspection import find_faults, inspect_training, summary_of
from runner.training.stand_in import first_rows_prepared

# Whole numbers that say how long, how often, or from which chance.
LENGTHS = r"(data_)?seed|(max|save|eval|logging|warmup)_steps|num_train_epochs|total_episodes|limit\.(train|eval)"
PARTS = ("reading rows", "training, saving", "resuming, scoring", "exporting")
PROCESSES = 3  # that take them: after a resume the model is exported
MAX_WHOLE = 3  # forecasts of which all lines are printed
UNREDUCED, ROWS, UNEXPORTED = "unreduced", "rows.json", "unexported.json"  # in the folder of a smoke run


@dataclass
class Case:
    """One run that is tried, that of the stage before it, and the runs that it stands for by key, itself among them."""

    composed: Composed
    before: "Case | None" = None
    runs: dict[str, Composed] = field(default_factory=dict)
    small: Reduced = field(init=False)  # what is played for it
    run: Run = field(init=False)  # whose folder that is in
    seconds: float = 0.0
    code: int | None = None  # until it has ended

    @property
    def name(self) -> str:
        """A case as a person knows it: the name of its runs, and its stage."""
        label = label_of(self.composed.overrides)
        return f"{self.composed.cfg['name']} {'' if label == 'default' else label}".rstrip()


# --- Which runs are alike -------------------------------------------------------------------------


def group_by_structure(jobs: Sequence[Sequence[Composed]]) -> list[Case]:
    """The runs that differ in structure, in the order in which they are played; stages follow what they build on."""
    cases: dict[str, Case] = {}
    for runs in jobs:
        links: dict[str, str] = {}
        case = None
        for composed in runs:
            key = structure_of(composed.cfg, links)
            case = cases.setdefault(key, Case(composed, case))
            case.runs.setdefault(key_of(composed.cfg), composed)
            links[model_of(composed)] = key
    return list(cases.values())


def model_of(composed: Composed) -> str:
    """The folder in which a run will leave its model, as later stages name it."""
    return str(folder_of(composed.cfg, composed.overrides) / "model")


def structure_of(cfg: Config, links: Mapping[str, str]) -> str:
    """Ten hex digits that are equal where two runs do the same with other numbers."""
    structure = {}
    for path, value in scalars(lasting(cfg)):
        if isinstance(value, float) or (isinstance(value, int) and re.search(rf"(^|\.)({LENGTHS})$", path)):
            value = "a number" if value else 0
        structure[path] = links.get(value, value) if isinstance(value, str) else value
    return key_of(structure)


# --- How they are played --------------------------------------------------------------------------


def play(cases: Sequence[Case], folder: Path, debug: bool) -> int:
    """Play cases in order below a folder, print how each went; the first code that fails. Interrupted at a signal."""
    warm_up(case.composed for case in cases)
    clones = Clones(folder / "models")
    for index, case in enumerate(cases):
        case.small = reduce(case.composed.cfg, folder / f"{index}", clones)
        case.small.cfg["output_root"] = str(folder / f"{index}" / "outputs")
        case.run = open_run(case.small.cfg, case.composed.overrides, command=case.composed.command)
        write_config(case.run.folder / UNREDUCED, case.small.unreduced)
        clones.links |= {model_of(each): str(case.run.model) for each in case.runs.values()}
    with one_thread(), worker.handle_signals(worker.Stop()):
        for case in cases:
            if case.before and case.before.code:
                case.code = case.before.code
                print(f"not begun {case.name}: it builds on {case.before.name}, which has failed", flush=True)
            else:
                _play_parts(case, folder / "cache", debug)
                print("\n".join(describe_case(case)), flush=True)
    return next((case.code for case in cases if case.code), 0)


def _play_parts(case: Case, cache: Path, debug: bool) -> None:
    began = time.monotonic()
    for _ in range(PROCESSES):
        ended = run_apart(lambda: worker.work(case.run.folder, "rehearse", debug=debug), case.run.log, cache)
        case.code = EnvironmentFault.code if ended < 0 else ended
        if ended:
            if not case.run.status()["cause"]:
                case.run.set_status("failed", cause=f"the process {worker.describe_exit(ended)}")
            break
    case.seconds = time.monotonic() - began


def inspect_rows(run: Run) -> None:
    """Write down how long the first rows of the real run are; ConfigError for what a training would be refused for."""
    cfg = Run(run.folder / UNREDUCED).cfg
    with quiet(), first_rows_prepared(cfg) as (components, how):
        rows = components.train_rows
        seen = inspect_training(components.trainer, rows, **how)
    ConfigError.refuse(find_faults(seen, cfg.get("tolerate")))
    lengths = [len(row.ids) for row in seen.rows] or [row.length for row in seen.encoded]
    kept = len(rows) if hasattr(rows, "__len__") else len(seen.encoded)
    heads = [Path(node["path"]) / "train.parquet" for node in rows_of(cfg)]
    read = sum(parquet.read_metadata(head).num_rows for head in heads if head.exists())
    facts = {"lengths": lengths, "rows": kept, "read": read or kept, "limit": seen.limit, "lines": summary_of(seen)}
    write_json(run.folder / ROWS, facts)


def read_lengths(run: Run) -> dict[str, Any]:
    """The lengths and number of the real run's rows, as far as they were seen."""
    return read_json(run.folder / ROWS) or {}


def export_model(run: Run) -> None:
    """Export the model as the verb does; what can be shared only as it is, is left as it is."""
    try:
        export(read_run(run.folder), run.folder / "export", trust=bool(run.cfg["model"].get("trust_remote_code")))
    except ConfigError as error:
        write_json(run.folder / UNEXPORTED, {"why": error.faults[0].found})


# --- What came of it ------------------------------------------------------------------------------


def describe_case(case: Case) -> list[str]:
    """The outcome of a case in lines: the parts that were played, or the one that failed, and what is not as it was."""
    runs, outcomes = len(case.runs), dict(zip(PARTS, _outcomes(case), strict=True))
    many = f", for {runs} runs that differ in numbers only" if runs > 1 else ""
    head = f"ok        {case.name}: {number(case.seconds, 2)} s{many}"
    if not (speed := case.composed.speed):  # that was made or left, as it was asked for
        chosen, _ = choose_speed(copy.deepcopy(case.composed.cfg), read_options("speed")["max"])
        speed = [f"speed=max would set {line}" for line in chosen]
    if case.code:
        part = next((part for part, outcome in outcomes.items() if not outcome), PARTS[-1])
        head = f"failed    {case.name}: {part}, after step {case.run.status()['step']}"
    return [
        head,
        *(f"  {part:<19}{outcome}" for part, outcome in outcomes.items() if outcome),
        *(f"  {'' if index else 'instead':<10}{note}" for index, note in enumerate(case.small.notes)),
        *(f"  {'' if index else 'speed':<10}{line}" for index, line in enumerate(speed)),
    ]


def _outcomes(case: Case) -> Iterator[str]:
    run = case.run
    yield next(iter(read_lengths(run).get("lines", [])), "")
    saved = next(iter(sealed_checkpoints(run.checkpoints)), None)
    files = saved.rglob("*") if saved else ()
    yield f"{saved.name}, {sized(sum(file.stat().st_size for file in files if file.is_file()))}" if saved else ""
    scores = (read_json(run.folder / "scores.json") or {}).get("after") or {}
    first = next((f", such as {name} {number(score, 3)}" for name, score in scores.items()), "")
    yield f"{len(scores) or 'no'} held-out {'scores' if scores else 'rows'}{first}" if run.model.is_dir() else ""
    why = (read_json(run.folder / UNEXPORTED) or {}).get("why")
    yield f"not: {why}" if why else "as transformers loads it" if (run.folder / "export").is_dir() else ""


def print_forecasts(cases: Sequence[Case], target: Mapping[str, float], folder: Path) -> None:
    """Print what each real run will need, as far as its rows could be read."""
    gpus = (True,) if torch.cuda.is_available() else (False, True)
    origins: dict[str, str] = {}  # models that earlier stages have yet to train, by those that they begin with
    measured = []
    with one_thread():
        for number, case in enumerate(cases):
            cfg = linked(case.composed.cfg, origins)
            if read_lengths(case.run):
                is_whole = number < MAX_WHOLE
                steps = [measure_small(case.small.cfg, gpu, folder) if is_whole else (None, "") for gpu in gpus]
                measured.append((case, cfg, steps))
            source = source_of(cfg)
            origin = source.path or str(folder / f"origin{number}")
            if not source.path:
                source.config().save_pretrained(origin)  # all that there is of a model from nothing
            origins |= dict.fromkeys(map(model_of, case.runs.values()), origin)
    if not measured:
        return
    here = this_device()  # only now: with its threads in this process, no other could be forked from it
    typed: dict[str, Any] = {"memory": int(target["memory"] * 1e9)} if "memory" in target else {}
    typed |= {"speed": target["tflops"] * 1e12, "how": "as typed"} if "tflops" in target else {}
    devices = [replace(here, **typed)] if here.gpu else [here, Device("a GPU", True, **typed)]
    for number, (case, cfg, steps) in enumerate(measured):
        seen, total = read_lengths(case.run), case.small.rows
        # Of all rows the trainer gets as many as of those that were seen.
        total = None if total is None else total * seen["rows"] / max(1, seen["read"])
        rows = Rows(seen["lengths"], seen["limit"], total)
        both = zip(devices, steps, strict=True)
        trainings = [(Training(cfg, rows, step, gpu=device.gpu), device, why) for device, (step, why) in both]
        lines = format_forecasts([Forecast(*each) for each in trainings])
        print(f"forecast  {case.name}", *(lines if number < MAX_WHOLE else lines[:1]), sep="\n", flush=True)
