r"""Answers of mathematical solutions, compared: what stands in its last ``\boxed{}`` against the known one.

With math-verify (``pip install "runner[math]"``) the two are compared as mathematics; without it as numbers, fractions
and text, which is enough for grade-school answers and misses forms such as ``2\sqrt{2}`` against ``\sqrt{8}``.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

from runner.errors import DataError, EnvironmentFault, Fault
from runner.io.turns import text_of

# How texts of solutions mark an answer that is not boxed.
MARKED = re.compile(r"(?:####|final answer(?: is)?:?|answer:)\s*([^\n]+)", re.IGNORECASE)
NOISE = re.compile(r"\\(?:left|right|displaystyle|,|;|!|:| |%|\$)|\\text\{\s*\w*\s*\}|[\s$%°]")
FRACTION = re.compile(r"\\[dt]?frac\{?(-?\d+)\}?\{?(\d+)\}?")


def boxed_answer(
    completions: Sequence[Any],
    column: str = "reference",
    judge: Literal["math_verify", "own"] | None = None,
    strict: bool = True,
    **columns: Any,
) -> list[float | None]:
    r"""1 where what the last ``\boxed{}`` of a completion holds is the answer in ``column``, else 0.

    None where the column is null. It may hold a whole solution. ``strict`` false also takes an answer after ``####`` or
    ``Answer:``, or the last number. ``judge`` null is math-verify where it is installed.

    >>> boxed_answer([r"so \boxed{\frac{1}{2}}.", "0.5", r"\boxed{3}"], reference=["0.5", "0.5", "#### 4"])
    [1.0, 0.0, 0.0]
    """
    if column not in columns:
        fix = "reward.boxed_answer.column=<column>"
        raise DataError(
            Fault("dataset", f"the rows have no column {column}", f"one of {', '.join(sorted(columns))}", fix)
        )
    judge = judge or ("math_verify" if importlib.util.find_spec("math_verify") else "own")
    pairs = zip(completions, columns[column], strict=True)
    return [
        None if known is None else _verdict(find_answer(text_of(completion), strict=strict), str(text_of(known)), judge)
        for completion, known in pairs
    ]


def find_answer(text: str, *, strict: bool = True) -> str | None:
    r"""The content of the last ``\boxed{}``, or when not ``strict`` a marked answer or the last number; else None.

    >>> find_answer(r"\boxed{1}, no, \boxed{\frac{1}{2}}"), find_answer("Answer: 7"), find_answer("7", strict=False)
    ('\\frac{1}{2}', None, '7')
    """
    if (boxed := _last_boxed(text)) is not None:
        return boxed
    if strict:
        return None
    marked = MARKED.findall(text)
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?", text)
    return (marked or numbers or [None])[-1]


def same_answer(one: str, other: str) -> bool:
    r"""True for the same number, or the same text but for spaces, units in ``\text`` and signs of money.

    >>> same_answer("1,000", "$1000.0$"), same_answer(r"\dfrac{3}{4}", "0.75"), same_answer("x+1", "x + 1")
    (True, True, True)
    """
    first, second = _plain(one), _plain(other)
    numbers = _number(first), _number(second)
    return first == second or (None not in numbers and numbers[0] == numbers[1])


def _verdict(given: str | None, known: str, judge: str) -> float:
    if given is None:
        return 0.0
    known = find_answer(known) or (MARKED.findall(known) or [known])[-1]
    return float(same_answer(given, known) or (judge == "math_verify" and _verified(given, known)))


def _verified(given: str, known: str) -> bool:
    """True where math-verify holds the two for equal; its own time limits need signals, and the runner has one."""
    if importlib.util.find_spec("math_verify") is None:
        raise EnvironmentFault(
            Fault(
                "reward.boxed_answer.judge", "math-verify is not installed", "the package", 'pip install "runner[math]"'
            )
        )
    from math_verify import parse, verify

    answers = [parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in (known, given)]
    return bool(verify(*answers, timeout_seconds=None))


def _last_boxed(text: str) -> str | None:
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len(r"\boxed")
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin + 1 : place].strip()
    return None


def _plain(text: str) -> str:
    text = FRACTION.sub(r"\1/\2", NOISE.sub("", text)).rstrip(".").casefold()
    return re.sub(r"(?<=\d),(?=\d{3})", "", text)


def _number(text: str) -> Fraction | None:
    if not re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:/0*[1-9]\d*)?", text):
        return None
    whole, _, below = text.partition("/")
    return Fraction(whole) / Fraction(below or 1)
