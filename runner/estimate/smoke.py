"""Smoke runs: of each case rows are looked at, a step is trained and saved, the run goes on from it and is exported.

Each part is a process of its own, so that a resume is one. The parts leave the files of any run, from which it is read
how far they came.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import parquet

from runner.config.build import locate
from runner.errors import ConfigError, Fault, RunnerError
from runner.estimate.group import Case, model_of
from runner.estimate.process import run_apart
from runner.estimate.reduce import Clones, Reduced, reduce, rows_of
from runner.io.files import read_json, write_json
from runner.io.terminal import quiet
from runner.launch import worker
from runner.report.number import number
from runner.run import Run, open_run
from runner.run.disk import sized
from runner.run.key import label_of
from runner.run.read import read_run
from runner.run.seal import sealed_checkpoints
from runner.schema.text import Config
from runner.training.export import export
from runner.training.inspection import find_faults, inspect_training, summary_of
from runner.training.stand_in import first_rows_prepared

TITLES = {"inspect": "rows read", "train": "a step, saved", "resume": "resumed, scored", "export": "exported"}


@dataclass
class SmokeResult:
    """A case with the run in small that is played for it, and how that goes.

    ``seconds`` has those of each part that was played; ``failed`` is the phase in which one failed with an exit code.
    """

    case: Case
    small: Reduced
    run: Run
    seconds: dict[str, float] = field(default_factory=dict)
    failed: str = ""
    code: int = 0

    @property
    def rows(self) -> dict[str, Any]:
        """The lengths and number of the real run's rows, as far as they were seen."""
        return read_json(self.run.folder / "rows.json") or {}

    @property
    def name(self) -> str:
        """A case as a person knows it: the name of its runs, and its stage."""
        composed = self.case.composed
        label = label_of(composed.overrides)
        return f"{composed.cfg['name']} {'' if label == 'default' else label}".rstrip()


class SmokeRunner:
    """Plays cases below a folder, and prints the outcome of each as it ends."""

    def __init__(self, folder: Path, debug: bool = False):
        self.folder, self.debug = folder, debug
        self.clones = Clones(folder / "models")
        self.results: dict[str, SmokeResult] = {}
        # Asked without the driver, which a process that is about to fork must not wake.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

    def play(self, chains: Sequence[Sequence[Case]]) -> tuple[list[SmokeResult], int]:
        """The results of every case of these chains, played once, and the exit code of the first that fails.

        Raises Interrupted at a signal, after the process of a part was ended.
        """
        for chain in chains:
            for case in chain:
                self._prepare(case)
        gc.freeze()  # no part needs to look through what is here by now for garbage
        with worker.handle_signals(worker.Stop()):
            for chain in chains:
                before = None
                for case in chain:
                    result = self.results[case.key]
                    if before and before.code:
                        result.code = before.code
                        print(f"not begun {result.name}: it builds on {before.name}, which has failed", flush=True)
                    elif not result.seconds:
                        self._play(result)
                    before = result
        results = list(self.results.values())
        return results, next((each.code for each in results if each.code), 0)

    def _prepare(self, case: Case) -> None:
        """Make a case small, open its run, and note where that leaves its model, for those that build on it."""
        if case.key not in self.results:
            folder = self.folder / f"{len(self.results)}"
            small = reduce(case.composed.cfg, folder, self.clones)
            small.cfg["output_root"] = str(folder / "outputs")
            run = open_run(small.cfg, case.composed.overrides, command=case.composed.command)
            self.results[case.key] = SmokeResult(case, small, run)
            target = str(small.cfg["trainer"]["_target_"])
            if target.startswith(("trl.", "runner.")):  # imported once for all parts; a user's module may hold a state
                locate(target)
        self.clones.links |= {model_of(each): str(self.results[case.key].run.model) for each in case.runs.values()}

    def _play(self, result: SmokeResult) -> None:
        """Play one part after the other, up to the first that fails."""
        run = result.run
        parts: dict[str, Callable[[], int]] = {
            "inspect": lambda: _code_of(run, lambda: inspect_rows(run, result.small.unreduced)),
            "train": lambda: worker.work(run.folder, command="rehearse", debug=self.debug),
            "resume": lambda: worker.work(run.folder, debug=self.debug),
            "export": lambda: _code_of(run, lambda: export_model(run)),
        }
        for name, part in parts.items():
            began = time.monotonic()
            result.code = run_apart(part, run.log, self.folder / "cache")
            result.seconds[name] = time.monotonic() - began
            if result.code:
                result.failed = phase_of(run, name)
                if not run.status()["cause"]:
                    run.set_status("failed", cause=f"the process ended with exit code {result.code}")
                break
        print("\n".join(describe_result(result)), flush=True)


