"""Dataset -> the rows that a model is asked about, by held-out set, in the form that the question needs.

The rows keep the order of their source, so that their number finds them again there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.config import asked_for, serve
from runner.dataset.convert import fits
from runner.errors import ConfigError, DataError, Fault
from runner.inference.words import Asked
from runner.tray.row import ROWS

Rows = list[dict[str, Any]]


def read_sets(asked: Asked, to: str, keep: Sequence[str] | None = None) -> dict[str, Rows]:
    """The rows of each set that is meant, in the form ``to``; a held-out set without a name is ``eval``.

    Without a word they are the held-out ones, and those of a dataset that holds nothing out are the training ones.
    """
    node, wish = dict(asked.cfg["dataset"]), asked.options.get("set")
    which = _which(asked, node, wish)
    if node["_target_"] == ROWS:
        node["shuffle"] = False
        split = dict(node.get("split") or {"train": "train"})
        node["split"] = split | ({"eval": None} if which == "train" else {"train": None})
    if "limit" in asked_for(node["_target_"]) and "limit" in asked.options:
        node["limit"] = dict.fromkeys(("train", "eval"), asked.options["limit"])
    train, held_out = serve(node, to=to, seed=asked.cfg.get("seed", 0), keep=keep)
    if which == "train":
        return {"train": list(train)}
    sets = dict(held_out) if isinstance(held_out, Mapping) else {"": held_out}
    sets = {name or "eval": list(rows) for name, rows in sets.items() if rows is not None}
    return _chosen(sets, wish)


def find_form_fault(asked: Asked, to: str, where: str) -> Fault | None:
    """The fault of rows that cannot take this form, as far as the configuration tells."""
    node = asked.cfg["dataset"]
    if fits(node.get("form"), to):
        return None
    found = (
        f"{node['form']} rows ({node.get('path')}), which have no {'prompts' if to == 'prompt' else 'known answers'}"
    )
    return Fault(where, found, "other rows", "dataset=<one with them>")


def _which(asked: Asked, node: Mapping[str, Any], wish: str | None) -> str:
    """train or eval, whichever holds the set that is meant."""
    if wish:
        return "train" if wish == "train" else "eval"
    held_out = (node.get("split") or {}).get("eval") if node["_target_"] == ROWS else True
    if held_out or "dataset" in asked.chosen:
        return "eval" if held_out else "train"
    cure = "set=train, or dataset.split.eval=<split>, or file=<rows>"
    raise ConfigError(Fault("set", "the run holds out no rows", "which rows to take", cure))


def _chosen(sets: dict[str, Rows], wish: str | None) -> dict[str, Rows]:
    wanted = {wish: sets[wish]} if wish in sets else {} if wish not in (None, "eval") else sets
    if not any(wanted.values()):
        found = f"no rows in {wish}" if wish else "no rows"
        raise DataError(Fault("set", found, f"one of {', '.join(['train', *sets])}", "set=train"))
    return wanted
