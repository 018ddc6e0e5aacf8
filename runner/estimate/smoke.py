"""Cases -> smoke runs, one after the other, each in a folder of its own below one place, and their measured steps."""

from __future__ import annotations

import copy
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from runner.config import Composed
from runner.errors import RunnerError, code_of
from runner.estimate.group import Case, model_of
from runner.estimate.measure import Measured, measure_step
from runner.estimate.memory import RECOMPUTE
from runner.estimate.parts import PARTS, phase_of, wait_for
from runner.estimate.reduce import Clones, Reduced, is_small, reduce
from runner.estimate.steps import cycle_of, fields_of
from runner.estimate.weights import Shape
from runner.io.files import read_json, write_json, write_text
from runner.launch.plan import Task, tasks_of
from runner.launch.pool import settings_of, train_all
from runner.model.clone import Source, write_clone
from runner.report.number import number
from runner.run import Run, folder_of, label_of, sealed_checkpoints
from runner.run.disk import sized

PLAY = "runner.estimate.parts.play"
TITLES = {"look": "rows read", "begin": "a step, saved", "go on": "resumed, scored", "export": "exported"}
HEAD_SIZES = (8, 16)  # of the two models that are measured
LOADER = "runner.model.load.load_model"


@dataclass(frozen=True)
class SmokeResult:
    """A case with the run in small that was played for it, and how that went by the files that it left."""

    case: Case
    small: Reduced
    run: Run

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each part took which was played."""
        return {part["part"]: part["seconds"] for part in self._parts}

    @property
    def failed(self) -> str:
        """The phase in which it failed, if it did."""
        parts = self._parts
        whole = len(parts) == len(PARTS) and not parts[-1]["code"]
        return "" if whole else phase_of(self.run, parts[-1]["part"] if parts else "")

    @property
    def _parts(self) -> list[dict[str, Any]]:
        return (read_json(self.run.folder / "play.json") or {"parts": []})["parts"]

    @property
    def rows(self) -> dict[str, Any]:
        """The lengths and number of the real run's rows, as far as they were seen."""
        return read_json(self.run.folder / "rows.json") or {}

    @property
    def name(self) -> str:
        """A case as a person knows it: the name of its runs, and its stage."""
        composed = self.case.composed
        label = label_of(composed.overrides)
        return " ".join(filter(None, (str(composed.cfg["name"]), "" if label == "default" else label)))


class SmokeRunner:
    """Plays cases below a folder, telling each as it ends."""

    def __init__(self, place: Path, debug: bool = False):
        self.place, self.debug = place, debug
        self.clones = Clones(place / "models")
        self.small: dict[str, tuple[Composed, Reduced]] = {}
        self.results: dict[Path, SmokeResult] = {}

    def play(self, chains: Sequence[Sequence[Case]]) -> tuple[list[SmokeResult], int]:
        """The results of every case of these chains, played once, and the exit code of the first that fails."""
        codes, signals = train_all(
            tasks_of([[self._prepared(case) for case in chain] for chain in chains]),
            settings_of({"jobs": 1}, debug=self.debug),
            self,
        )
        first = next((code for code in codes.values() if code), 0)
        return list(self.results.values()), code_of(signals[0]) if signals else first

    def _prepared(self, case: Case) -> Composed:
        """The case in small, and its model noted for those that build on it."""
        if case.key not in self.small:
            place = self.place / f"{len(self.small)}"
            small = reduce(case.composed.cfg, place, self.clones)
            unreduced = place / "unreduced.yaml"
            write_text(unreduced, yaml.safe_dump(small.unreduced, sort_keys=False, allow_unicode=True))
            small.cfg["launcher"] = {"_target_": PLAY, "unreduced": str(unreduced)}
            small.cfg["output_root"] = str(self.place / "outputs")
            composed = replace(case.composed, cfg=small.cfg)
            folder = folder_of(composed.cfg, composed.overrides)
            self.small[case.key] = composed, small
            self.results.setdefault(folder, SmokeResult(case, small, Run(folder.absolute())))
        composed, _ = self.small[case.key]
        for run in case.runs:
            self.clones.links[model_of(run)] = model_of(composed)
        return composed

    # What the pool tells.

    def started(self, task: Task) -> None:
        pass

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None:
        print("\n".join(to_lines(self.results[task.folder], state, cause)), flush=True)

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        pass

    def close(self) -> None:
        pass


