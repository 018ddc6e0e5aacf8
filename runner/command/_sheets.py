"""The sheets of a preview: the rows of a run as the model will see them."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.experiment import Experiment, ModelPart
from runner.config.resolution import Composed
from runner.errors import Fault
from runner.launch.processes import take_devices, visible_devices
from runner.model.encoding import to_texts
from runner.model.node import LOADER
from runner.report.tokens import Sheet
from runner.run.key import folder_of, key_of
from runner.schema.text import Config

if TYPE_CHECKING:
    from runner.training.inspection import Inspection


def find_tokenizers(runs: Sequence[Composed]) -> Iterator[dict[str, Any]]:
    """The configurations with tokenizers that are there.

    A stage may begin with a model that an earlier one has yet to train. It gets the path and the
    tokenizer of that one.
    """
    # The models that stages begin with, by the folder that each will fill.
    earlier_models: dict[str, Mapping[str, Any]] = {}
    for composed in runs:
        cfg = copy.deepcopy(composed.cfg)
        model = cfg["model"]
        start = earlier_models.get(str(model.get("path")))
        if start:
            settings = {**start["tokenizer"]}
            for name, value in model["tokenizer"].items():
                if value is not None and name not in ("path", "revision"):
                    settings[name] = value
            model["path"] = start["path"]
            model["tokenizer"] = settings
        folder = folder_of(composed.cfg, composed.overrides) / "model"
        if not folder.exists():
            earlier_models[str(folder)] = model
        yield cfg


def build_sheets(cfg: Config, count: int, sets: str, stage: str = "") -> list[Sheet]:
    """The sheets of a run, each with ``count`` rows.

    ``sets`` is ``train``, ``eval`` for the held-out sets, or ``all``.
    """
    from runner.training.inspection import inspect_training
    from runner.training.inspection_faults import find_faults
    from runner.training.stand_in import first_rows_prepared

    # The small model that stands in for a large one is on one device, whatever the ``device_map``
    # of that one says.
    experiment = Experiment.read(cfg)
    is_stand_in = experiment.model.target == LOADER
    take_devices(ModelPart() if is_stand_in else experiment.model, visible_devices())
    sheets = []
    with first_rows_prepared(experiment, count) as (components, settings):
        trainer = components.trainer
        if sets != "eval":
            inspection = inspect_training(trainer, components.train_rows, **settings)
            faults = find_faults(inspection, experiment.tolerate)
            sheets.append(_to_sheet(f"{stage} train", inspection, count, faults))
        if sets == "train":
            return sheets
        held_out = components.held_out
        if held_out is None:
            return sheets
        if not isinstance(held_out, Mapping):
            prepared = trainer.eval_dataset
            inspection = inspect_training(trainer, held_out, **settings, held_out=prepared)
            return [*sheets, _to_sheet(f"{stage} eval", inspection, count)]
        for name, rows in held_out.items():
            prepared = trainer.eval_dataset[name]
            inspection = inspect_training(trainer, rows, **settings, held_out=prepared)
            sheets.append(_to_sheet(f"{stage} eval {name}", inspection, count))
    return sheets


def _to_sheet(
    title: str, inspection: "Inspection", count: int, faults: Sequence[Fault] = ()
) -> Sheet:
    """The sheet of the first rows that were looked at."""
    from runner.training.inspection_faults import summary_of

    shown = []
    for row in inspection.rows:
        if row.number < count:
            shown.append(replace(row, texts=to_texts(inspection.tokenizer, row.ids)))
    is_scored = inspection.goal == "score"
    return Sheet(title.strip(), summary_of(inspection), shown, is_scored, faults)


# --- The page -------------------------------------------------------------------------------------
def title_of(runs: Sequence[Composed]) -> str:
    """The title of a preview, which names its runs, or the stages of one."""
    first = runs[0]
    if first.stage:
        name = str(first.experiment.name).removesuffix(f"-{first.stage}")
        stage_names = ", ".join(composed.stage for composed in runs)
        return f"What {name} trains on: {stage_names}"
    names = []
    for composed in runs:
        key = key_of(composed.cfg)
        names.append(f"{composed.experiment.name} ({key})")
    return f"What {', '.join(names)} trains on"


def page_file(first: Composed, html: str) -> Path:
    """The file of the page, by default one that the configuration names."""
    if html not in ("", "true"):
        return Path(html)
    folder = folder_of(first.cfg, first.overrides).parent
    return folder / f"preview-{key_of(first.cfg)}.html"
