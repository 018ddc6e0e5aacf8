"""Values of a configuration: as text for the command line and for people, and as lists."""

import contextlib
import re
from typing import Any

# Texts that the command line takes without quotes, and those among them that would be read as
# something else.
UNQUOTED = re.compile(r"[\w./:@%+-]+( [\w./:@%+-]+)*")
CONSTANT = re.compile(r"(?i)null|true|false|[+-]?((\d[\d_]*(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)")


def to_text(value: object) -> str:
    """A value as the command line takes it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            texts = ",".join(map(to_text, value))
            return f"[{texts}]"
        case dict():
            items = []
            for key, inner in value.items():
                inner_text = to_text(inner)
                items.append(f"{key}:{inner_text}")
            return "{" + ",".join(items) + "}"
        case str():
            if UNQUOTED.fullmatch(value) and not CONSTANT.fullmatch(value):
                return value
            return _quoted(value)
    return short_exponent(str(value))


def _quoted(text: str) -> str:
    """A text in quotes, as Hydra reads it; in the kind that it does not hold itself, if it can."""
    quote = "'"
    if "'" in text and '"' not in text:
        quote = '"'
    # Hydra takes a backslash as such unless a quote comes after it.
    doubled = re.sub(rf"(\\+)({quote}|\Z)", r"\1\1\2", text)
    escaped = doubled.replace(quote, f"\\{quote}")
    return f"{quote}{escaped}{quote}"


def as_typed_number(value: float, typed: str) -> str:
    """A number as somebody has typed it, if that is this number, or else as one would type it.

    >>> as_typed_number(0.0001, "1e-4"), as_typed_number(0.0001, "2e-4")
    ('1e-4', '0.0001')
    """
    with contextlib.suppress(ValueError):
        if float(typed) == value:
            return typed.strip()
    return to_text(value)


def number(value: float | None, digits: int = 4) -> str:
    """A number for people, with so many significant digits; ``-`` for None."""
    if value is None:
        return "-"
    is_short_whole = abs(value) < 1e6 and float(value).is_integer()
    if isinstance(value, int) or is_short_whole:
        return str(int(value))
    return short_exponent(f"{value:.{digits}g}")


def short_exponent(text: str) -> str:
    """The text of a number whose exponent has no needless signs and zeros: 1e-6 for 1e-06."""

    def shorten(exponent: re.Match[str]) -> str:
        sign = exponent[1].strip("+")
        return f"e{sign}"

    return re.sub(r"(?<=\d)e([+-])0*(?=\d)", shorten, text)


def to_list(value: object) -> list[Any]:
    """A list, of one element where there is no list."""
    return value if isinstance(value, list) else [value]
