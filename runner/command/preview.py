"""python -m runner preview [RUN] [key=value ...] [rows=3] [html=true] [set=train]

Shows some rows as the model will see them: which tokens are trained and how much each weighs, what is cut, how the
two answers of a pair lie beside each other, and for trainers that sample, the prompt that they sample after. It takes
exactly what a training takes, or the folder of a run, and these words of its own:

    rows=3        how many rows to show
    html=true     also as a page, outputs/<name>/preview-<key>.html, or html=<file>
    set=train     train, eval (every held-out set), or all
    trust=true    trust the configuration of a RUN that names what is not on the list

The rows go through the run's own tokenizer, dataset, trainer and collator. Only the weights of the model are a small
stand-in, so that a preview of a large model needs its tokenizer and no more. Nothing is trained and no run folder is
made. Where a training would be refused, the reasons follow, and the exit code is 2.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.config import Composed
from runner.errors import ConfigError, Fault
from runner.io.files import write_text
from runner.io.terminal import quiet
from runner.launch import stages
from runner.launch.worker import take_devices, visible_devices
from runner.model.spelling import to_texts
from runner.report.tokens import MAX_WIDTH, Sheet, format_sheet, to_page
from runner.run import Run, folder_of, key_of, write_config
from runner.run.find import find_runs
from runner.training.build import build_components
from runner.training.build.model import policy_of
from runner.training.inspection import (
    SAMPLE,
    Inspection,
    ends_of,
    find_faults,
    inspect_evaluation,
    inspect_training,
    summary_of,
)
from runner.training.stand_in import lighten, write_stand_in
from runner.validate import find_dangers

SETS = ("train", "eval", "all")


@dataclass(frozen=True)
class Wishes:
    """The words that are the preview's own."""

    rows: int = 3
    html: str = ""
    which: str = "train"
    trust: bool = False


def main(line: Any) -> int:
    """Print the preview of what the command line means, and return 2 where a training would be refused."""
    if line.multirun:
        raise ConfigError(Fault("command line", "-m", "one configuration to look at", "one value of each key, no -m"))
    wishes, words = read_wishes(line.overrides)
    runs = _runs(line.runs, words, wishes.trust) if line.runs else stages.compose_runs(words, line.folders)
    sheets, origins = [], {}
    with quiet():
        for composed in runs:
            cfg = _origin(composed, origins)
            sheets += build_sheets(cfg, wishes, composed.stage)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)
    print("\n".join(format_sheet(sheet, colour=colour, width=width) for sheet in sheets), flush=True)
    if wishes.html:
        path = _page_path(wishes.html, runs[0])
        write_text(path, to_page(f"What {_title(runs[0])} trains on", sheets))
        print(f"page      {path}", flush=True)
    if faults := [fault for sheet in sheets for fault in sheet.faults]:
        print(ConfigError(dict.fromkeys(faults)), file=sys.stderr)
        return ConfigError.code
    return 0


def read_wishes(overrides: Sequence[str]) -> tuple[Wishes, list[str]]:
    """The preview's own words, and those that are a training's; raises ConfigError."""
    own = {"rows": "3", "html": "false", "set": "train", "trust": "false"}
    rest = [word for word in overrides if word.partition("=")[0] not in own]
    own |= dict(word.split("=", 1) for word in overrides if word not in rest)
    faults = []
    if not own["rows"].isdigit() or int(own["rows"]) < 1:
        faults.append(Fault("rows", own["rows"], "a number of rows to show", "rows=3"))
    if own["set"] not in SETS:
        faults.append(Fault("set", own["set"], f"one of {', '.join(SETS)}", "set=all"))
    if faults:
        raise ConfigError(faults)
    html = "" if own["html"] in ("false", "null") else own["html"] or "true"
    return Wishes(int(own["rows"]), html, own["set"], own["trust"] == "true"), rest


def _runs(folders: Sequence[str], words: Sequence[str], trust: bool) -> list[Composed]:
    """The frozen configurations of run folders, which can come from anybody."""
    if words:
        expected = "either a run, which is frozen, or overrides"
        raise ConfigError(Fault("command line", " ".join(words), expected, f"python -m runner preview {folders[0]}"))
    runs = [record.run for record in find_runs(folders, "preview", len(folders))]
    fix = f"python -m runner preview {folders[0]} trust=true  (if you trust who wrote its config.yaml)"
    dangers = [danger for run in runs if not trust for danger in find_dangers(run.cfg)]
    if dangers:
        raise ConfigError(replace(danger, fix=fix) for danger in dangers)
    return [Composed(dict(run.cfg), []) for run in runs]


def _title(composed: Composed) -> str:
    return f"{composed.cfg['name']} ({key_of(composed.cfg)})"


def _page_path(wish: str, composed: Composed) -> Path:
    if wish != "true":
        return Path(wish)
    return folder_of(composed.cfg, composed.overrides).parent / f"preview-{key_of(composed.cfg)}.html"


# --- The run without its weights ----------------------------------------------------------------


def _origin(composed: Composed, origins: dict[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The configuration; of a model that an earlier stage has yet to train, with the tokenizer which that one has."""
    cfg = copy.deepcopy(composed.cfg)
    earlier = origins.get(str(cfg["model"].get("path")))
    if earlier:
        own = cfg["model"]["tokenizer"]
        kept = {name: value for name, value in own.items() if value is not None and name not in ("path", "revision")}
        cfg["model"] |= {"path": earlier["path"], "tokenizer": {**earlier["tokenizer"], **kept}}
    if not Path(model := str(folder_of(composed.cfg, composed.overrides) / "model")).exists():
        origins[model] = cfg["model"]
    return cfg


def build_sheets(cfg: Mapping[str, Any], wishes: Wishes, of: str = "") -> list[Sheet]:
    """The sheets of one run: its training rows, its held-out sets, or both."""
    with tempfile.TemporaryDirectory(prefix="preview-") as place:
        light = lighten(cfg, max(SAMPLE, wishes.rows), write_stand_in(cfg, Path(place) / "model"))
        run = Run(Path(place) / "preview" / "run")
        write_config(run.folder, light)
        take_devices(run.cfg, visible_devices())
        components = build_components(run, None)
        trainer, node = components.trainer, cfg["trainer"]
        how = {"form": node["form"], "head": node["head"], "ends": ends_of(cfg, policy_of(trainer))}
        how["count"] = max(SAMPLE, wishes.rows)
        named = f"{of} train" if of else "train"
        sheets = []
        if wishes.which != "eval":
            seen = inspect_training(trainer, components.train_rows, **how)
            sheets.append(_sheet(named, seen, wishes.rows, find_faults(seen, cfg.get("tolerate"))))
        if wishes.which != "train":
            for name, rows in _held_out(components.held_out):
                seen = inspect_evaluation(trainer, name, rows, **how)
                sheets.append(_sheet(" ".join(filter(None, (of, "eval", name))), seen, wishes.rows))
    return sheets


def _held_out(rows: Any) -> list[tuple[str | None, Any]]:
    if rows is None:
        return []
    return list(rows.items()) if isinstance(rows, Mapping) else [(None, rows)]


# --- What is said of it -------------------------------------------------------------------------


def _sheet(title: str, seen: Inspection, rows: int, faults: Sequence[Fault] = ()) -> Sheet:
    shown = [replace(row, texts=to_texts(seen.tokenizer, row.ids)) for row in seen.rows if row.number < rows]
    return Sheet(title, summary_of(seen), shown, seen.goal == "score", faults)
