"""A run in small -> played through: rows looked at, trained to its first save, gone on from it, exported.

``play`` is a launcher: the pool starts it in a process of its own, and each part of the play is a further process, so
that a resume is one. The parts leave the papers of any run, from which it is told how far a play came.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runner import work
from runner.errors import ConfigError, Fault, RunnerError
from runner.files import read_json, write_json
from runner.rehearsal.reduce import ROWS, nodes_of
from runner.run import Run, sealed_checkpoints
from runner.terminal import quiet

PARTS = ("look", "begin", "go on", "export")


def play(folder: str | Path, *, sight: str, debug: bool = False) -> int:
    """Play a run folder through and return the exit code of the first part that fails; 0 where all went well.

    What is prepared of the rows is kept beside them, not in the cache of real ones.
    """
    import datasets

    run = Run(Path(folder))
    datasets.config.HF_DATASETS_CACHE = Path(sight).with_name("cache")
    parts: dict[str, Callable[[], int]] = {
        "look": lambda: _answered(run, lambda: look(run, Path(sight))),
        "begin": lambda: work.work(folder, command="rehearse", debug=debug),
        "go on": lambda: work.work(folder, debug=debug),
        "export": lambda: _answered(run, lambda: export(run)),
    }
    done = []
    for name, part in parts.items():
        began = time.monotonic()
        code = apart(part)
        done.append({"part": name, "code": code, "seconds": round(time.monotonic() - began, 2)})
        write_json(run.folder / "play.json", {"parts": done})
        if code:
            return code
    return 0


def apart(call: Callable[[], int]) -> int:
    """The exit code of a call in a process of its own, which ends with this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        code = 1
        try:
            work.set_parent_death_signal(parent)
            code = call()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    return ended if ended >= 0 else 128 - ended


def _answered(run: Run, call: Callable[[], None]) -> int:
    """The exit code of a part that is not a worker's, its error written down as a worker does."""
    try:
        call()
        return 0
    except Exception as error:
        traceback.print_exc()
        found = f"{type(error).__name__}: {error}"
        told = error if isinstance(error, RunnerError) else RunnerError(Fault(str(run.log), found, cure="read it"))
        run.set_status("failed", cause=str(told))
        return told.code


# --- The parts that are not a training's ----------------------------------------------------------


def look(run: Run, sight: Path) -> None:
    """Look at the first rows as the real run would see them, and write down how long they are.

    Raises ConfigError for what a training would be refused for.
    """
    from runner.command.preview import ends_of, lighten, summary_of, write_stand_in
    from runner.inspection import SAMPLE, find_faults, inspect_training
    from runner.tray import build_components
    from runner.tray.model import policy_of

    cfg = yaml.safe_load(sight.read_text(encoding="utf-8"))
    node = cfg["trainer"]
    with quiet(), tempfile.TemporaryDirectory(prefix="rehearsal-") as place:
        light = lighten(cfg, SAMPLE, write_stand_in(cfg, Path(place) / "model"))
        other = Run(Path(place) / "look" / "run")
        other.folder.mkdir(parents=True)
        (other.folder / "config.yaml").write_text(yaml.safe_dump(light, allow_unicode=True), encoding="utf-8")
        components = build_components(other, None)
        how = {"form": node["form"], "head": node["head"], "ends": ends_of(cfg, policy_of(components.trainer))}
        seen = inspect_training(components.trainer, components.train_rows, **how, count=SAMPLE)
        rows, read = components.train_rows, count_rows(cfg["dataset"])
    lengths = [row.length for row in seen.spelt] or [len(row.ids) for row in seen.rows]
    sequences = [len(row.ids) for row in seen.rows]
    kept = len(rows) if hasattr(rows, "__len__") else len(seen.spelt)
    trained = sum(map(sum, (row.trained for row in seen.rows))) / max(1, sum(sequences))
    facts = {"lengths": lengths, "sequences": sequences, "rows": kept, "read": read or kept, "trained": trained}
    write_json(run.folder / "rows.json", facts | {"limit": seen.limit, "lines": summary_of(seen)})
    if faults := find_faults(seen, cfg.get("tolerate")):
        raise ConfigError(faults)


def count_rows(node: Mapping[str, Any]) -> int:
    """How many rows there are in the files that a dataset was cut down to; 0 where it was not."""
    from pyarrow import parquet

    files = [Path(one["path"]) / "train.parquet" for one in nodes_of(node) if one.get("_target_") == ROWS]
    return sum(parquet.read_metadata(file).num_rows for file in files if file.exists())


def export(run: Run) -> None:
    """Export the model as the verb does; what can be shared only as it is, is left as it is."""
    from runner.command.export import export as write_export
    from runner.run.read import read_run

    trust = bool(run.cfg["model"].get("trust_remote_code"))
    try:
        write_export(read_run(run.folder), run.folder / "export", trust=trust)
    except ConfigError as error:
        write_json(run.folder / "unexported.json", {"why": error.faults[0].found})


# --- How far it came ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a play left: the seconds of each part, and where one failed, in which phase of it and why."""

    seconds: Mapping[str, float]
    failed: str = ""
    cause: str = ""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def outcome_of(run: Run) -> Outcome:
    """How a play ended, by the papers that it left."""
    parts = (read_json(run.folder / "play.json") or {"parts": []})["parts"]
    seconds = {part["part"]: part["seconds"] for part in parts}
    if len(parts) == len(PARTS) and not parts[-1]["code"]:
        return Outcome(seconds)
    last = parts[-1]["part"] if parts else ""
    return Outcome(seconds, phase_of(run, last), str(run.status().get("cause")))


def phase_of(run: Run, part: str) -> str:
    """What a run was about when its last part failed, by what there is of it."""
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


def scores_of(run: Run) -> dict[str, Any]:
    """The held-out scores after the last step."""
    return (read_json(run.folder / "scores.json") or {}).get("after") or {}
