"""Metrics of how likely a model holds the known answers. Sampled answers are judged elsewhere."""

import math
from collections.abc import Sequence
from typing import Any

from runner.errors import DataError, Fault


def loss(log_probs: Sequence[Sequence[float]]) -> float:
    """The mean negative log-probability of a token, each token of all answers alike; in nats."""
    if not (tokens := [value for row in log_probs for value in row]):
        raise DataError(Fault("metric", f"no tokens in {len(log_probs)} answers", "answers with tokens"))
    return -math.fsum(tokens) / len(tokens)


def perplexity(log_probs: Sequence[Sequence[float]]) -> float:
    """The exponential of the mean negative log-probability of a token, each token of all answers alike."""
    mean = loss(log_probs)
    return math.exp(mean) if mean < 700 else math.inf


def token_accuracy(logits: Sequence[Any], labels: Sequence[Sequence[int]]) -> list[float | None]:
    """The share of an answer's tokens that were the likeliest in their place; None for an answer without any.

    ``logits`` are those of each token, or its likeliest token where ``preprocess`` left no more.
    """
    shares: list[float | None] = []
    for row, right in zip(logits, labels, strict=True):
        chosen = [int(one.argmax()) if getattr(one, "ndim", 0) else int(one) for one in row]
        hits = sum(token == label for token, label in zip(chosen, right, strict=True))
        shares.append(hits / len(right) if len(right) else None)
    return shares
