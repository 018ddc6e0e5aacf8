"""Numbers, spreads and values of a configuration as text for people."""

from collections.abc import Mapping

from runner.io.visible import to_visible
from runner.schema.text import flatten, number, to_text


def spread(mean: float | None, sd: float | None) -> str:
    """A mean, which is written as it is without one, with its standard deviation."""
    if mean is None or sd is None:
        return number(mean)
    sd = sd if sd > 1e-12 * max(1.0, abs(mean)) else 0.0
    return f"{number(mean)} ± {number(sd, max(2, len(str(round(sd)))))}"


def difference(before: float | None, after: float | None) -> str:
    """The way from one number to another with its sign; nothing where one of them is missing."""
    return "" if before is None or after is None else f"{'+' if after > before else ''}{number(after - before, 3)}"


def value(entry: object) -> str:
    """A value of a configuration as in a table: a number short, a text without quotes, of a node its class and keys."""
    if isinstance(entry, Mapping):
        called = str(entry.get("_target_", "")).rpartition(".")[2]
        inner = ", ".join(f"{key}={value(inner)}" for key, inner in flatten(entry).items() if key != "_target_")
        return f"{called}({inner})" if called else f"{{{inner}}}"
    if isinstance(entry, float):
        return number(entry, 6)
    return entry if isinstance(entry, str) else to_text(entry)


def short(text: str, width: int) -> str:
    """A text cut in its middle, where names differ least."""
    text = to_visible(text)
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def plural(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """A time as people read it."""
    if (whole := round(seconds)) < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"
