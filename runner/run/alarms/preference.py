"""Alarms of preferences: pairs of an answer that is chosen and one that is rejected."""

import math
from dataclasses import dataclass, field
from statistics import fmean, stdev

from runner.run.alarms.advice import MANY_TIMES
from runner.run.alarms.alarm import HEALTHY, UNKNOWN, Alarm
from runner.run.alarms.observation import CHOSEN, MARGINS, RANKINGS, Step
from runner.schema.literal import number

# The margin of a step, and the share of its pairs that are ranked right where that is noted.
Ranking = tuple[float, float | None]


@dataclass
class PreferencesInverted(Alarm):
    """Preferences learnt the wrong way round: the chosen answers fall behind the rejected ones.

    Five steps and 32 pairs are judged. All those margins are below where they began, and so many
    pairs are ranked wrongly that chance would do it one time in a thousand; where no ranking is
    noted, ten margins have fallen by four standard errors. With a reference all begins with a
    margin of 0 and even odds, without one with what the first five steps showed. A held-out reward
    may fall in a healthy run; what is trained on may not.
    """

    name = "preferences_inverted"
    expected = "chosen answers that become more likely than rejected ones"
    fix = "the sign of the loss (loss=, or a callback that changes gradients)"

    STEPS = 5
    PAIRS = 32
    MAX_RIGHT = 1 / 3
    MIN_FALL = 1e-3
    ERRORS_OF_RANKS = 3.0
    ERRORS_OF_MARGINS = 4.0
    anchored: bool = False
    pairs: int = 1
    first: list[Ranking] = field(default_factory=list)
    last: list[Ranking] = field(default_factory=list)
    first_loss: float | None = None

    def suspect(self, step: Step) -> str | None:
        if self.first_loss is None:
            self.first_loss = step.loss
        margin = step.first_noted(MARGINS)
        share_right = step.first_noted(RANKINGS)
        if margin is None:
            return UNKNOWN
        size = 2 * self.STEPS
        if share_right is not None:
            size = max(self.STEPS, math.ceil(self.PAIRS / self.pairs))

        # The first steps are what later ones are compared with.
        if len(self.first) < (1 if self.anchored else size):
            self.first.append((margin, share_right))
            return HEALTHY
        self.last = [*self.last, (margin, share_right)][-size:]
        begin = 0.0
        if not self.anchored:
            begin = fmean(margin for margin, _ in self.first)
        falls = [begin - margin for margin, _ in self.last]
        if len(falls) < size or min(falls) <= 0:
            return HEALTHY
        mean_fall = fmean(falls)
        if mean_fall <= self.MIN_FALL:
            return HEALTHY

        if share_right is None:
            standard_error = stdev(falls) / math.sqrt(len(falls))
            is_clear = mean_fall > self.ERRORS_OF_MARGINS * standard_error
        else:
            is_clear = self._ranks_are_clearly_wrong(size)
        if not is_clear:
            return HEALTHY
        return (
            "the margin of chosen over rejected has fallen "
            f"from {number(begin, 3)} to {number(margin, 3)}"
        )

    def _ranks_are_clearly_wrong(self, size: int) -> bool:
        """True where few pairs are ranked right, and fewer than at first by more than chance."""
        now = _mean_share(self.last)
        before = 0.5  # the odds of a policy that is its reference
        if not self.anchored:
            before = _mean_share(self.first)
        variance = before * (1 - before)
        if not self.anchored:  # what was seen at first is uncertain too
            variance += now * (1 - now)
        judged_pairs = size * self.pairs
        standard_error = math.sqrt(variance / judged_pairs)
        is_beyond_chance = before - now >= self.ERRORS_OF_RANKS * standard_error
        return now <= self.MAX_RIGHT and is_beyond_chance

    def fixes(self, step: Step) -> list[str]:
        lower = self.facts.lower_rate(step.rate)
        sign = self.fix
        if self.facts.times_usual(step.rate) >= MANY_TIMES:
            return [lower, sign]
        if step.loss is None or self.first_loss is None:
            return [sign, lower]
        # A loss of the wrong sign falls as the margins do.
        if step.loss > self.first_loss:
            return [lower, sign]
        return [sign]


def _mean_share(rankings: list[Ranking]) -> float:
    """The mean share of pairs that are ranked right."""
    return fmean(share_right or 0.0 for _, share_right in rankings)


@dataclass
class ChosenLost(Alarm):
    """Preferences learnt by making both answers impossible.

    The chosen ones have lost 5 nats a token, and 50 an answer. A loss of preferences is small
    wherever the rejected answers have lost more. Healthy trainings take 1 to 2 nats a token from
    the chosen ones as well; a model that says anything has lost the logarithm of the vocabulary, 10
    to 12. Answers are compared with those of the first step, which are those of the reference where
    there is one.
    """

    name = "chosen_lost"
    expected = "chosen answers that the model still gives"
    lag = 1

    PER_TOKEN = 5.0
    PER_ANSWER = 50.0
    patience: int = 2
    first: float | None = None  # a token's log-probability in the first step

    def suspect(self, step: Step) -> str | None:
        log_probability = step.noted.get(CHOSEN)
        if log_probability is None or not step.length:
            return UNKNOWN
        now = log_probability / step.length  # of a token, as answers differ in length
        if self.first is None:
            self.first = now
        lost_per_token = self.first - now
        lost = lost_per_token * step.length
        if lost <= max(self.PER_ANSWER, self.PER_TOKEN * step.length):
            return HEALTHY
        return (
            f"a log-probability of {number(now, 3)} for a token of the chosen answers, "
            f"after {number(self.first, 3)}"
        )

    def fixes(self, step: Step) -> list[str]:
        return self.facts.stay_closer(step.rate)


@dataclass
class FirstMargin(Alarm):
    """A policy and a reference that differ before anything was learned.

    Both are the start model, and so the margin is 0. Anything else is a wrong reference: an adapter
    copied with its weights, other weights read from disk, dropout in one of the two.
    """

    name = "first_margin"
    expected = (
        "a margin of 0, because nothing was learned yet: the reference is not the start model"
    )
    fix = "trainer.args.disable_dropout=true, no model.config.attention_dropout=, or another peft="

    tolerance: float = 0.0

    def suspect(self, step: Step) -> str | None:
        margin = step.noted.get("rewards/margins")
        if step.number == 1 and margin is not None and abs(margin) > self.tolerance:
            return f"a reward margin of {number(margin, 3)}"
        return HEALTHY
