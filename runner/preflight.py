"""What would stop a run later, looked for before a folder is made or a heavy library imported.

The configuration is right by itself when it comes here (``check``, ``match``); this is about the world around it: files
of rows, folders of models, installed libraries, places to write. What only loading can show, the worker tells.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from runner.check.known import JUDGED, nodes
from runner.check.library import find_missing_libraries, find_other_versions
from runner.check.sharding import find_unshardable, has_devices
from runner.config import NUM_PROCESSES, Composed, world_size
from runner.dataset.check import DatasetCheck, check_dataset
from runner.errors import ConfigError, DataError, EnvironmentFault, Fault
from runner.files import hub_home
from runner.model.check import find_model_faults, find_scorer_faults, find_tokenizer_faults, read_vocab_size
from runner.model.folder import locate
from runner.run import Run, folder_of, processes_of
from runner.signature import read_signature

# What every trainer of rewards hands to them beside the columns of the rows.
HANDED = {*JUDGED, "prompts", "trainer_state", "log_extra", "log_metric", "environments"}


def check_ahead(jobs: Sequence[Sequence[Composed]], *, starts: bool = True, elsewhere: bool = False) -> None:
    """Raise an error with everything that would stop one of these runs, each of them alone or the stages of one.

    What is finished is not looked at, and a folder that an earlier stage will fill is not missed. A machine that
    only looks, which ``starts`` says, needs no libraries; GPUs may be ``elsewhere``, where a plugin starts the runs.
    """
    runs = [composed for stages in jobs for composed in stages]
    if other_worlds := [fault for composed in runs for fault in _other_worlds(composed)]:
        raise ConfigError(dict.fromkeys(other_worlds))
    folders = {folder_of(composed.cfg, composed.overrides).absolute() for composed in runs}
    to_do = [composed for composed in runs if not _is_finished(composed)]
    parts = {json.dumps(each := _looked_at(composed.cfg), sort_keys=True, default=str): each for composed in to_do}
    data = [fault for each in parts.values() for fault in _look_at_rows(each).faults]
    other = [fault for each in parts.values() for fault in _faults_of(each, folders)]
    if other:
        raise ConfigError(dict.fromkeys([*data, *other]))
    if data:
        raise DataError(dict.fromkeys(data))
    if starts and to_do and (lacking := list(_environment(to_do, elsewhere))):
        raise EnvironmentFault(dict.fromkeys(lacking))


def _is_finished(composed: Composed) -> bool:
    return Run(folder_of(composed.cfg, composed.overrides)).status()["state"] == "finished"


def _looked_at(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a configuration that are looked at here, which most jobs of a sweep have in common."""
    trainer, args = cfg["trainer"], cfg["trainer"]["args"]
    kept = {name: cfg.get(name) for name in ("dataset", "model", "peft", "reward", "metric", "tolerate")}
    own = {name: value for name, value in trainer.items() if name != "args"}
    return kept | {"trainer": own | {"args": {name: args.get(name) for name in ("max_length", "reward_model_path")}}}


# --- Rows and models --------------------------------------------------------------------------------


def _look_at_rows(cfg: Mapping[str, Any]) -> DatasetCheck:
    """What can be said of the rows of a run; of the jobs of a sweep that share them, once."""
    return _look(json.dumps(cfg["dataset"], default=str), cfg["trainer"]["form"], os.getcwd())


@lru_cache(maxsize=64)
def _look(node: str, form: str, here: str) -> DatasetCheck:
    return check_dataset(json.loads(node), form)


def _faults_of(cfg: Mapping[str, Any], folders: set[Path]) -> Iterator[Fault]:
    """A fault for each part of a run, but its rows, that could not be had or does not fit another one."""
    model, head = cfg["model"], cfg["trainer"]["head"]
    tolerate, args = cfg.get("tolerate") or {}, cfg["trainer"]["args"]
    if not _is_ahead(model.get("path"), folders):
        length = None if tolerate.get("beyond_positions") else args.get("max_length")
        found = find_model_faults(model, head, length, cfg.get("peft"))
        yield from found
        tokenizer = model.get("tokenizer") or {}
        told = found and tokenizer.get("path") == model.get("path")
        if not told and not _is_ahead(tokenizer.get("path"), folders):
            yield from find_tokenizer_faults(tokenizer, read_vocab_size(model))
    for path, node in nodes({"reward": cfg.get("reward"), "metric": cfg.get("metric"), "trainer": cfg["trainer"]}):
        yield from _paths(path, node, folders, tolerate)
    yield from _other_model("trainer.args.reward_model_path", args.get("reward_model_path"), folders, True, tolerate)
    yield from _lacking_columns(cfg)


