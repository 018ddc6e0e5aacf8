"""Completions against a reference text, by the libraries that published figures come from.

``pip install "runner[text]"`` brings sacrebleu and rouge-score. Overlap of words without a library is in ``text``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Literal

from runner.errors import DataError, EnvironmentFault, Fault
from runner.io.turns import text_of


def bleu(
    completions: Sequence[Any],
    column: str = "reference",
    tokenize: str | None = None,
    lowercase: bool = False,
    **columns: Any,
) -> float:
    """BLEU of all completions together, from 0 to 100, by sacrebleu.

    ``tokenize`` names one of its tokenizers; null is 13a, and Chinese needs zh. Rows whose reference is null are
    left out.
    """
    _need("sacrebleu")
    from sacrebleu.metrics import BLEU

    said, known = _pairs("bleu", completions, column, columns)
    return float(BLEU(tokenize=tokenize, lowercase=lowercase).corpus_score(said, [known]).score)


def chrf(completions: Sequence[Any], column: str = "reference", word_order: int = 0, **columns: Any) -> float:
    """chrF of all completions together, from 0 to 100, by sacrebleu; ``word_order=2`` is chrF++."""
    _need("sacrebleu")
    from sacrebleu.metrics import CHRF

    said, known = _pairs("chrf", completions, column, columns)
    return float(CHRF(word_order=word_order).corpus_score(said, [known]).score)


def rouge(
    completions: Sequence[Any],
    column: str = "reference",
    kind: Literal["rouge1", "rouge2", "rougeL", "rougeLsum"] = "rougeL",
    stemmed: bool = True,
    **columns: Any,
) -> list[float | None]:
    """ROUGE F1 of each completion, from 0 to 1, by rouge-score, which splits words at what is not a letter from a to z.

    None where the reference is null.
    """
    _need("rouge_score", "rouge-score")
    from rouge_score.rouge_scorer import RougeScorer

    score: Callable[[str, str], Any] = RougeScorer([kind], use_stemmer=stemmed).score
    return [
        None if known is None else float(score(text_of(known), text_of(said))[kind].fmeasure)
        for said, known in zip(completions, _references("rouge", column, columns), strict=True)
    ]


def _pairs(name: str, completions: Sequence[Any], column: str, columns: dict[str, Any]) -> tuple[list[str], list[str]]:
    references = _references(name, column, columns)
    rows = [(said, known) for said, known in zip(completions, references, strict=True) if known is not None]
    if not rows:
        raise DataError(Fault(f"metric.{name}", f"no reference among {len(references)} rows", f"texts in {column}"))
    return [text_of(said) for said, _ in rows], [text_of(known) for _, known in rows]


def _references(name: str, column: str, columns: dict[str, Any]) -> Sequence[Any]:
    if column not in columns:
        found, fix = f"the rows have no column {column}", f"metric.{name}.column=<column>"
        raise DataError(Fault("dataset", found, f"one of {', '.join(sorted(columns))}", fix))
    return columns[column]


def _need(module: str, package: str = "") -> None:
    if importlib.util.find_spec(module) is None:
        found = f"{package or module} is not installed"
        raise EnvironmentFault(Fault("metric", found, "the package", 'pip install "runner[text]"'))
