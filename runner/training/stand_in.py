"""The same training without what costs: few rows, and a small model in place of large ones."""

import contextlib
import copy
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.config.build import asked_for, build
from runner.config.experiment import Experiment
from runner.io.files import JsonObject
from runner.model.clone import write_placeholder
from runner.model.node import LOADER
from runner.run import Run, write_config
from runner.schema import upstream
from runner.training.components.assembly import build_components
from runner.training.components.model import policy_of
from runner.training.components.types import Components
from runner.training.inspection import SAMPLE
from runner.training.inspection_faults import ends_of

# Groups of the configuration that the rows of a training do not depend on.
NOT_OF_ROWS = ("peft", "quant", "optimizer", "callback", "metric")


@contextlib.contextmanager
def first_rows_prepared(
    experiment: Experiment, count: int = SAMPLE
) -> Iterator[tuple[Components, JsonObject]]:
    """The parts of the same training on so many rows, with settings for ``inspect_training``."""
    count = max(SAMPLE, count)
    with tempfile.TemporaryDirectory(prefix="first-rows-") as folder:
        run = Run(Path(folder) / "small" / "run")
        model = Path(folder) / "model"
        tokenizer = dict(experiment.model.tokenizer)
        tokenizer.pop("chat_template", None)
        write_placeholder(build(tokenizer), model)
        write_config(run.folder, lighten(experiment, count, model))
        components = build_components(run)
        settings = {
            "form": experiment.trainer.form,
            "head": experiment.trainer.head,
            "ends": ends_of(experiment, policy_of(components.trainer)),
            "count": count,
        }
        yield components, settings


def lighten(experiment: Experiment, rows: int, stand_in: Path) -> JsonObject:
    """The same run on its first rows with a small model, without what only training needs."""
    light: JsonObject = copy.deepcopy(dict(experiment.node))
    trainer = light["trainer"]
    args = trainer["args"]
    fields = asked_for(args["_target_"])
    cheap = upstream.ELSEWHERE | upstream.BESIDE_ROWS
    args |= {name: value for name, value in cheap.items() if name in fields}
    small = {"_target_": LOADER, "path": str(stand_in)}
    if experiment.model.target == LOADER:
        light["model"] = {**small, "tokenizer": experiment.model.tokenizer}
    for name, part in trainer.items():
        if isinstance(part, Mapping) and part.get("_target_") == LOADER:  # a teacher, for one
            trainer[name] = small
    if "reward_funcs" in asked_for(trainer["_target_"]):
        light["reward"] = {}
        for number in range(len(args.get("reward_weights") or [1])):
            light["reward"][f"reward{number}"] = {"_target_": "runner.reward.rule.length"}
    limit = experiment.dataset.node.get("limit")
    if isinstance(limit, Mapping):
        for name in ("train", "eval"):
            light["dataset"]["limit"][name] = min(rows, limit.get(name) or rows)
    for group in NOT_OF_ROWS:
        light[group] = None
    light["tracker"] = {"report_to": "none", "environment": None}
    return light
