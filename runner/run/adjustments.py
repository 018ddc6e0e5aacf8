"""Changes that a run makes of itself to go on from its last good checkpoint, in one file: ``adjustments.json``.

    rollback    it was sick: every later step has half the learning rate
    halving     memory ran out: smaller micro-batches and as many more of them, so that a step sees the same rows

It is written before the run begins again (``training.recovery``) and read at each start, so that a killed run goes on
as adjusted; the frozen config and what checkpoints hold stay as they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import describe
from runner.io.files import read_json

ROLLBACK, HALVING = "rollback", "halving"
FILE = "adjustments.json"
# What torch and its devices say when there is no memory left, beside errors of their own kind.
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "bad allocation")


def read_adjustments(folder: Path) -> list[dict[str, Any]]:
    """The adjustments of a run folder, oldest first."""
    return (read_json(folder / FILE) or {}).get("adjustments", [])


def count_of(adjustments: Sequence[Mapping[str, Any]], kind: str) -> int:
    """The number of those of a kind."""
    return sum(each["kind"] == kind for each in adjustments)


def adjusted_share(adjustments: Sequence[Mapping[str, Any]], done: int) -> float:
    """The share of its learning rate that the step after ``done`` steps has."""
    return 0.5 ** sum(each["kind"] == ROLLBACK and each["from_step"] <= done for each in adjustments)


def adjust_logs(adjustments: Sequence[Mapping[str, Any]], logs: dict[str, float], step: int) -> None:
    """Put into what is logged of a step the learning rate that it had, and how often the run has adjusted itself."""
    rates = [name for name in ("learning_rate", "lr") if name in logs]
    logs |= {name: logs[name] * adjusted_share(adjustments, step - 1) for name in rates}
    counts = {f"{kind}s": count_of(adjustments, kind) for kind in (ROLLBACK, HALVING)}
    logs |= {name: count for name, count in counts.items() if rates and count}


def in_words(adjustment: Mapping[str, Any]) -> str:
    """One adjustment as a line."""
    args = ", ".join(f"{name}={value}" for name, value in adjustment.get("args", {}).items())
    change = args or "half the learning rate"
    again = f"again from step {adjustment['from_step']} with {change}"
    note = f"; {adjustment['note']}" if "note" in adjustment else ""
    return f"step {adjustment['step']}: {adjustment['cause']}; {again}{note}"


def is_out_of_memory(error: BaseException) -> bool:
    """True for an exception that says that the device, or the machine, has no memory left."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or (isinstance(error, RuntimeError) and any(words in describe(error) for words in OUT_OF_MEMORY))
