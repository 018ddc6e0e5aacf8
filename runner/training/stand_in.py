"""The same training without what costs: few rows, and a model of a few weights in the place of large ones."""

import contextlib
import copy
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.build import asked_for, build
from runner.model.check import LOADER
from runner.model.clone import write_placeholder
from runner.run import Run, write_config
from runner.schema import upstream
from runner.schema.text import Config
from runner.training.components import build_components
from runner.training.components.model import policy_of
from runner.training.components.types import Components
from runner.training.inspection import SAMPLE, ends_of


@contextlib.contextmanager
def first_rows_prepared(cfg: Config, count: int = SAMPLE) -> Iterator[tuple[Components, dict[str, Any]]]:
    """The parts of the same training on so many rows at least, and how ``inspect_training`` is to look at them."""
    with tempfile.TemporaryDirectory(prefix="first-rows-") as folder:
        count = max(SAMPLE, count)
        run, model = Run(Path(folder) / "small" / "run"), Path(folder) / "model"
        tokenizer = {name: value for name, value in cfg["model"]["tokenizer"].items() if name != "chat_template"}
        write_placeholder(build(tokenizer), model)
        write_config(run.folder, lighten(cfg, count, model))
        components, node = build_components(run), cfg["trainer"]
        ends = ends_of(cfg, policy_of(components.trainer))
        yield components, {"form": node["form"], "head": node["head"], "ends": ends, "count": count}


def lighten(cfg: Config, rows: int, stand_in: Path) -> dict[str, Any]:
    """The same run on its first rows, with a small model for large ones, and without what only training needs."""
    light: dict[str, Any] = copy.deepcopy(dict(cfg))
    trainer, args = light["trainer"], light["trainer"]["args"]
    known = asked_for(args["_target_"])
    args |= {name: value for name, value in (upstream.ELSEWHERE | upstream.BESIDE_ROWS).items() if name in known}
    small = {"_target_": LOADER, "path": str(stand_in)}
    if cfg["model"]["_target_"] == LOADER:
        light["model"] = small | {"tokenizer": cfg["model"]["tokenizer"]}
    others = [name for name, part in trainer.items() if isinstance(part, Mapping) and part.get("_target_") == LOADER]
    trainer |= dict.fromkeys(others, small)
    if upstream.REWARD_FUNCS in asked_for(trainer["_target_"]):
        count = len(args.get(upstream.REWARD_WEIGHTS) or [1])
        light["reward"] = {f"reward{number}": {"_target_": "runner.reward.rule.length"} for number in range(count)}
    if isinstance(limit := cfg["dataset"].get("limit"), Mapping):
        light["dataset"]["limit"] |= {name: min(rows, limit.get(name) or rows) for name in ("train", "eval")}
    light |= dict.fromkeys(("peft", "quant", "optimizer", "callback", "metric"))
    return light | {"tracker": {"report_to": "none", "environment": None}}
