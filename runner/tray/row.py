"""The held-out rows of a run, apart from the training rows, which cost more and are not needed to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.config import serve

ROWS = "runner.dataset.load.load_rows"


def held_out_sets(cfg: Mapping[str, Any], to: str, keep: Sequence[str] | None = None) -> dict[str, Any]:
    """The rows of each held-out set in the form ``to``, by its name; the one set without a name is under ``""``."""
    node = dict(cfg["dataset"])
    if node["_target_"] == ROWS and isinstance(node.get("split"), Mapping):
        node["split"] = dict(node["split"]) | {"train": None}
    _, held_out = serve(node, to=to, seed=cfg["seed"], keep=keep)
    return dict(held_out) if isinstance(held_out, Mapping) else {"": held_out}