def _code_of(run: Run, call: Callable[[], None]) -> int:
    """The exit code of a part that is not a worker's, its error written down as a worker does."""
    try:
        call()
        return 0
    except Exception as error:
        traceback.print_exc()
        fault = Fault(str(run.log), f"{type(error).__name__}: {error}", fix="read it")
        known = error if isinstance(error, RunnerError) else RunnerError(fault)
        run.set_status("failed", cause=str(known))
        return known.code


def inspect_rows(run: Run, cfg: Config) -> None:
    """Look at the first rows as the real run would see them, and write down how long they are.

    Raises ConfigError for what a training would be refused for.
    """
    with quiet(), first_rows_prepared(cfg) as (components, how):
        rows = components.train_rows
        seen = inspect_training(components.trainer, rows, **how)
    lengths = [len(row.ids) for row in seen.rows] or [row.length for row in seen.encoded]
    kept = len(rows) if hasattr(rows, "__len__") else len(seen.encoded)
    heads = [Path(node["path"]) / "train.parquet" for node in rows_of(cfg)]
    read = sum(parquet.read_metadata(head).num_rows for head in heads if head.exists())
    facts = {"lengths": lengths, "rows": kept, "read": read or kept, "limit": seen.limit, "lines": summary_of(seen)}
    write_json(run.folder / "rows.json", facts)
    if faults := find_faults(seen, cfg.get("tolerate")):
        raise ConfigError(faults)


def export_model(run: Run) -> None:
    """Export the model as the verb does; what can be shared only as it is, is left as it is."""
    trust = bool(run.cfg["model"].get("trust_remote_code"))
    try:
        export(read_run(run.folder), run.folder / "export", trust=trust)
    except ConfigError as error:
        write_json(run.folder / "unexported.json", {"why": error.faults[0].found})


def phase_of(run: Run, part: str) -> str:
    """The phase in which a run was when its last part failed, by what there is of it."""
    status = run.status()
    if part == "train":
        if not status["max_steps"]:
            return "loading"
        if not (run.folder / "scores.json").exists():
            return "evaluating before the first step"
        return "saving" if status["step"] else "taking the first step"
    if part == "resume":
        if status["step"] < status["max_steps"]:
            return "resuming"
        if len(sealed_checkpoints(run.checkpoints)) < 2:
            return "saving"
        return "writing model/" if (run.folder / ".model.new").exists() else "evaluating"
    return {"inspect": "reading the rows", "export": "exporting"}[part]


def describe_result(result: SmokeResult) -> list[str]:
    """The outcome of a case in lines: what was done, and how long each part took."""
    runs = len(result.case.runs)
    many = f", for {runs} runs that differ in numbers only" if runs > 1 else ""
    head = f"ok        {result.name}: {number(sum(result.seconds.values()), 2)} s{many}"
    if result.code:
        head = f"failed    {result.name}: {result.failed}"
    parts = zip(result.seconds.items(), _outcomes(result), strict=False)
    return [
        head,
        *(f"  {TITLES[part]:<16}{lasted:6.1f} s  {outcome}".rstrip() for (part, lasted), outcome in parts),
        *(f"  {'' if index else 'instead':<10}{note}" for index, note in enumerate(result.small.notes)),
    ]


def _outcomes(result: SmokeResult) -> Iterator[str]:
    """The outcome of each part, in a few words."""
    run = result.run
    yield next(iter(result.rows.get("lines", [])), "")
    saved = next(iter(sealed_checkpoints(run.checkpoints)), None)
    files = saved.rglob("*") if saved else ()
    yield f"{saved.name}, {sized(sum(file.stat().st_size for file in files if file.is_file()))}" if saved else ""
    scores = (read_json(run.folder / "scores.json") or {}).get("after") or {}
    first = next((f", such as {name} {number(score, 3)}" for name, score in scores.items()), "")
    reached = f"{len(scores) or 'no'} held-out {'scores' if scores else 'rows'}{first}"
    yield reached if run.status()["state"] == "finished" else ""
    why = (read_json(run.folder / "unexported.json") or {}).get("why")
    yield f"not: {why}" if why else "as transformers loads it" if (run.folder / "export").is_dir() else ""
