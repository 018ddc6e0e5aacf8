"""A trainer's settings and the lengths of its rows -> how many rows and steps a training takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.run import processes_of
from runner.schema import read_signature
from runner.schema.upstream import cycle_steps

COMPLETION_LENGTHS = ("max_completion_length", "response_length", "max_new_tokens")
WHOLE_BATCHES = {"num_generations", "num_ppo_epochs"}  # fields of trainers that leave out a last batch not full


@dataclass(frozen=True)
class Rows:
    """The rows to train on: tokens of those that were looked at, and how many there are in all.

    ``lengths`` are those of sequences as they are trained, or of prompts; ``limit`` cuts them. ``total`` is None where
    nobody knows.
    """

    lengths: Sequence[int]
    limit: int | None = None
    total: float | None = None

    @property
    def longest(self) -> int:
        return max(self.lengths, default=1)

    @property
    def mean(self) -> float:
        return sum(self.lengths) / max(1, len(self.lengths))

    def padded(self, rows: int) -> float:
        """The mean width of batches of so many rows, each as wide as its longest."""
        groups = [self.lengths[start : start + rows] for start in range(0, len(self.lengths), rows)] or [[1]]
        return sum(map(max, groups)) / len(groups)


def fields_of(args: Mapping[str, Any]) -> set[str]:
    """The fields of a trainer's config object."""
    signature = read_signature(args["_target_"])
    return set(signature.parameters) if signature else set()


def setting(args: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """The value of a field of the trainer's config: as it is set, or its default where that is written down."""
    if args.get(name) is not None:
        return args[name]
    signature = read_signature(args["_target_"])
    found = signature.parameters[name].default if signature and name in signature.parameters else None
    return found if isinstance(found, bool | int | float | str) else otherwise


def batch_size(args: Mapping[str, Any]) -> int:
    return int(setting(args, "per_device_train_batch_size", 8))


def cycle_of(args: Mapping[str, Any]) -> int:
    """Optimizer steps from one generation to the next, from the arguments as they are written."""
    whole, names = args.get("generation_batch_size"), ("gradient_accumulation_steps", "num_iterations")
    micro = args.get("steps_per_generation") or (whole and max(1, whole // batch_size(args)))
    return cycle_steps({"steps_per_generation": micro} | {name: setting(args, name, 1) for name in names})


def rows_per_step(args: Mapping[str, Any]) -> float:
    """Rows of the dataset that one process draws for an optimizer step, on average."""
    rows = batch_size(args) * setting(args, "gradient_accumulation_steps", 1)
    return rows / (setting(args, "num_generations", 1) * setting(args, "num_iterations", 1))


def steps_of(cfg: Mapping[str, Any], rows: Rows) -> int | None:
    """Optimizer steps of the whole training; None where nobody knows how many rows there are."""
    args = cfg["trainer"]["args"]
    if (most := setting(args, "max_steps", -1)) and most > 0:
        return int(most)
    share = rows_per_step(args) * processes_of(cfg)
    if episodes := args.get("total_episodes"):
        return math.ceil(episodes / share)
    if rows.total is None:
        return None
    total = rows.total
    if setting(args, "packing", False) and rows.limit:
        total = math.ceil(total * rows.mean / rows.limit)
    whole = math.floor if WHOLE_BATCHES & fields_of(args) else math.ceil
    return math.ceil(whole(total / share) * float(setting(args, "num_train_epochs", 3.0)))


def completion_of(cfg: Mapping[str, Any]) -> int:
    """Most tokens of a completion that is sampled after each prompt; 0 where rows hold their completions."""
    args = cfg["trainer"]["args"]
    if cfg["trainer"]["form"] != "prompt":
        return 0
    return next((int(setting(args, name)) for name in COMPLETION_LENGTHS if setting(args, name)), 0)
