"""Shows some rows as the model will see them."""

import copy
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.command import CommandLine, options_of, split_options
from runner.config import Composed
from runner.config.experiment import Experiment, ModelPart
from runner.errors import ConfigError, Fault
from runner.io.files import write_text
from runner.io.terminal import print_error, quiet, shows_colours
from runner.launch.compose import stages
from runner.launch.processes import take_devices, visible_devices
from runner.model.check import LOADER
from runner.model.encoding import to_texts
from runner.report.page import to_preview_page
from runner.report.tokens import MAX_WIDTH, Sheet, format_sheet
from runner.run.key import folder_of, key_of
from runner.run.record import check_whole, find_runs
from runner.validate import find_dangers, find_frozen_faults
from runner.validate.hub_names import settle_hub
from runner.validate.start import check_parts


def main(line: CommandLine) -> int:
    """Print the preview of what the command line means, and return 2 where a training would be refused."""
    options, overrides, faults = split_options(line.overrides, options_of("preview"), "preview")
    ConfigError.refuse(faults)
    if line.runs:
        if overrides:
            words = " ".join(overrides)
            fix_text = f"preview {line.runs[0]}"
            raise ConfigError(
                Fault(
                    where="command line",
                    found=f"{words}",
                    expected="either a run, which is frozen, or overrides",
                    fix=f"python -m runner {fix_text}",
                )
            )
        records = find_runs(line.runs, "preview", len(line.runs))
        for record in records:
            check_whole(record)
        if not options.get("trust"):  # a folder can come from anybody
            fix = f"python -m runner preview {line.runs[0]} trust=true  (if you trust who wrote its config.yaml)"
            ConfigError.refuse(
                danger for record in records for danger in find_dangers(record.run.cfg, fix)
            )
        frozen = [record.run for record in records]
        ConfigError.refuse(
            each for run in frozen for each in find_frozen_faults(run.cfg, f"{run}/config.yaml")
        )
        runs = [Composed(dict(run.cfg), []) for run in frozen]
    else:
        runs = stages.compose_runs(overrides, line.folders)
    check_parts([runs])
    settle_hub([composed.cfg for composed in runs])
    with quiet():
        sheets, count, which = list[Sheet](), options.get("rows", 3), options.get("set", "train")
        for composed, cfg in zip(runs, _with_tokenizers(runs), strict=True):
            sheets += build_sheets(cfg, count, which, composed.stage)
    first, names = (
        runs[0],
        [each.stage or f"{each.cfg['name']} ({key_of(each.cfg)})" for each in runs],
    )
    title = f"What {', '.join(names)} trains on"
    if first.stage:
        title = f"What {first.cfg['name'].removesuffix(f'-{first.stage}')} trains on: {', '.join(names)}"
        print(f"{title}\n")
    width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)
    print(
        "\n".join(
            format_sheet(sheet, colour=shows_colours(sys.stdout), width=width) for sheet in sheets
        ),
        flush=True,
    )
    if (html := options.get("html", "false")) not in ("false", "null"):
        default = folder_of(first.cfg, first.overrides).parent / f"preview-{key_of(first.cfg)}.html"
        path = default if html in ("", "true") else Path(html)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, to_preview_page(title, sheets))
        print(f"page      {path}", flush=True)
    if faults := [each for sheet in sheets for each in sheet.faults]:
        print_error(ConfigError(dict.fromkeys(faults)))
        return ConfigError.code
    return 0


def _with_tokenizers(runs: Sequence[Composed]) -> Iterator[dict[str, Any]]:
    """The configurations; of a model that an earlier stage has yet to train, with the tokenizer which that one has."""
    # the model of a stage, by the folder that it will fill
    earlier: dict[str, Mapping[str, Any]] = {}
    for composed in runs:
        cfg = copy.deepcopy(composed.cfg)
        if start := earlier.get(str(cfg["model"].get("path"))):
            own = {
                name: value
                for name, value in cfg["model"]["tokenizer"].items()
                if value is not None
            }
            own = {name: value for name, value in own.items() if name not in ("path", "revision")}
            cfg["model"] |= {"path": start["path"], "tokenizer": {**start["tokenizer"], **own}}
        if not Path(model := str(folder_of(composed.cfg, composed.overrides) / "model")).exists():
            earlier[model] = cfg["model"]
        yield cfg


def build_sheets(cfg: Mapping[str, Any], count: int, sets: str, stage: str = "") -> list[Sheet]:
    """The sheets of one run, with so many rows: its training rows, its held-out sets, or both."""
    from runner.training.inspection import Inspection, inspect_training
    from runner.training.inspection_faults import find_faults, summary_of
    from runner.training.stand_in import first_rows_prepared

    def to_sheet(title: str, seen: Inspection, faults: Sequence[Fault] = ()) -> Sheet:
        shown = [
            replace(row, texts=to_texts(seen.tokenizer, row.ids))
            for row in seen.rows
            if row.number < count
        ]
        return Sheet(title, summary_of(seen), shown, seen.goal == "score", faults)

    # The small model that stands in for a large one is on one device, whatever the ``device_map``
    # of that one says.
    take_devices(
        ModelPart() if cfg["model"]["_target_"] == LOADER else Experiment.read(cfg).model,
        visible_devices(),
    )
    with first_rows_prepared(Experiment.read(cfg), count) as (components, how):
        trainer, sheets = components.trainer, []
        if sets != "eval":
            seen = inspect_training(trainer, components.train_rows, **how)
            sheets.append(
                to_sheet(
                    f"{stage} train".strip(), seen, find_faults(seen, Experiment.read(cfg).tolerate)
                )
            )
        held_out = components.held_out if sets != "train" else None
        if not isinstance(held_out, Mapping):
            held_out = {} if held_out is None else {None: held_out}
        for name, rows in held_out.items():
            prepared = trainer.eval_dataset if name is None else trainer.eval_dataset[name]
            seen = inspect_training(trainer, rows, **how, held_out=prepared)
            sheets.append(to_sheet(" ".join(filter(None, (stage, "eval", name))), seen))
        return sheets
