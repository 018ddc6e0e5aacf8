"""Metrics: numbers on what a model does with held-out rows. A metric knows no trainer, no dataset and no model.

Here are those of plain texts, others in ``binary``, ``likelihood``, and ``reference`` by libraries. A new one is a
function in any module, whose arguments decide what it gets, with an option in ``conf/metric`` (``better: lower`` where
less is better; further keys are in ``ask``), and a name in the table of ``conf/README.md``.
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
    texts = [_words(completion) for completion in completions]
    return [1 - len(set(words)) / len(words) if words else 0.0 for words in texts]


def mention(completions: Sequence[Completion], of: Sequence[str] = (), **columns: Values) -> list[float]:
    """The share of the columns named by ``of`` whose text occurs in the completion."""
    texts = [text_of(completion).casefold() for completion in completions]
    wanted = [read_column(columns, name, "metric.mention.of=[<column>]") for name in of]
    hits = [[word.casefold() in text for text, word in zip(texts, column, strict=True)] for column in wanted]
    return [sum(row) / len(row) for row in zip(*hits, strict=True)] if hits else [0.0] * len(texts)


def overlap(completions: Sequence[Completion], reference: Sequence[Completion | None]) -> list[float | None]:
    """F1 of the words of a completion and of its reference, without their order (ROUGE-1); None where there is none."""
    scores: list[float | None] = []
    for completion, known in zip(completions, reference, strict=True):
        found, right = _words(completion), _words(known or "")
        common = (Counter(found) & Counter(right)).total()
        # Harmonic mean of precision and recall, which is twice the common words over all of them.
        scores.append(None if known is None else 2 * common / (len(found) + len(right)) if common else 0.0)
    return scores


def _words(completion: Completion) -> list[str]:
    return re.findall(r"\w+", text_of(completion).casefold())
