"""Metrics of completions as texts: one number each. What needs a library of its own is in ``reference``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from runner.errors import DataError, Fault
from runner.io.turns import text_of


def words(completions: Sequence[Any]) -> list[float]:
    """The number of words of each completion.

    >>> words(["The bar was so-so.", ""])
    [5.0, 0.0]
    """
    return [float(len(_words(completion))) for completion in completions]


def repetition(completions: Sequence[Any]) -> list[float]:
    """The share of words that were said before in the same completion.

    >>> repetition(["great, great, great bar", "a bar", ""])
    [0.5, 0.0, 0.0]
    """
    said = [_words(completion) for completion in completions]
    return [1 - len(set(words)) / len(words) if words else 0.0 for words in said]


def mention(completions: Sequence[Any], of: Sequence[str] = (), **columns: Any) -> list[float]:
    """The share of the columns named by ``of`` whose text occurs in the completion.

    >>> mention(["The food at the bar.", "Great!"], of=["place", "topic"], place=["bar", "bar"], topic=["view", "food"])
    [0.5, 0.0]
    """
    if missing := [name for name in of if name not in columns]:
        known = ", ".join(sorted(columns))
        found = f"the rows have no column {' or '.join(missing)}"
        raise DataError(Fault("dataset", found, f"some of {known}", "metric.mention.of=[<column>]"))
    texts = [text_of(completion).casefold() for completion in completions]
    hits = [[wanted.casefold() in text for text, wanted in zip(texts, columns[name], strict=True)] for name in of]
    return [sum(row) / len(row) for row in zip(*hits, strict=True)] if hits else [0.0] * len(texts)


def overlap(completions: Sequence[Any], reference: Sequence[Any]) -> list[float]:
    """F1 of the words of a completion and of its reference, without their order (ROUGE-1).

    >>> overlap(["a red dog", "A cat.", ""], ["the red dog", "a cat", "a cat"])
    [0.6666666666666666, 1.0, 0.0]
    """
    return [_f1(_words(mine), _words(theirs)) for mine, theirs in zip(completions, reference, strict=True)]


def _words(completion: Any) -> list[str]:
    return re.findall(r"\w+", text_of(completion).casefold())


def _f1(mine: list[str], theirs: list[str]) -> float:
    """Harmonic mean of precision and recall, which is twice the common words over all of them."""
    common = (Counter(mine) & Counter(theirs)).total()
    return 2 * common / (len(mine) + len(theirs)) if common else 0.0
