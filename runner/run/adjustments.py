"""Changes that a run makes of itself to go on from its last good checkpoint.

    rollback    it was sick: every later step has half the learning rate
    halving     memory ran out: smaller micro-batches and as many more of them

With a halving a step sees the same rows. An adjustment is written to ``adjustments.json`` before
the run begins again (``training.recovery``) and read at each start, so that a killed run goes on as
adjusted; the frozen config and what checkpoints hold stay as they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import describe
from runner.io.files import JsonObject, read_json

ROLLBACK = "rollback"
HALVING = "halving"
FILE = "adjustments.json"
# What torch and its devices say when there is no memory left, beside errors of their own kind.
OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "bad allocation",
)
Adjustment = Mapping[str, Any]


def read_adjustments(folder: Path) -> list[JsonObject]:
    """The adjustments of a run folder, oldest first."""
    content = read_json(folder / FILE) or {}
    adjustments: list[JsonObject] = content.get("adjustments", [])
    return adjustments


def count_of(adjustments: Sequence[Adjustment], kind: str) -> int:
    """The number of adjustments of a kind."""
    return [adjustment["kind"] for adjustment in adjustments].count(kind)


def count_halvings(adjustments: Sequence[Adjustment], size: str) -> int:
    """The number of adjustments that have made a batch size smaller."""
    return sum(size in adjustment.get("args", {}) for adjustment in adjustments)


def adjusted_share(adjustments: Sequence[Adjustment], done: int) -> float:
    """The share of its learning rate that the step after ``done`` steps has."""
    share = 1.0
    for adjustment in adjustments:
        if adjustment["kind"] == ROLLBACK and adjustment["from_step"] <= done:
            share /= 2
    return share


def adjust_logs(adjustments: Sequence[Adjustment], logs: dict[str, float], step: int) -> None:
    """Log the learning rate that a step had, and how often the run has adjusted itself."""
    rates = [name for name in ("learning_rate", "lr") if name in logs]
    if not rates:
        return
    for name in rates:
        logs[name] *= adjusted_share(adjustments, step - 1)
    for kind in (ROLLBACK, HALVING):
        count = count_of(adjustments, kind)
        if count:
            logs[f"{kind}s"] = count


def in_words(adjustment: Adjustment) -> str:
    """One adjustment as a line."""
    new_args = adjustment.get("args", {})
    args = [f"{name}={value}" for name, value in new_args.items()]
    change = ", ".join(args) or "half the learning rate"
    line = f"step {adjustment['step']}: {adjustment['cause']}; "
    line += f"again from step {adjustment['from_step']} with {change}"
    if "note" in adjustment:
        line += f"; {adjustment['note']}"
    return line


def is_out_of_memory(error: BaseException) -> bool:
    """True for an exception that says that the device, or the machine, has no memory left."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = describe(error)
    return any(words in text for words in OUT_OF_MEMORY)