def to_lines(result: SmokeResult, state: str, cause: str) -> list[str]:
    """The outcome of a case in lines: what was done, and how long each part took."""
    seconds, runs = result.seconds, len(result.case.runs)
    head = f"{state:<9} {result.name}: {cause}"
    if state == "finished":
        many = f", for {runs} runs that differ in numbers only" if runs > 1 else ""
        head = f"ok        {result.name}: {number(sum(seconds.values()), 2)} s{many}"
    elif result.failed and seconds:
        head = f"failed    {result.name}: {result.failed}"
    done = zip(seconds.items(), _done(result), strict=False)
    parts = [f"  {TITLES[part]:<16}{lasted:6.1f} s  {what}".rstrip() for (part, lasted), what in done]
    return [
        head,
        *parts,
        *(f"  {'' if place else 'instead':<10}{note}" for place, note in enumerate(result.small.notes)),
    ]


def _done(result: SmokeResult) -> Iterator[str]:
    """The outcome of each part, in a few words."""
    run = result.run
    yield next(iter(result.rows.get("lines", [])), "")
    saved = next(iter(sealed_checkpoints(run)), None)
    files = saved.rglob("*") if saved else ()
    yield f"{saved.name}, {sized(sum(file.stat().st_size for file in files if file.is_file()))}" if saved else ""
    scores = (read_json(run.folder / "scores.json") or {}).get("after") or {}
    first = next((f", such as {name} {number(score, 3)}" for name, score in scores.items()), "")
    reached = f"{len(scores) or 'no'} held-out {'scores' if scores else 'rows'}{first}"
    yield reached if run.status()["state"] == "finished" else ""
    why = (read_json(run.folder / "unexported.json") or {}).get("why")
    yield f"not: {why}" if why else "as transformers loads it" if (run.folder / "export").is_dir() else ""


# --- Its step, measured ---------------------------------------------------------------------------


def measure_small(
    cfg: Mapping[str, Any], source: Source, autocast: bool, place: Path
) -> tuple[list[tuple[Shape, Measured]], str]:
    """A step of models like that of a source, of two widths, or why none could be measured.

    They train in a process of their own with the small run's configuration; its files go below ``place``.
    """
    place.mkdir(parents=True, exist_ok=True)
    found = place / "measured.json"
    found.unlink(missing_ok=True)

    def measure() -> int:
        log = os.open(place / "log.txt", os.O_WRONLY | os.O_CREAT)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        try:
            seen = [
                (asdict(shape), asdict(measure_step(small, place, cycle_of(cfg["trainer"]["args"]))))
                for shape, small in _narrow(bare(cfg, autocast), source, place)
            ]
            write_json(found, {"seen": seen})
        except Exception as error:  # whatever a trainer may raise
            traceback.print_exc()
            first = error.faults[0].found if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
            write_json(found, {"why": first.splitlines()[0]})
        return 0

    wait_for(measure)
    read = read_json(found) or {"why": "the process that measured it was killed"}
    return [(Shape(**shape), Measured(**seen)) for shape, seen in read.get("seen", ())], read.get("why", "")


def bare(cfg: Mapping[str, Any], autocast: bool) -> dict[str, Any]:
    """The configuration of a training alone, for one cycle of generation, whose activations are all kept."""
    cfg = copy.deepcopy(dict(cfg))
    args, known = cfg["trainer"]["args"], fields_of(cfg["trainer"]["args"])
    args |= {name: False for name in RECOMPUTE if name in known}
    args |= {"use_cpu": True, "bf16": autocast, "fp16": False, "max_steps": cycle_of(args)}
    args |= {"save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False}
    return cfg | dict.fromkeys(("callback", "metric", "quant"))  # a quantised product has no count of operations


def _narrow(cfg: dict[str, Any], source: Source, place: Path) -> Iterator[tuple[Shape, dict[str, Any]]]:
    """The configuration with a small model of each width, and its shape; as it is where the model itself is small."""
    if is_small(source):
        yield Shape.of_source(source), cfg
        return
    kept = {name: cfg["model"].get(name) for name in ("tokenizer", "attention", "trust_remote_code", "dtype")}
    for head_size in HEAD_SIZES:
        folder = place / f"model{head_size}"
        write_clone(source, folder, head_size)
        model = {"_target_": LOADER, "path": str(folder)}
        model |= {name: value for name, value in kept.items() if value is not None}
        args = dict(cfg["trainer"]["args"])
        if args.get("sft_model_path"):
            args["sft_model_path"] = str(folder)
        shape = Shape.of_source(Source(str(folder), trust=source.trust))
        yield shape, cfg | {"model": model, "trainer": cfg["trainer"] | {"args": args}}
