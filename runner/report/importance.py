"""The share of the spread of a score that goes with each swept key: the main effects of an analysis of variance."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

SEEDS = "seeds (noise)"
SPARE = 2  # degrees of freedom that must be left, or the shares would add up to one whatever the runs did


@dataclass(frozen=True)
class Importance:
    """Shares of the variance by key, largest first, and that of seeds inside a setting, where it has several runs."""

    runs: int
    shares: Mapping[str, float] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)  # the share that a key without any effect has on average
    refused: str = ""  # why there are no shares


def importance_of(columns: Mapping[str, Sequence[Hashable]], scores: Sequence[float]) -> Importance:
    """The importance of each key, from its value and the score of each run.

    >>> keys = {"a": [0, 0, 0, 1, 1, 1], "b": [0, 1, 2, 0, 1, 2]}
    >>> importance_of(keys, [0, 0, 0, 1, 1, 1]).shares
    {'a': 1.0, 'b': 0.0}
    """
    count, levels = len(scores), {key: len(set(column)) for key, column in columns.items()}
    varied = {key: column for key, column in columns.items() if levels[key] > 1}
    needed = 1 + sum(levels[key] - 1 for key in varied) + SPARE
    if not varied:
        return Importance(count, refused="the finished runs differ in no key but the seed")
    if count < needed:
        return Importance(count, refused=f"too few finished runs: {count}, and {needed} are needed for these keys")
    total = _squares(scores, [0] * count)
    if total <= 1e-24 * max(1.0, max(map(abs, scores))) ** 2:
        return Importance(count, refused="all finished runs score the same")
    shares = {key: max(0.0, 1 - _squares(scores, column) / total) for key, column in varied.items()}
    shares = dict(sorted(shares.items(), key=lambda entry: -entry[1]))
    settings = list(zip(*varied.values(), strict=True))
    if len(set(settings)) < count:
        shares[SEEDS] = _squares(scores, settings) / total
    return Importance(count, shares, {key: (levels[key] - 1) / (count - 1) for key in varied})


def _squares(scores: Sequence[float], groups: Sequence[Hashable]) -> float:
    """The squared distances of the scores from the means of their groups, added up."""
    members: dict[Hashable, list[float]] = {}
    for score, group in zip(scores, groups, strict=True):
        members.setdefault(group, []).append(score)
    means = {group: fmean(values) for group, values in members.items()}
    return sum((score - means[group]) ** 2 for score, group in zip(scores, groups, strict=True))
