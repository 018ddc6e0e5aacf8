"""A configured metric, its kind, and what it returned as named numbers. Its arguments are put together elsewhere."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from runner.errors import DataError, Fault, SickRun, fault
from runner.schema.text import read_tables

OWN: dict[str, str] = read_tables(__file__)  # keys of a metric that are not its function's arguments, with their types
SAMPLED = ("completions", "completion_ids")  # arguments that decide for sampled completions, or for known answers
READ = ("scores", "log_probs", "labels", "logits")
LARGEST = 1e300  # of a number of one row, whose sum has a float, too
SAMPLES = 200  # prompts of each held-out set that are answered, unless the config says otherwise


@dataclass(frozen=True)
class Metric:
    """A metric with what the config says of it."""

    name: str
    ask: Callable[..., Any]
    kind: str  # sampled or read
    preprocess: Callable[..., Any] | None = None
    takes_logits: bool = False
    on: Sequence[str] | None = None  # held-out sets, None is all
    limit: int | None = None  # the most rows of each, None is all
    max_new_tokens: int | None = None  # of a sampled answer, None is as the trainer samples
    answers: Literal["right", "all"] = "right"  # that are read

    def measures(self, held_out: str) -> bool:
        """True where it applies to the held-out set of this name."""
        return self.on is None or held_out in self.on


def kind_of(arguments: Collection[str]) -> str:
    """The kind of a metric with these arguments: ``sampled`` completions, or answers that were ``read``."""
    return "read" if not set(SAMPLED) & set(arguments) and set(READ) & set(arguments) else "sampled"


def to_numbers(name: str, answer: object, rows: int) -> dict[str, float]:
    """The result of a metric as numbers by name, "" for the one without: a list is averaged without its Nones."""
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    if isinstance(answer, Mapping):
        return {str(key): _number(name, value) for key, value in answer.items()}
    if not isinstance(answer, Iterable) or isinstance(answer, str):
        return {"": _number(name, answer)}
    answer = list(islice(answer, rows + 1))  # it may never end
    pairs = [(value, f" for row {row} of {rows}") for row, value in enumerate(answer) if value is not None]
    values = [_number(name, *pair) for pair in pairs]
    if len(answer) != rows:
        raise DataError(fault("metric.other_count", name=name, count=len(answer), rows=rows))
    if not values:
        raise DataError(fault("metric.applies_to_none", name=name, rows=rows))
    return {"": math.fsum(values) / len(values)}


def _number(name: str, value: object, place: str = "") -> float:
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, int | float):
        kind, text = type(value).__name__, str(value)[:40]
        raise DataError(fault("metric.no_number", name=name, kind=kind, text=text, place=place))
    if not abs(value) <= LARGEST:
        found = f"{value}" if isinstance(value, float) else f"a number of {value.bit_length()} bits"
        fix = "a list with None for each row to which it does not apply, or metric=none"
        raise SickRun(Fault(f"metric.{name}", f"{found}{place}", "a finite number", fix))
    return float(value)
