"""Two models on the same prompts: how often one is better, and how sure that is. What better means is not here."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

RESAMPLES = 10_000
CHUNK = 1 << 22  # numbers drawn at once
NORMAL = NormalDist()
Z = NORMAL.inv_cdf(0.975)  # of an interval of 95 %


def compare(first: Sequence[float], second: Sequence[float], seed: int = 0) -> dict[str, Any]:
    """Wins, ties and losses over the prompts, the win rate with ties as half a win, and the mean difference.

    Each with a 95 % interval over prompts, of pairs, so that what is hard for both moves neither figure: of the win
    rate by its score, of the mean difference by the bootstrap, unless it is a matter of wins and losses too.
    """
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    difference = one - other
    wins, losses, count = int((difference > 0).sum()), int((difference < 0).sum()), len(difference)
    size = np.abs(difference).max() or np.ptp([one, other])
    steps = difference / size if size else difference
    shares = score_interval(wins, losses, count)
    by_one_size = np.isclose(np.abs(steps), steps != 0).all()  # as of right and wrong answers
    limits = [float(size * end) for end in shares] if by_one_size else mean_interval(difference, seed)
    counts = {"prompts": count, "wins": wins, "ties": count - wins - losses, "losses": losses}
    rate = {"win_rate": (1 + (wins - losses) / count) / 2, "win_rate_interval": [(1 + end) / 2 for end in shares]}
    return counts | rate | {"difference": float(difference.mean()), "difference_interval": limits}


def score_interval(wins: int, losses: int, count: int) -> list[float]:
    """The 95 % limits of the share of wins less that of losses (Tango 1998); Wilson's where there are no ties."""

    def excludes(gap: float) -> bool:
        slope = (2 * count - wins + losses) * gap - wins - losses
        root = math.sqrt(max(0.0, slope**2 + 8 * count * losses * gap * (1 - gap)))
        lost = (root - slope) / (4 * count)  # the likeliest share of losses, if the gap were this
        return (wins - losses - count * gap) ** 2 > Z**2 * count * (2 * lost + gap * (1 - gap))

    ends = []
    for outer in (-1.0, 1.0):
        inner = (wins - losses) / count
        for _ in range(50):
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if excludes(middle) else (middle, outer)
        ends.append(outer)
    return ends


def mean_interval(values: np.ndarray, seed: int = 0) -> list[float]:
    """The 95 % limits of the mean of values that are not all alike, by the bootstrap (BCa, Efron 1987)."""
    means, mean, count = resampled_means(values, seed=seed), values.mean(), len(values)
    bias = NORMAL.inv_cdf(float((means < mean).mean() + (means <= mean).mean()) / 2)
    skew = ((values - mean) ** 3).sum() / (6 * ((values - mean) ** 2).sum() ** 1.5)
    # Farther out for few values (Hesterberg 2015), by the first terms of Student's quantile.
    far = math.sqrt(count / (count - 1)) * (Z + (Z**3 + Z) / (4 * (count - 1)))
    levels = [bias + moved / (1 - skew * moved) for moved in (bias - far, bias + far)]
    return np.quantile(means, list(map(NORMAL.cdf, levels))).tolist()


def resampled_means(values: Sequence[float] | np.ndarray, count: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """The means [count] of as many values as there are, drawn with replacement."""
    values, generator = np.asarray(values, dtype=float), np.random.default_rng(seed)
    size = max(1, CHUNK // len(values))
    shapes = [(min(size, count - start), len(values)) for start in range(0, count, size)]
    return np.concatenate([values[generator.integers(0, len(values), size=shape)].mean(1) for shape in shapes])
