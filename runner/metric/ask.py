"""A configured metric, its kind, and what it returned as named numbers.

Its arguments are put together elsewhere.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from runner.errors import DataError, Fault, SickRun

# Arguments that only metrics of sampled completions have, or only those of known answers.
SAMPLED = ("completions", "completion_ids")
READ = ("scores", "log_probs", "labels", "logits")
LIVE = ("live_model",)  # of metrics that ask the model themselves, whatever the rows are
LARGEST = 1e300  # of a number of one row, so that the sum of many is still a float
SAMPLES = 200  # prompts of each held-out set that are answered, unless the config says otherwise


@dataclass(frozen=True)
class Metric:
    """A metric with what the config says of it."""

    name: str
    ask: Callable[..., object]
    kind: str  # sampled, read or live
    preprocess: Callable[..., object] | None = None
    takes_logits: bool = False
    on: Sequence[str] | None = None  # held-out sets; None is all
    limit: int | None = None  # the most rows of each; None is all
    max_new_tokens: int | None = None  # of a sampled answer; None is as the trainer samples
    answers: Literal["right", "all"] = "right"  # that are read

    def measures(self, held_out: str) -> bool:
        """True where it applies to the held-out set of this name."""
        return self.on is None or held_out in self.on


def kind_of(arguments: Collection[str]) -> str:
    """The kind of a metric by its arguments.

    That is ``sampled`` completions, ``read`` answers, or ``live`` with the model itself.
    """
    if not set(LIVE).isdisjoint(arguments):
        return "live"
    is_sampled = not set(SAMPLED).isdisjoint(arguments)
    is_read = not set(READ).isdisjoint(arguments)
    return "read" if is_read and not is_sampled else "sampled"


def ask_live(metric: Metric, model: object, tokenizer: object) -> dict[str, float]:
    """The numbers of a metric that asks the model itself, by their names."""
    answer = metric.ask(live_model=model, tokenizer=tokenizer, limit=metric.limit)
    figures = {}
    for part, value in to_numbers(metric.name, answer, 0).items():
        name = f"{metric.name}_{part}".rstrip("_")  # of a single number the part is empty
        figures[name] = value
    return figures


def to_numbers(name: str, answer: object, rows: int) -> dict[str, float]:
    """The result of a metric as numbers by name; "" is the name of a single one.

    A list has one number for each row, or None, and is averaged without its Nones. Raises
    DataError for anything else, SickRun for a number that is not finite.
    """
    if hasattr(answer, "tolist"):  # a tensor or an array
        answer = answer.tolist()
    if isinstance(answer, Mapping):
        return {str(key): _number(name, value) for key, value in answer.items()}
    if not isinstance(answer, Iterable) or isinstance(answer, str):
        return {"": _number(name, answer)}
    values = []
    count = 0
    for row, value in enumerate(islice(answer, rows + 1)):  # it may never end
        count += 1
        if value is not None:
            values.append(_number(name, value, f" for row {row} of {rows}"))
    if count != rows:
        raise DataError(
            Fault(
                where=f"metric.{name}",
                found=f"{count} numbers for {rows} rows",
                expected="one number for each row, or one for all",
            )
        )
    if not values:
        raise DataError(
            Fault(
                where=f"metric.{name}",
                found=f"None for each of {rows} rows",
                expected="a row to which it applies",
                fix="=null",
            )
        )
    return {"": math.fsum(values) / len(values)}


def _number(name: str, value: object, place: str = "") -> float:
    """A value of a metric as a float; ``place`` says of which row it is."""
    if hasattr(value, "item"):  # a tensor or an array of one number
        value = value.item()
    if not isinstance(value, int | float):
        text = str(value)[:40]
        raise DataError(
            Fault(
                where=f"metric.{name}",
                found=f"{type(value).__name__} {text!r}{place}",
                expected="a number, a number or None per row, or numbers by name",
            )
        )
    if not abs(value) <= LARGEST:
        is_float = isinstance(value, float)
        found = f"{value}" if is_float else f"a number of {int(value).bit_length()} bits"
        raise SickRun(
            Fault(
                where=f"metric.{name}",
                found=f"{found}{place}",
                expected="a finite number",
                fix="a list with None for each row to which it does not apply, or metric=none",
            )
        )
    return float(value)
