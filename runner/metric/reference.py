"""Completions against a reference text, by libraries of published figures (``pip install sacrebleu rouge-score``)."""

from collections.abc import Sequence
from typing import Any, Literal

from runner.errors import DataError, Fault, check_library, read_column
from runner.io.turns import Completion, Values, text_of


def bleu(
    completions: Sequence[Completion],
    column: str = "reference",
    tokenize: str | None = None,
    lowercase: bool = False,
    **columns: Values,
) -> float:
    """BLEU of all completions together, from 0 to 100, by sacrebleu.

    ``tokenize`` names a tokenizer of it: null is 13a, Chinese needs zh. Rows whose reference is null are left out.
    """
    check_library("sacrebleu", "metric")
    from sacrebleu.metrics import BLEU

    pairs = _pairs("bleu", completions, column, columns)
    return float(BLEU(tokenize=tokenize, lowercase=lowercase).corpus_score(*pairs).score)


def chrf(completions: Sequence[Completion], column: str = "reference", word_order: int = 0, **columns: Values) -> float:
    """chrF of all completions together, from 0 to 100, by sacrebleu; ``word_order=2`` is chrF++."""
    check_library("sacrebleu", "metric")
    from sacrebleu.metrics import CHRF

    return float(CHRF(word_order=word_order).corpus_score(*_pairs("chrf", completions, column, columns)).score)


def rouge(
    completions: Sequence[Completion],
    column: str = "reference",
    kind: Literal["rouge1", "rouge2", "rougeL", "rougeLsum"] = "rougeL",
    stemmed: bool = True,
    **columns: Values,
) -> list[float | None]:
    """ROUGE F1 of each completion, 0 to 1, by rouge-score, which knows letters a to z; None where no reference is."""
    check_library("rouge_score", "metric")
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=stemmed)
    references = read_column(columns, column, "metric.rouge.column=<column>")
    return [
        None if known is None else float(scorer.score(text_of(known), text_of(completion))[kind].fmeasure)
        for completion, known in zip(completions, references, strict=True)
    ]


def _pairs(
    name: str, completions: Sequence[Completion], column: str, columns: dict[str, Any]
) -> tuple[list[str], list[list[str]]]:
    references = read_column(columns, column, f"metric.{name}.column=<column>")
    rows = [(completion, known) for completion, known in zip(completions, references, strict=True) if known is not None]
    if not rows:
        raise DataError(Fault(f"metric.{name}", f"no reference among {len(references)} rows", f"texts in {column}"))
    return [text_of(completion) for completion, _ in rows], [[text_of(known) for _, known in rows]]
