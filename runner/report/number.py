"""Numbers, spreads and values of a configuration as text for people."""

import math
from collections.abc import Mapping

from runner.io.visible import to_visible
from runner.schema.text import flatten, number, to_text


def spread(mean: float | None, sd: float | None) -> str:
    """A mean with its standard deviation, both to the second digit that the deviation leaves certain.

    >>> spread(0.62499, 0.08839), spread(0.5, None), spread(1234.5, 123.4), spread(0.5, 0.0), spread(0.69134, 2e-6)
    ('0.625 ± 0.088', '0.5', '1234 ± 123', '0.5 ± 0', '0.69134 ± 2e-6')
    """
    if mean is None or sd is None:
        return number(mean)
    if sd <= 1e-12 * max(1.0, abs(mean)):
        return f"{number(mean)} ± 0"
    if sd < 1e-4 * abs(mean):
        return f"{number(mean, 5)} ± {number(sd, 2)}"
    decimals = max(0, 1 - math.floor(math.log10(sd)))
    return f"{round(mean, decimals) + 0.0:.{decimals}f} ± {sd:.{decimals}f}"


def value(entry: object) -> str:
    """A value of a configuration as in a table: a number short, a text without quotes, others as one would type them.

    Of a whole node the class and its keys.

    >>> value(1e-06), value(None), value(["q", "v"]), value("a, b"), value({"_target_": "peft.LoraConfig", "r": 16})
    ('1e-6', 'null', '[q,v]', 'a, b', 'LoraConfig(r=16)')
    """
    if isinstance(entry, Mapping):
        called = str(entry.get("_target_", "")).rpartition(".")[2]
        inner = ", ".join(f"{key}={value(inner)}" for key, inner in flatten(entry).items() if key != "_target_")
        return f"{called}({inner})" if called else f"{{{inner}}}"
    if isinstance(entry, float):
        return number(entry, 6)
    return entry if isinstance(entry, str) else to_text(entry)


def short(text: str, width: int) -> str:
    """A text cut in its middle, where names differ least.

    >>> short("kl_coef-0.05+learning_rate-0.0001", 16)
    'kl_coef-…-0.0001'
    """
    text = to_visible(text)
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def plural(count: int, noun: str) -> str:
    """A number of things.

    >>> plural(1, "run"), plural(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """A time as people read it.

    >>> format_duration(7.2), format_duration(75), format_duration(7500)
    ('7 s', '1:15', '2:05 h')
    """
    if (whole := round(seconds)) < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"
