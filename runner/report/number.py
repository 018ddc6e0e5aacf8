"""Numbers, spreads and values of a configuration as text for people."""

from collections.abc import Mapping, Sequence
from math import fsum, sqrt
from statistics import fmean

from runner.io.visible import to_visible
from runner.schema.literal import number, to_text
from runner.schema.text import flatten


def format_spread(mean: float | None, sd: float | None) -> str:
    """A mean with its standard deviation, or the mean alone where there is no deviation."""
    if mean is None or sd is None:
        return number(mean)
    scale = max(1.0, abs(mean))
    if sd <= 1e-12 * scale:  # equal values whose mean was rounded
        sd = 0.0
    # All digits before the point of a large deviation, two digits of a small one.
    whole_part = str(round(sd))
    digits = max(2, len(whole_part))
    return f"{number(mean)} ± {number(sd, digits)}"


def sample_sd(values: Sequence[float]) -> float | None:
    """The sample standard deviation of some values; None for fewer than two."""
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return 0.0
    mean = fmean(values)
    squares = [(value - mean) ** 2 for value in values]
    # ``statistics.stdev`` computes with fractions, which takes ten times as long.
    return sqrt(fsum(squares) / (len(values) - 1))


def format_difference(before: float | None, after: float | None) -> str:
    """The change from one number to another with its sign; empty where one of them is missing."""
    if before is None or after is None:
        return ""
    change = number(after - before, 3)
    sign = "+" if after > before else ""  # a minus is part of the number
    return f"{sign}{change}"


def format_value(value: object) -> str:
    """A value of a configuration as a table shows it.

    Numbers are short, texts have no quotes, and a node is its class with its arguments.
    """
    if isinstance(value, Mapping):
        arguments = []
        for key, argument in flatten(value).items():
            if key != "_target_":
                arguments.append(f"{key}={format_value(argument)}")
        inner = ", ".join(arguments)
        target = str(value.get("_target_", ""))
        _, _, class_name = target.rpartition(".")
        if not class_name:
            return f"{{{inner}}}"
        return f"{class_name}({inner})"
    if isinstance(value, float):
        return number(value, 6)
    if isinstance(value, str):
        return value
    return to_text(value)


def format_typed(value: object, typed: str | None) -> str:
    """A value as a table shows it: a number as it was typed, where that is known.

    >>> format_typed(0.0001, "1e-4"), format_typed(0.0001, "2e-4"), format_typed("1e-4", None)
    ('1e-4', '0.0001', '1e-4')
    """
    if typed and isinstance(value, int | float) and float(typed) == value:
        return typed
    return format_value(value)


def short(text: str, width: int) -> str:
    """A text of at most ``width`` characters, cut in its middle, where names differ least."""
    text = to_visible(text)
    if len(text) <= width:
        return text
    letters_left = width - 1  # beside the sign of the cut
    tail_width = letters_left // 2
    head_width = letters_left - tail_width
    head = text[:head_width]
    tail = text[len(text) - tail_width :]
    return f"{head}…{tail}"


def plural(count: int, noun: str) -> str:
    """A count with its noun: ``1 run``, ``2 runs``."""
    ending = "" if count == 1 else "s"
    return f"{count} {noun}{ending}"


def format_duration(seconds: float) -> str:
    """A duration as people read it: ``42 s``, ``3:07``, ``1:05 h``."""
    whole_seconds = round(seconds)
    minutes, rest = divmod(whole_seconds, 60)
    if minutes <= 0:  # also of a clock that was set back
        return f"{whole_seconds} s"
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02} h"
