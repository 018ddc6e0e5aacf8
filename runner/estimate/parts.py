"""One smoke run: rows looked at, trained to its first save, gone on from it, exported.

``play`` is a launcher: the pool starts it in a process of its own, and each part is a further process, so that a resume
is one. The parts leave the files of any run, from which it is told how far they came.
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import yaml

from runner.errors import ConfigError, Fault, RunnerError
from runner.estimate.reduce import rows_of
from runner.io.files import write_json
from runner.io.terminal import quiet
from runner.launch import worker
from runner.run import Run, sealed_checkpoints, write_config

PARTS = ("look", "begin", "go on", "export")


def play(folder: str | Path, *, unreduced: str, debug: bool = False) -> int:
    """Play a run folder through and return the exit code of the first part that fails; 0 where all went well.

    What is prepared of the rows is kept beside them, not in the cache of real ones.
    """
    import datasets

    run = Run(Path(folder))
    datasets.config.HF_DATASETS_CACHE = Path(unreduced).with_name("cache")
    parts: dict[str, Callable[[], int]] = {
        "look": lambda: _record(run, lambda: look(run, Path(unreduced))),
        "begin": lambda: worker.work(folder, command="rehearse", debug=debug),
        "go on": lambda: worker.work(folder, debug=debug),
        "export": lambda: _record(run, lambda: export(run)),
    }
    done = []
    for name, part in parts.items():
        began = time.monotonic()
        code = wait_for(part)
        done.append({"part": name, "code": code, "seconds": round(time.monotonic() - began, 2)})
        write_json(run.folder / "play.json", {"parts": done})
        if code:
            return code
    return 0


def wait_for(call: Callable[[], int]) -> int:
    """The exit code of a call in a process of its own, which ends with this one."""
    ended = os.waitstatus_to_exitcode(os.waitpid(worker.fork(call), 0)[1])
    return ended if ended >= 0 else 128 - ended


def _record(run: Run, call: Callable[[], None]) -> int:
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


# --- Its parts ----------------------------------------------------------------------------------


def look(run: Run, unreduced: Path) -> None:
    """Look at the first rows as the real run would see them, and write down how long they are.

    Raises ConfigError for what a training would be refused for.
    """
    from pyarrow import parquet

    from runner.training.build import build_components
    from runner.training.build.model import policy_of
    from runner.training.inspection import SAMPLE, ends_of, find_faults, inspect_training, summary_of
    from runner.training.stand_in import lighten, write_stand_in

    cfg = yaml.safe_load(unreduced.read_text(encoding="utf-8"))
    node = cfg["trainer"]
    with quiet(), tempfile.TemporaryDirectory(prefix="rehearsal-") as place:
        light = lighten(cfg, SAMPLE, write_stand_in(cfg, Path(place) / "model"))
        other = Run(Path(place) / "look" / "run")
        write_config(other.folder, light)
        components = build_components(other, None)
        how = {"form": node["form"], "head": node["head"], "ends": ends_of(cfg, policy_of(components.trainer))}
        seen = inspect_training(components.trainer, components.train_rows, **how, count=SAMPLE)
        rows = components.train_rows
    lengths = [len(row.ids) for row in seen.rows] or [row.length for row in seen.encoded]
    kept = len(rows) if hasattr(rows, "__len__") else len(seen.encoded)
    heads = [Path(node["path"]) / "train.parquet" for node in rows_of(cfg)]
    read = sum(parquet.read_metadata(head).num_rows for head in heads if head.exists())
    facts = {"lengths": lengths, "rows": kept, "read": read or kept, "limit": seen.limit, "lines": summary_of(seen)}
    write_json(run.folder / "rows.json", facts)
    if faults := find_faults(seen, cfg.get("tolerate")):
        raise ConfigError(faults)


def export(run: Run) -> None:
    """Export the model as the verb does; what can be shared only as it is, is left as it is."""
    from runner.run.read import read_run
    from runner.training.export import export as write_export

    trust = bool(run.cfg["model"].get("trust_remote_code"))
    try:
        write_export(read_run(run.folder), run.folder / "export", trust=trust)
    except ConfigError as error:
        write_json(run.folder / "unexported.json", {"why": error.faults[0].found})


def phase_of(run: Run, part: str) -> str:
    """The phase in which a run was when its last part failed, by what there is of it."""
    status, saved = run.status(), len(sealed_checkpoints(run))
    if part == "begin":
        if not status["max_steps"]:
            return "loading"
        if not (run.folder / "scores.json").exists():
            return "evaluating before the first step"
        return "saving" if status["step"] else "taking the first step"
    if part == "go on":
        if status["step"] < status["max_steps"]:
            return "resuming"
        if saved < 2:
            return "saving"
        return "writing model/" if (run.folder / ".model.new").exists() else "evaluating"
    return {"look": "reading the rows", "export": "exporting"}.get(part, "starting")
