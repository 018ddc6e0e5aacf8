"""Dataset -> the rows that a model is asked about, by held-out set, under their numbers in the source."""

from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.build import asked_for, serve
from runner.dataset import LOADER
from runner.dataset.form import fits
from runner.errors import ConfigError, DataError, Fault, fault
from runner.schema.text import Config

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]
Keep = Sequence[str] | None  # further columns


def to_columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The columns of rows by name, as rewards and metrics take them; the prompt of a text is the text."""
    names = dict.fromkeys(name for row in rows for name in row)  # of a mixture some may have others
    columns = {name: [row.get(name) for row in rows] for name in names}
    columns["prompts"] = columns.pop("prompt") if "prompt" in columns else columns.get("text", [])
    return columns


def held_out_sets(cfg: Config, to: str, keep: Keep = None) -> dict[str, Any]:
    """The rows of each held-out set in the form ``to``, by its name; the one set without a name is under ``""``."""
    node = dict(cfg["dataset"])
    if node["_target_"] == LOADER and isinstance(node.get("split"), Mapping):
        node["split"] = dict(node["split"]) | {"train": None}
    _, held_out = serve(node, to=to, seed=cfg["seed"], keep=keep)
    return dict(held_out) if isinstance(held_out, Mapping) else {"": held_out}


def read_sets(
    cfg: Config, to: str, name: str | None = None, limit: int | None = None, falls_back: bool = False, keep: Keep = None
) -> dict[str, Rows]:
    """The rows of each set that is meant, in the form ``to``; a held-out set without a name is ``eval``.

    ``name`` is train, eval for every held-out set, or that of one. Without it they are the held-out ones, and of a
    dataset that holds nothing out the training ones if it ``falls_back``, else that is a ConfigError.
    """
    node = dict(cfg["dataset"])
    is_loaded = node["_target_"] == LOADER
    holds_out = not is_loaded or bool((node.get("split") or {}).get("eval"))
    if not (name or holds_out or falls_back):
        raise ConfigError(fault("generate.nothing_held_out"))
    if is_loaded:
        node |= {"shuffle": False, "split": dict(node.get("split") or {"train": "train"})}
    if limit is not None and "limit" in asked_for(node["_target_"]):
        node["limit"] = {"train": limit, "eval": limit}
    if name == "train" or not (name or holds_out):
        node |= {"split": node["split"] | {"eval": None}} if is_loaded else {}
        train, _ = serve(node, to=to, seed=cfg["seed"], keep=keep)
        return {"train": list(train)}
    sets = held_out_sets({**cfg, "dataset": node}, to, keep)
    sets = {each or "eval": list(rows) for each, rows in sets.items() if rows is not None}
    wanted = {name: sets[name]} if name in sets else {} if name not in (None, "eval") else sets
    if not any(wanted.values()):
        found = f"no rows in {name}" if name else "no rows"
        raise DataError(Fault("set", found, f"one of {', '.join(['train', *sets])}", "set=train"))
    return wanted


def find_prompt_fault(node: Mapping[str, Any], where: str) -> Fault | None:
    """The fault of rows without prompts, as far as the configuration of the dataset tells."""
    if fits(node.get("form"), "prompt"):
        return None
    return fault("generate.no_prompts", where=where, form=node["form"], path=node.get("path"))
