"""Two models on the same prompts: how often one is better, and how sure that is.

Which of two answers is better is decided elsewhere.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from runner.io.files import JsonObject

RESAMPLES = 10_000
CHUNK = 1 << 22  # numbers drawn at once
NORMAL = NormalDist()
Z = NORMAL.inv_cdf(0.975)  # of an interval of 95 %
BISECTIONS = 50  # which leave an interval of 2e-15


def compare(first: Sequence[float], second: Sequence[float], seed: int = 0) -> JsonObject:
    """Wins, ties and losses over the prompts, the win rate, and the mean difference.

    A tie is half a win. Both figures have a 95 % interval over prompts, as pairs, so that what is
    hard for both models moves neither: that of the win rate by its score, that of the mean
    difference by the bootstrap, unless all differences are of one size and so a matter of wins and
    losses too.
    """
    first_values = np.asarray(first, dtype=float)
    second_values = np.asarray(second, dtype=float)
    difference = first_values - second_values
    count = len(difference)
    wins = int((difference > 0).sum())
    losses = int((difference < 0).sum())
    lead = (wins - losses) / count
    lead_interval = score_interval(wins, losses, count)
    # The size of a difference, or where there is none, of the scores.
    size = np.abs(difference).max() or np.ptp([first_values, second_values])
    steps = difference / size if size else difference
    if np.isclose(np.abs(steps), steps != 0).all():  # as of right and wrong answers
        difference_interval = [float(size * end) for end in lead_interval]
    else:
        difference_interval = mean_interval(difference, seed)
    return {
        "prompts": count,
        "wins": wins,
        "ties": count - wins - losses,
        "losses": losses,
        "win_rate": (1 + lead) / 2,
        "win_rate_interval": [(1 + end) / 2 for end in lead_interval],
        "difference": float(difference.mean()),
        "difference_interval": difference_interval,
    }


def score_interval(wins: int, losses: int, count: int) -> list[float]:
    """The 95 % limits of the share of wins less that of losses (Tango 1998).

    Without ties they are Wilson's.
    """

    def is_excluded(gap: float) -> bool:
        slope = (2 * count - wins + losses) * gap - wins - losses
        root = math.sqrt(max(0.0, slope**2 + 8 * count * losses * gap * (1 - gap)))
        lost = (root - slope) / (4 * count)  # the likeliest share of losses, if the gap were this
        return (wins - losses - count * gap) ** 2 > Z**2 * count * (2 * lost + gap * (1 - gap))

    limits = []
    for outer in (-1.0, 1.0):
        inner = (wins - losses) / count
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            if is_excluded(middle):
                outer = middle
            else:
                inner = middle
        limits.append(outer)
    return limits


def mean_interval(values: np.ndarray, seed: int = 0) -> list[float]:
    """The 95 % limits of the mean of values that are not all alike, by the bootstrap.

    Bias-corrected and accelerated (BCa, Efron 1987).
    """
    means = resampled_means(values, seed=seed)
    mean = values.mean()
    count = len(values)
    below = float((means < mean).mean() + (means <= mean).mean()) / 2
    bias = NORMAL.inv_cdf(below)
    deviations = values - mean
    skew = (deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5)
    # Farther out for few values (Hesterberg 2015), by the first terms of Student's quantile.
    far = math.sqrt(count / (count - 1)) * (Z + (Z**3 + Z) / (4 * (count - 1)))
    levels = []
    for distance in (bias - far, bias + far):
        levels.append(NORMAL.cdf(bias + distance / (1 - skew * distance)))
    limits: list[float] = np.quantile(means, levels).tolist()
    return limits


def resampled_means(
    values: Sequence[float] | np.ndarray, count: int = RESAMPLES, seed: int = 0
) -> np.ndarray:
    """The means [count] of as many values as there are, drawn with replacement."""
    population = np.asarray(values, dtype=float)
    size = len(population)
    generator = np.random.default_rng(seed)
    rows = max(1, CHUNK // size)
    means = []
    for start in range(0, count, rows):
        shape = (min(rows, count - start), size)
        sample = population[generator.integers(0, size, size=shape)]
        means.append(sample.mean(1))
    return np.concatenate(means)
