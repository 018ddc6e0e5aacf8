"""Metrics: numbers on what a model does with held-out rows.

A metric knows no trainer and no dataset, and no model but one that its function names.

Here are those of plain texts, others in ``binary``, ``likelihood``, and by libraries in
``reference`` and ``harness``.
A new one is a function in any module, whose arguments decide what it gets, with an option in
``conf/metric`` (``better: lower`` where less is better; ``config.experiment.MetricPart`` declares
further keys), and a name in
the table of ``conf/PARTS.md``.
"""

import re
from collections import Counter
from collections.abc import Sequence

from runner.errors import read_column
from runner.io.turns import Completion, Values, text_of


def words(completions: Sequence[Completion]) -> list[float]:
    """The number of words of each completion."""
    return [float(len(_words(completion))) for completion in completions]


def repetition(completions: Sequence[Completion]) -> list[float]:
    """The share of words that occur earlier in the same completion."""
    shares = []
    for completion in completions:
        words = _words(completion)
        share = 0.0
        if words:
            share = 1 - len(set(words)) / len(words)
        shares.append(share)
    return shares


def mention(
    completions: Sequence[Completion], of: Sequence[str] = (), **columns: Values
) -> list[float]:
    """The share of the columns named by ``of`` whose text occurs in the completion."""
    if not of:
        return [0.0] * len(completions)
    texts = [text_of(completion).casefold() for completion in completions]
    counts = [0] * len(completions)
    for name in of:
        column = read_column(columns, name, "metric.mention.of=[<column>]")
        for row, (text, phrase) in enumerate(zip(texts, column, strict=True)):
            counts[row] += phrase.casefold() in text
    return [count / len(of) for count in counts]


def overlap(
    completions: Sequence[Completion], reference: Sequence[Completion | None]
) -> list[float | None]:
    """F1 of the words of a completion and of its reference, whatever their order (ROUGE-1).

    None where there is no reference.
    """
    scores: list[float | None] = []
    for completion, right in zip(completions, reference, strict=True):
        if right is None:
            scores.append(None)
            continue
        words = _words(completion)
        right_words = _words(right)
        common = (Counter(words) & Counter(right_words)).total()
        # The harmonic mean of precision and recall is twice the common words over all of them.
        score = 0.0
        if common:
            score = 2 * common / (len(words) + len(right_words))
        scores.append(score)
    return scores


def _words(completion: Completion) -> list[str]:
    return re.findall(r"\w+", text_of(completion).casefold())
