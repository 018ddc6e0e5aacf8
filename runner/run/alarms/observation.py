"""The figures that alarms look at: of one optimizer step, and before and after a training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runner.schema.literal import number

Kind = Literal["loss", "share", "reward"]

# Figures by their names in the trainer's own log. Of those with two names a trainer notes one.
MARGINS = ("rewards/margins", "margin")
RANKINGS = ("rewards/accuracies", "accuracy")
CHOSEN = "logps/chosen"
TOKENS_RIGHT = "mean_token_accuracy"
GROUPS_ALIKE = "frac_reward_zero_std"
PAIRS_APART = "objective/scores_margin"
LENGTH = "completions/mean_length"  # it scales the alarm ``kl``; no alarm is about lengths
MUST_BE_NUMBERS = ("reward", "kl", "objective/scores", "objective/kl")
EARNED = ("reward", "objective/scores", "self_distillation/reward_mean")
# All that Step.noted may hold. ``training.health`` drops any other figure, and an alarm that looks
# at it is silent for good. Nobody gathers these over the processes of a run: a trainer must log the
# same number in each of them, as PPO does for all of its figures by sums over the processes.
NOTED = {
    *MARGINS,
    *RANKINGS,
    CHOSEN,
    TOKENS_RIGHT,
    GROUPS_ALIKE,
    PAIRS_APART,
    LENGTH,
    *MUST_BE_NUMBERS,
    *EARNED,
}


@dataclass(frozen=True)
class Step:
    """Figures of one optimizer step, the same in every process; None is what nobody could see."""

    number: int
    loss: float | None = None
    # the largest entry that was looked at; 0.0 only where every entry is 0
    gradient: float | None = None
    weight: float | None = None  # the root mean square of the weights that were looked at
    moved: bool | None = None  # whether some weight changed
    # the cosine between that change and the gradient of the loss: below 0 is downhill
    slope: float | None = None
    rate: float | None = None  # the highest learning rate so far
    # of the gradient before its clip; where it is infinite, clipping has made every entry 0
    norm: float | None = None
    pace: float = 1.0  # the learning rate as a share of that which the schedule multiplies
    length: float | None = None  # trained tokens of an answer, on average
    skipped: bool = False  # by the gradient scaler of float16, as it does now and then
    # the trainer's own figures, by the name in its log
    noted: Mapping[str, float] = field(default_factory=dict)
    # by reward function: lowest, highest and count since the training began
    rewards: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)

    def first_noted(self, names: tuple[str, ...]) -> float | None:
        """The figure with the first of these names that the trainer has noted; None without any."""
        for name in names:
            if name in self.noted:
                return self.noted[name]
        return None


@dataclass(frozen=True)
class Change:
    """A figure before and after the training: a loss, a share of right answers, or a reward."""

    name: str
    before: float
    after: float
    kind: Kind

    def is_far_worse(self, width: float) -> bool:
        """True for what no healthy training does.

        A loss has more than doubled and risen by a nat, which leaves each token 37 % of its
        probability. One of nearly 0, as that of a teacher's own copy, is ten times what it was, and
        a quarter of a nat more. A share has lost half of the right answers, and a tenth of all
        answers. A mean reward has fallen by a third of ``width``, the distance between the worst
        and the best reward of a completion.
        """
        fall = self.before - self.after
        if self.kind == "loss":
            before = abs(self.before)
            return self.after > min(2 * before + 1, 10 * before + 0.25)
        if self.kind == "share":
            return self.after <= self.before / 2 and fall >= 0.1
        return width > 0 and fall > width / 3

    def __str__(self) -> str:
        return f"{self.name} {number(self.before)} -> {number(self.after)}"
