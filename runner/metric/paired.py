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
    steps = difference
    if size:
        steps = difference / size
    has_one_size = np.isclose(np.abs(steps), steps != 0).all()
    if has_one_size:  # as of right and wrong answers
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

    Without ties they are Wilson's. They are the gaps that a score test would just not reject, and
    are found by bisection, from the observed share outwards to -1 and to 1.
    """

    lead = wins - losses

    def is_excluded(gap: float) -> bool:
        """True where the test rejects that the shares differ by this much."""
        slope = (2 * count - wins + losses) * gap - wins - losses
        discriminant = slope**2 + 8 * count * losses * gap * (1 - gap)
        root = math.sqrt(max(0.0, discriminant))
        lost = (root - slope) / (4 * count)  # the likeliest share of losses, if the gap were this
        distance = (lead - count * gap) ** 2
        return distance > Z**2 * count * (2 * lost + gap * (1 - gap))

    limits = []
    for outer in (-1.0, 1.0):
        inner = lead / count
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
    share_below = (means < mean).mean()
    share_up_to = (means <= mean).mean()
    bias = NORMAL.inv_cdf(float(share_below + share_up_to) / 2)
    deviations = values - mean
    squares = (deviations**2).sum()
    cubes = (deviations**3).sum()
    acceleration = cubes / (6 * squares**1.5)
    # Farther out for few values (Hesterberg 2015), by the first terms of Student's quantile.
    freedom = len(values) - 1
    student = Z + (Z**3 + Z) / (4 * freedom)
    far = math.sqrt(len(values) / freedom) * student
    levels = []
    for distance in (bias - far, bias + far):
        corrected = bias + distance / (1 - acceleration * distance)
        levels.append(NORMAL.cdf(corrected))
    limits: list[float] = np.quantile(means, levels).tolist()
    return limits


def resampled_means(
    values: Sequence[float] | np.ndarray, count: int = RESAMPLES, seed: int = 0
) -> np.ndarray:
    """The means [count] of as many values as there are, drawn with replacement.

    They are drawn in parts of at most CHUNK numbers, so that a large set needs little memory.
    """
    population = np.asarray(values, dtype=float)
    size = len(population)
    generator = np.random.default_rng(seed)
    rows = max(1, CHUNK // size)
    means = []
    for start in range(0, count, rows):
        rows_left = count - start
        shape = (min(rows, rows_left), size)
        indices = generator.integers(0, size, size=shape)
        means.append(population[indices].mean(1))
    return np.concatenate(means)