def _is_ahead(path: Any, folders: set[Path]) -> bool:
    """Whether a path lies in the folder of a run that this command is about to train."""
    return any(Path(str(path)).absolute().is_relative_to(folder) for folder in folders)


def _paths(where: str, node: Mapping[str, Any], folders: set[Path], tolerate: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each other model of a node that could not be had."""
    target = str(node["_target_"])
    if not target.startswith(("runner.model.", "runner.reward.")):
        return
    scores = target.startswith("runner.reward.outcome.") and not node.get("random_head")
    for key in ("path", "model"):
        yield from _other_model(f"{where}.{key}", node.get(key), folders, scores, tolerate)


def _other_model(
    where: str, path: Any, folders: set[Path], scores: bool, tolerate: Mapping[str, Any]
) -> Iterator[Fault]:
    """A fault for a path that is no folder, and no name on the hub either, or for a model that cannot score texts."""
    if not isinstance(path, str) or _is_ahead(path, folders):
        return
    if scores and not tolerate.get("random_head"):
        yield from find_scorer_faults(path, where)
        return
    try:
        locate(path, where)
    except ConfigError as error:
        yield from error.faults


def _lacking_columns(cfg: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each reward that takes a column which the rows, as far as they are known, do not have."""
    columns = _look_at_rows(cfg).columns if cfg["trainer"]["form"] == "prompt" else None
    for path, node in nodes({"reward": cfg.get("reward")}) if columns else ():
        signature = read_signature(node["_target_"])
        if signature is None or not HANDED & set(signature.parameters):
            continue
        for name in sorted(set(signature.required) - set(node) - HANDED - columns):
            found = f"it takes {name}, and the rows have no such column"
            cure = f"a column {name} in the data, or {path}.{name}=<value>"
            yield Fault(path, found, f"some of {', '.join(sorted(columns))}", cure)


# --- The machine --------------------------------------------------------------------------------------


def _other_worlds(composed: Composed) -> Iterator[Fault]:
    """A fault where another launcher has started other processes than the configuration says, or none in silence."""
    world, own = world_size(), processes_of(composed.cfg)
    expected, cure = "one program that starts the processes", "python -m runner <the same words>"
    if world > 1 and (own != world or NUM_PROCESSES in composed.typed):
        found = f"{own}, in one of {world} processes that torchrun or its like has started"
        yield Fault(NUM_PROCESSES, found, expected, f"{cure}, or the same line without {NUM_PROCESSES}={own}")
    # The launcher that accelerate has for a CPU starts one process, whatever --num_processes says.
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        found = "one process, though its --num_processes is more than 1"
        yield Fault("accelerate launch", found, expected, f"{cure} {NUM_PROCESSES}={own if own > 1 else 2}")


def _environment(to_do: Sequence[Composed], elsewhere: bool) -> Iterator[Fault]:
    """A fault for each library that is missing or was not tried, and each place that must take files and does not."""
    for composed in to_do:
        yield from find_missing_libraries(composed.cfg)
        if composed.cfg["trainer"]["args"].get("use_cpu") or not (elsewhere or has_devices()):
            yield from find_unshardable(composed.cfg["trainer"]["args"])
    if not all((composed.cfg.get("tolerate") or {}).get("versions") for composed in to_do):
        yield from find_other_versions()
    yield from _closed_caches()


def _closed_caches() -> Iterator[Fault]:
    """A fault where converted rows could not be kept, as they are for every run."""
    variable = "HF_DATASETS_CACHE" if os.environ.get("HF_DATASETS_CACHE") else "HF_HOME"
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or hub_home() / "datasets").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        closed = "" if os.access(folder, os.W_OK | os.X_OK) else "it may not be written"
    except OSError as error:
        closed = str(error)
    if closed:
        cure = f"export {variable}=<a folder that you may write>"
        yield Fault(variable, f"{folder}: {closed}", "a folder for rows and models", cure)
