r"""Answers of mathematical solutions, in their last ``\boxed{}``, compared with the right ones.

The comparison is math-verify's (``pip install math-verify``): ``2\sqrt{2}`` is ``\sqrt{8}``, and
``0.5`` is ``1/2``.
"""

import re
from collections.abc import Sequence

from runner.errors import check_library, read_column
from runner.io.turns import Completion, Values, text_of

# How texts of solutions mark an answer that is not boxed.
MARKED = re.compile(r"(?:####|final answer(?: is)?:?|answer:)\s*([^\n]+)", re.IGNORECASE)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def boxed_answer(
    completions: Sequence[Completion],
    column: str = "reference",
    strict: bool = True,
    **columns: Values,
) -> list[float | None]:
    r"""1 where the last ``\boxed{}`` of a completion holds the answer in ``column``, else 0.

    None where the column is null. It may hold a whole solution. ``strict`` false also takes an
    answer after ``####`` or ``Answer:``, or the last number. Raises EnvironmentFault without
    math-verify.
    """
    references = read_column(columns, column, "reward.boxed_answer.column=<column>")
    check_library("math_verify", "reward.boxed_answer")
    rewards: list[float | None] = []
    for completion, reference in zip(completions, references, strict=True):
        if reference is None:
            rewards.append(None)
            continue
        answer = find_answer(text_of(completion), strict=strict)
        right = _reference_answer(text_of(reference))
        is_right = answer is not None and is_same_answer(answer, right)
        rewards.append(float(is_right))
    return rewards


def _reference_answer(solution: str) -> str:
    r"""The answer of a reference: in its last ``\boxed{}``, else marked, else the whole text."""
    boxed = find_answer(solution)
    if boxed:
        return boxed
    marked: list[str] = MARKED.findall(solution)
    return marked[-1] if marked else solution


def find_answer(text: str, *, strict: bool = True) -> str | None:
    r"""The content of the last ``\boxed{}``; None where there is none.

    When not ``strict`` also a marked answer, or the last number.
    """
    start = text.rfind(r"\boxed{")
    if start >= 0:
        inner = text[start + len(r"\boxed") :]
        depth = 0
        for index, character in enumerate(inner):
            depth += {"{": 1, "}": -1}.get(character, 0)
            if depth == 0:
                return inner[1:index].strip()
    if strict:
        return None
    answers: list[str] = MARKED.findall(text) or NUMBER.findall(text)
    return answers[-1] if answers else None


def is_same_answer(answer: str, right: str) -> bool:
    r"""True for the same text, or where math-verify takes the two for equal."""
    from math_verify import parse, verify

    formulas = []
    for text in (answer, right):
        formula = "$" + text.replace("$", "") + "$"
        # The runner limits the time itself, by a signal.
        formulas.append(parse(formula, parsing_timeout=None))
    return answer == right or bool(verify(*formulas, timeout_seconds=None))
