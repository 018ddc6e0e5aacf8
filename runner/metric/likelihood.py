"""Metrics of how likely a model holds the known answers. Sampled answers are judged elsewhere."""

import math
from collections.abc import Sequence
from typing import Any

from runner.errors import DataError, Fault


def loss(log_probs: Sequence[Sequence[float]]) -> float:
    """The mean negative log-probability of a token, in nats.

    Each token of all answers counts alike.
    """
    tokens: list[float] = []
    for row in log_probs:
        tokens += row
    if not tokens:
        raise DataError(
            Fault(
                where="metric",
                found=f"no tokens in {len(log_probs)} answers",
                expected="answers with tokens",
            )
        )
    return -math.fsum(tokens) / len(tokens)


def perplexity(log_probs: Sequence[Sequence[float]]) -> float:
    """The exponential of ``loss``; infinity where that is no float."""
    mean = loss(log_probs)
    if mean < 700:
        return math.exp(mean)
    return math.inf


def token_accuracy(logits: Sequence[Any], labels: Sequence[Sequence[int]]) -> list[float | None]:
    """The share of an answer's tokens that were the likeliest in their place.

    None for an answer without tokens. ``logits`` are those of each token, or its likeliest token
    where ``preprocess`` left no more.
    """
    shares: list[float | None] = []
    for row, right in zip(logits, labels, strict=True):
        hits = 0
        for token_logits, label in zip(row, right, strict=True):
            if getattr(token_logits, "ndim", 0):
                token_logits = token_logits.argmax()
            hits += int(token_logits) == label
        share = None
        if len(right):
            share = hits / len(right)
        shares.append(share)
    return shares
