r"""Answers of mathematical solutions, compared: what stands in its last ``\boxed{}`` against the known one.

The comparison is math-verify's (``pip install math-verify``): ``2\sqrt{2}`` is ``\sqrt{8}``, and ``0.5`` is ``1/2``.
"""

import re
from collections.abc import Sequence

from runner.errors import check_library, read_column
from runner.io.turns import Completion, Values, text_of

# How texts of solutions mark an answer that is not boxed.
MARKED = re.compile(r"(?:####|final answer(?: is)?:?|answer:)\s*([^\n]+)", re.IGNORECASE)


def boxed_answer(
    completions: Sequence[Completion], column: str = "reference", strict: bool = True, **columns: Values
) -> list[float | None]:
    r"""1 where what the last ``\boxed{}`` of a completion holds is the answer in ``column``, else 0.

    None where the column is null. It may hold a whole solution. ``strict`` false also takes an answer after ``####`` or
    ``Answer:``, or the last number. Raises EnvironmentFault without math-verify.
    """
    references = read_column(columns, column, "reward.boxed_answer.column=<column>")
    check_library("math_verify", "reward.boxed_answer")
    rewards: list[float | None] = []
    for completion, reference in zip(completions, references, strict=True):
        if reference is None:
            rewards.append(None)
            continue
        solution, given = text_of(reference), find_answer(text_of(completion), strict=strict)
        known = find_answer(solution) or (MARKED.findall(solution) or [solution])[-1]
        rewards.append(float(given is not None and is_same_answer(given, known)))
    return rewards


def find_answer(text: str, *, strict: bool = True) -> str | None:
    r"""The content of the last ``\boxed{}``, or when not ``strict`` a marked answer or the last number; else None."""
    start = text.rfind(r"\boxed{")
    depth, inner = 0, text[start + len(r"\boxed") :] if start >= 0 else ""
    for index, character in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return inner[1:index].strip()
    if strict:
        return None
    numbers: list[str] = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?", text)
    return next(reversed(MARKED.findall(text) or numbers), None)


def is_same_answer(one: str, other: str) -> bool:
    r"""True for the same text, or where math-verify holds the two for equal."""
    from math_verify import parse, verify

    formulas = ["$" + text.replace("$", "") + "$" for text in (one, other)]
    answers = [parse(formula, parsing_timeout=None) for formula in formulas]  # the runner has a limit, by a signal
    return one == other or bool(verify(*answers, timeout_seconds=None))
