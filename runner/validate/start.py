"""Faults that would stop a run later, looked for before a folder is made or a heavy library imported.

The configuration is right by itself when it comes here; this is about the world around it: rows, folders of models, and
the machine (``environment``). What only loading can show, the worker reports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from runner.config import Composed
from runner.dataset.check import DatasetCheck, check_dataset
from runner.errors import ConfigError, DataError, EnvironmentFault, Fault
from runner.model.check import find_model_faults, find_scorer_faults, find_tokenizer_faults, read_vocab_size
from runner.model.folder import find_folder
from runner.run import Run
from runner.run.key import folder_of
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.text import Config, nodes
from runner.validate.context import JUDGED
from runner.validate.environment import find_environment_faults, find_other_worlds

# Arguments that every trainer of rewards gives to them beside the columns of the rows.
GIVEN_TO_REWARDS = {*JUDGED, "prompts", "trainer_state", "log_extra", "log_metric", "environments"}


def check_ahead(jobs: Sequence[Sequence[Composed]], *, starts: bool = True, elsewhere: bool = False) -> None:
    """Raise an error with everything that would stop one of these runs, each of them alone or the stages of one.

    What is finished is not looked at, and a folder that an earlier stage will fill is not missed. A machine that
    only looks, which ``starts`` says, needs no libraries; GPUs may be ``elsewhere``, where a plugin starts the runs.
    """
    runs = [composed for stages in jobs for composed in stages]
    if other_worlds := [fault for composed in runs for fault in find_other_worlds(composed)]:
        raise ConfigError(dict.fromkeys(other_worlds))
    folders = {folder_of(composed.cfg, composed.overrides).absolute(): composed for composed in runs}
    to_do = [composed for folder, composed in folders.items() if Run(folder).status()["state"] != "finished"]
    parts = {json.dumps(each := _read_parts(composed.cfg), sort_keys=True, default=str): each for composed in to_do}
    data = [fault for each in parts.values() for fault in _look_at_rows(each).faults]
    other = [fault for each in parts.values() for fault in _find_faults(each, set(folders))]
    if other:
        raise ConfigError(dict.fromkeys([*data, *other]))
    if data:
        raise DataError(dict.fromkeys(data))
    if starts and to_do and (lacking := list(find_environment_faults(to_do, elsewhere))):
        raise EnvironmentFault(dict.fromkeys(lacking))


def _read_parts(cfg: Config) -> dict[str, Any]:
    """The parts of a configuration that are read here, which most jobs of a sweep have in common."""
    trainer, args = cfg["trainer"], cfg["trainer"]["args"]
    parts = {name: cfg.get(name) for name in ("dataset", "model", "peft", "reward", "metric", "tolerate")}
    fields = {name: args.get(name) for name in ("max_length", upstream.REWARD_MODEL_PATH)}
    return {**parts, "trainer": {**trainer, "args": fields}}


def _look_at_rows(cfg: Config) -> DatasetCheck:
    """The check of a run's rows; for the jobs of a sweep that share them, done once."""
    return _look_once(json.dumps(cfg["dataset"], default=str), cfg["trainer"]["form"], os.getcwd())


@lru_cache(maxsize=64)
def _look_once(node: str, form: str, here: str) -> DatasetCheck:
    return check_dataset(json.loads(node), form)


def _find_faults(cfg: Config, folders: set[Path]) -> Iterator[Fault]:
    """A fault for each part of a run, but its rows, that could not be had or does not fit another one."""
    model, tokenizer = cfg["model"], cfg["model"].get("tokenizer") or {}
    tolerate, args = cfg.get("tolerate") or {}, cfg["trainer"]["args"]
    if not _is_ahead(model.get("path"), folders):
        length = None if tolerate.get("beyond_positions") else args.get("max_length")
        found = find_model_faults(model, cfg["trainer"]["head"], length, cfg.get("peft"))
        yield from found
        is_known = found and tokenizer.get("path") == model.get("path")
        if not is_known and not _is_ahead(tokenizer.get("path"), folders):
            yield from find_tokenizer_faults(tokenizer, read_vocab_size(model))
    others: dict[str, tuple[object, bool]] = {}
    for path, node in nodes({"reward": cfg.get("reward"), "metric": cfg.get("metric"), "trainer": cfg["trainer"]}):
        if str(node["_target_"]).startswith(("runner.model.", "runner.reward.")):
            scores = node["_target_"].startswith("runner.reward.outcome.") and not node.get("random_head")
            others |= {f"{path}.{key}": (node.get(key), scores) for key in ("path", "model")}
    others[f"trainer.args.{upstream.REWARD_MODEL_PATH}"] = (args.get(upstream.REWARD_MODEL_PATH), True)
    for where, (path_of_other, scores) in others.items():
        if not isinstance(path_of_other, str) or _is_ahead(path_of_other, folders):
            continue
        if scores and not tolerate.get("random_head"):
            yield from find_scorer_faults(path_of_other, where)
            continue
        try:
            find_folder(path_of_other, where)
        except ConfigError as error:
            yield from error.faults
    yield from _lacking_columns(cfg)


def _is_ahead(path: Any, folders: set[Path]) -> bool:
    """True for a path in the folder of a run that this command is about to train."""
    return any(Path(str(path)).absolute().is_relative_to(folder) for folder in folders)


def _lacking_columns(cfg: Config) -> Iterator[Fault]:
    """A fault for each reward that takes a column which the rows, as far as they are known, do not have."""
    columns = _look_at_rows(cfg).columns if cfg["trainer"]["form"] == "prompt" else None
    for path, node in nodes({"reward": cfg.get("reward")}):
        signature = read_signature(node["_target_"])
        if not columns or signature is None or not GIVEN_TO_REWARDS & set(signature.parameters):
            continue
        for name in sorted(set(signature.required) - set(node) - GIVEN_TO_REWARDS - columns):
            found = f"it takes {name}, and the rows have no such column"
            fix = f"a column {name} in the data, or {path}.{name}=<value>"
            yield Fault(path, found, f"some of {', '.join(sorted(columns))}", fix)
