"""Rewards that a few lines of code can decide. Scores of models are in ``outcome``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def distinct_characters(completions: Sequence[Any]) -> list[float]:
    """How many different characters each completion has.

    >>> distinct_characters(["abca", ""])
    [3.0, 0.0]
    """
    return [float(len(set(text_of(completion)))) for completion in completions]


def length(completions: Sequence[Any], target: int | None = None) -> list[float]:
    """The number of characters; with ``target``, minus the distance from it.

    >>> length(["abc"]), length(["abc"], target=5)
    ([3.0], [-2.0])
    """
    sizes = [len(text_of(completion)) for completion in completions]
    return [float(size) if target is None else -float(abs(size - target)) for size in sizes]


def exact_match(completions: Sequence[Any], reference: Sequence[str]) -> list[float]:
    """1 where the answer is the reference but for case, spaces and closing marks, else 0.

    >>> exact_match([" Paris. "], ["paris"])
    [1.0]
    """
    pairs = zip(completions, reference, strict=True)
    return [float(_normal(text_of(completion)) == _normal(answer)) for completion, answer in pairs]


def sorted_digits(completions: Sequence[Any], digits: Sequence[str]) -> list[float]:
    """The share of places with the right digit, less a half where the number of digits is wrong.

    >>> sorted_digits(["1 3 7 9", "1 3 9 7", "1 3"], ["7 3 9 1"] * 3)
    [1.0, 0.5, 0.0]
    """
    return [
        _order(text_of(text).split(), sorted(given.split())) for text, given in zip(completions, digits, strict=True)
    ]


def keywords(completions: Sequence[Any], liked: Sequence[str], disliked: Sequence[str] = ()) -> list[float]:
    """Liked words less disliked words, each occurrence counted, from -1 to 1 a completion.

    Nothing else is looked at, so a policy that is paid by it learns to write only such words: a lesson in what a
    reward leaves out.

    >>> keywords(["so great, great!", "awful", "a bar"], liked=["great"], disliked=["awful"])
    [1.0, -0.5, 0.0]
    """
    scores = []
    for completion in completions:
        words = re.findall(r"\w+", text_of(completion).lower())
        balance = sum(word in liked for word in words) - sum(word in disliked for word in words)
        scores.append(max(-1.0, min(1.0, balance / 2)))
    return scores


def text_of(completion: Any) -> str:
    """The text of a completion, of the last turn where it is a conversation."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def _normal(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(" .!?")


def _order(given: list[str], right: list[str]) -> float:
    hits = sum(mine == theirs for mine, theirs in zip(given, right, strict=False))
    return hits / len(right) - (0.5 if len(given) != len(right) else 0.0)
