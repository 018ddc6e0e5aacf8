"""A forecast of learning, from what the first completions of a policy have earned.

A trainer that samples learns from differences: of a group, all completions for one prompt, some
have to earn more than others. A prompt counts as solved where all of its completions earned the
best reward that was seen at all, and as failed where all earned the worst one. So it needs no
reward of 0 and 1, and says nothing where everything earned the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.schema.literal import number


@dataclass(frozen=True)
class Learning:
    """The rewards of some groups, counted."""

    groups: int
    completions: int
    differing: int  # groups whose completions earned different rewards
    solved: int
    failed: int
    worst: float
    best: float

    @property
    def is_possible(self) -> bool:
        """True where some completion was better than another one that it is compared with.

        A group of one is compared with the other prompts, by a critic.
        """
        if self.groups == self.completions:
            return self.best > self.worst
        return self.differing > 0

    def __str__(self) -> str:
        worst = number(self.worst, 3)
        best = number(self.best, 3)
        sampled = f"{self.completions} completions for {self.groups} prompts"
        if self.best == self.worst:
            return f"nothing can be learnt: all {sampled} earned {best}"
        if not self.is_possible:
            return (
                f"nothing can be learnt: of {sampled}, all for the same prompt earned the same, "
                f"from {worst} to {best}"
            )
        always = f"{self.solved} always solved ({best}, the best reward seen)"
        never = f"{self.failed} never ({worst}, the worst)"
        if self.groups == self.completions:
            return f"of {sampled}, {always}, {never}"
        share = round(100 * self.differing / self.groups)
        return f"{share} % of the prompts have a signal; of {sampled}, {always}, {never}"


def count_groups(groups: Sequence[Sequence[float]]) -> Learning | None:
    """The forecast by the rewards of groups; None without any reward. NaN is no reward."""
    earned = []
    for group in groups:
        rewards = [reward for reward in group if not math.isnan(reward)]
        if rewards:
            earned.append(rewards)
    if not earned:
        return None
    worst = min(map(min, earned))
    best = max(map(max, earned))
    differing = sum(max(group) > min(group) for group in earned)
    return Learning(
        groups=len(earned),
        completions=sum(map(len, earned)),
        differing=differing,
        solved=sum(min(group) == best for group in earned),
        failed=sum(max(group) == worst for group in earned),
        worst=worst,
        best=best,
    )
