"""The share of the spread of a score that goes with each swept key: the main effects of an analysis of variance."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

SPARE = 2  # degrees of freedom that must be left, or the shares would add up to one whatever the runs did

METHOD = (
    "Share of the variance of the score over the finished runs that goes with the key's own means (eta squared, the "
    "main effect of an analysis of variance). 'By chance' is what a key without any effect reaches on average."
)


@dataclass(frozen=True)
class Importance:
    """Shares of the variance by key, largest first; ``refused`` says why there are none.

    ``chance`` is what a key without any effect has on average, ``seeds`` the share inside the settings, ``rest`` what
    is left: keys that act together. ``even`` is whether every combination has equally many runs; where not, the shares
    of keys overlap.
    """

    runs: int
    shares: Mapping[str, float] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)
    seeds: float | None = None
    rest: float = 0.0
    even: bool = True
    refused: str = ""

    @property
    def bars(self) -> list[tuple[str, float, float | None]]:
        """Every share by name, with what is reached by chance where that is known."""
        found: list[tuple[str, float, float | None]] = [(k, s, self.chance[k]) for k, s in self.shares.items()]
        found += [("seeds (noise)", self.seeds, None)] if self.seeds is not None else []
        return found + ([("keys together", self.rest, None)] if len(self.shares) > 1 and self.even else [])


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
    shares = {key: 1 - _squares(scores, column) / total for key, column in varied.items()}
    settings = list(zip(*varied.values(), strict=True))
    sizes = [settings.count(setting) for setting in set(settings)]
    inside = _squares(scores, settings) / total if max(sizes) > 1 else None
    return Importance(
        count,
        {key: max(0.0, shares[key]) for key in sorted(shares, key=shares.__getitem__, reverse=True)},
        {key: (levels[key] - 1) / (count - 1) for key in varied},
        inside,
        max(0.0, 1 - sum(shares.values()) - (inside or 0.0)),
        len(set(sizes)) == 1 and len(sizes) == math.prod(levels[key] for key in varied),
    )


def _squares(scores: Sequence[float], groups: Sequence[Hashable]) -> float:
    """The squared distances of the scores from the means of their groups, added up."""
    members: dict[Hashable, list[float]] = {}
    for score, group in zip(scores, groups, strict=True):
        members.setdefault(group, []).append(score)
    means = {group: fmean(values) for group, values in members.items()}
    return sum((score - means[group]) ** 2 for score, group in zip(scores, groups, strict=True))
