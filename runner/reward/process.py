"""Rewards for each step of a completion, which PPO credits where the step ends. Whole answers are in ``rule``.

A step is what stands between two of the trainer's ``step_separator``; blank ones do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.reward.rule import text_of


def sorted_steps(completions: Sequence[Any], digits: Sequence[str]) -> list[list[float]]:
    """For each digit of an answer its share of the reward if it is in the right place, else nothing.

    What is missing or too much costs a half, at the last digit, so that the sum is that of ``rule.sorted_digits``.

    >>> sorted_steps(["1 3 9 7", "1 3"], ["7 3 9 1"] * 2)
    [[0.25, 0.25, 0.0, 0.0], [0.25, -0.25]]
    """
    return [
        _steps(to_steps(text_of(completion), " "), sorted(given.split()))
        for completion, given in zip(completions, digits, strict=True)
    ]


def to_steps(text: str, separator: str) -> list[str]:
    """The steps of a text, without the space around them.

    >>> to_steps("add 2\\n\\n so 4", "\\n")
    ['add 2', 'so 4']
    """
    return [step.strip() for step in text.split(separator) if step.strip()]


def _steps(given: list[str], right: list[str]) -> list[float]:
    places = right + [""] * len(given)
    steps = [(mine == theirs) / len(right) for mine, theirs in zip(given, places, strict=False)] or [0.0]
    if len(given) != len(right):
        steps[-1] -= 0.5
    return steps
