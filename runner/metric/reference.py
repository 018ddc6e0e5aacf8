"""Completions compared with a reference text, by the libraries of published figures.

``pip install sacrebleu rouge-score``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.errors import DataError, Fault, check_library, read_column
from runner.io.turns import Columns, Completion, Values, text_of


def bleu(
    completions: Sequence[Completion],
    column: str = "reference",
    tokenize: str | None = None,
    lowercase: bool = False,
    **columns: Values,
) -> float:
    """BLEU of all completions together, from 0 to 100, by sacrebleu.

    ``tokenize`` names a tokenizer of it: null is 13a, Chinese needs zh. Rows whose reference is
    null are left out.
    """
    check_library("sacrebleu", "metric")
    from sacrebleu.metrics import BLEU

    pairs = _pairs("bleu", completions, column, columns)
    metric = BLEU(tokenize=tokenize, lowercase=lowercase)
    return float(metric.corpus_score(pairs.texts, [pairs.references]).score)


def chrf(
    completions: Sequence[Completion],
    column: str = "reference",
    word_order: int = 0,
    **columns: Values,
) -> float:
    """chrF of all completions together, from 0 to 100, by sacrebleu; ``word_order=2`` is chrF++."""
    check_library("sacrebleu", "metric")
    from sacrebleu.metrics import CHRF

    pairs = _pairs("chrf", completions, column, columns)
    metric = CHRF(word_order=word_order)
    return float(metric.corpus_score(pairs.texts, [pairs.references]).score)


def rouge(
    completions: Sequence[Completion],
    column: str = "reference",
    kind: Literal["rouge1", "rouge2", "rougeL", "rougeLsum"] = "rougeL",
    stemmed: bool = True,
    **columns: Values,
) -> list[float | None]:
    """ROUGE F1 of each completion, from 0 to 1, by rouge-score, which knows only letters a to z.

    None where there is no reference.
    """
    check_library("rouge_score", "metric")
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=stemmed)
    references = read_column(columns, column, "metric.rouge.column=<column>")
    scores: list[float | None] = []
    for completion, reference in zip(completions, references, strict=True):
        if reference is None:
            scores.append(None)
        else:
            rouge_scores = scorer.score(text_of(reference), text_of(completion))
            scores.append(float(rouge_scores[kind].fmeasure))
    return scores


@dataclass(frozen=True)
class ReferencePairs:
    """Completions that have a reference, as texts."""

    texts: list[str]
    references: list[str]


def _pairs(
    name: str, completions: Sequence[Completion], column: str, columns: Columns
) -> ReferencePairs:
    """The completions of rows that have a reference, with these; DataError where none has."""
    pairs = ReferencePairs([], [])
    references = read_column(columns, column, f"metric.{name}.column=<column>")
    for completion, reference in zip(completions, references, strict=True):
        if reference is not None:
            pairs.texts.append(text_of(completion))
            pairs.references.append(text_of(reference))
    if not pairs.texts:
        raise DataError(
            Fault(
                where=f"metric.{name}",
                found=f"no reference among {len(references)} rows",
                expected=f"texts in {column}",
            )
        )
    return pairs
