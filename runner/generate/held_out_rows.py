"""Dataset -> the rows that a model is asked about, by held-out set."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from runner.config.build import asked_for, serve
from runner.config.experiment import Experiment
from runner.dataset import LOADER
from runner.dataset.form import fits
from runner.errors import ConfigError, DataError, Fault
from runner.io.files import JsonObject
from runner.io.turns import Row
from runner.schema.text import Node

Rows: TypeAlias = list[JsonObject]
Keep: TypeAlias = Sequence[str] | None  # further columns


def to_columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The columns of rows by name, as rewards and metrics take them; a text is its own prompt."""
    # Of a mixture some rows may have columns that others lack.
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    if "prompt" in columns:
        columns["prompts"] = columns.pop("prompt")
    else:
        columns["prompts"] = columns.get("text", [])
    return columns


def held_out_sets(experiment: Experiment, to: str, keep: Keep = None) -> dict[str, Any]:
    """The rows of each held-out set in the form ``to``, by its name, ``""`` where it has none."""
    return _held_out_sets(experiment, experiment.dataset.node, to, keep)


def _held_out_sets(experiment: Experiment, dataset: Node, to: str, keep: Keep) -> dict[str, Any]:
    """The rows of each held-out set of a dataset's node."""
    node = dict(dataset)
    if node["_target_"] == LOADER and isinstance(node.get("split"), Mapping):
        node["split"] = {**node["split"], "train": None}
    _, held_out = _serve(experiment, node, to, keep)
    if not isinstance(held_out, Mapping):
        return {"": held_out}
    return dict(held_out)


def read_sets(
    experiment: Experiment,
    to: str,
    name: str | None = None,
    limit: int | None = None,
    falls_back: bool = False,
    keep: Keep = None,
) -> dict[str, Rows]:
    """The rows of each set that is asked for, in the form ``to``, by its name.

    ``name`` is train, eval for every held-out set, or that of one; a set without a name is eval.
    Without ``name`` they are the held-out sets. Where a dataset holds nothing out they are the
    training rows if it ``falls_back``; else that is a ConfigError.
    """
    node = dict(experiment.dataset.node)
    is_loaded = node["_target_"] == LOADER
    holds_out = not is_loaded or bool((node.get("split") or {}).get("eval"))
    if not (name or holds_out or falls_back):
        raise ConfigError(
            Fault(
                where="set",
                found="the run holds out no rows",
                expected="which rows to take",
                fix="=train, or dataset.split.eval=<split>, or file=<rows>",
            )
        )
    if is_loaded:
        node["shuffle"] = False
        node["split"] = dict(node.get("split") or {"train": "train"})
    if limit is not None and "limit" in asked_for(node["_target_"]):
        node["limit"] = {"train": limit, "eval": limit}
    if name == "train" or not (name or holds_out):
        return {"train": _training_rows(experiment, node, to, keep)}

    sets = {}
    for set_name, rows in _held_out_sets(experiment, node, to, keep).items():
        if rows is not None:
            sets[set_name or "eval"] = list(rows)
    wanted = sets
    if name in sets:
        wanted = {name: sets[name]}
    elif name not in (None, "eval"):
        wanted = {}
    if not any(wanted.values()):
        raise DataError(
            Fault(
                where="set",
                found=f"no rows in {name}" if name else "no rows",
                expected=f"one of {', '.join(['train', *sets])}",
                fix="set=train",
            )
        )
    return wanted


def _training_rows(experiment: Experiment, node: Node, to: str, keep: Keep) -> Rows:
    node = dict(node)
    if node["_target_"] == LOADER:
        node["split"] = {**node["split"], "eval": None}
    train, _ = _serve(experiment, node, to, keep)
    return list(train)


def _serve(experiment: Experiment, node: Node, to: str, keep: Keep) -> Any:
    """The training rows and the held-out rows of a dataset's node."""
    environment = experiment.environment
    return serve(node, to=to, seed=experiment.seed, keep=keep, environment=environment)


def find_prompt_fault(node: Node, where: str) -> Fault | None:
    """The fault of rows without prompts, as far as the configuration of the dataset tells."""
    if fits(node.get("form"), "prompt"):
        return None
    return Fault(
        where=where,
        found=f"{node['form']} rows ({node.get('path')}), which have no prompts",
        expected="other rows",
        fix="dataset=<one with them>",
    )
