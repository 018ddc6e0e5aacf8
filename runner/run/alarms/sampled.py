"""Alarms of sampled completions: what they earn, and how far the policy is from its reference."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from runner.errors import SickRun
from runner.run.alarms.advice import CLOSER
from runner.run.alarms.alarm import HEALTHY, UNKNOWN, Alarm
from runner.run.alarms.observation import (
    EARNED,
    GROUPS_ALIKE,
    LENGTH,
    MARGINS,
    PAIRS_APART,
    Change,
    Step,
)
from runner.schema.literal import number

MAX_FLOAT32 = 3.4e38
# Rare successes may take so many completions; before that, equal rewards are no sickness.
MIN_COMPLETIONS = 128
# Of the distance between the worst and the best reward, so little makes no difference.
SAME_SHARE = 0.01


@dataclass
class KL(Alarm):
    """A policy that has left its reference by 5 nats a token and 50 a completion, twice in a row.

    Policies that are over-optimised but still speak were seen at 1 to 2 nats a token (85 for 53
    tokens). A policy that always says the same, beside a reference that says anything, reaches the
    logarithm of the vocabulary, 10 to 12. A short answer may well cost more than 5 a token, and a
    single completion can carry the estimate of a whole step.
    """

    name = "kl"
    expected = "a policy close to its reference"
    lag = 1

    PER_TOKEN = 5.0
    PER_COMPLETION = 50.0
    patience: int = 2
    length: int | None = None

    def suspect(self, step: Step) -> str | None:
        length = step.noted.get(LENGTH) or self.length
        if not length:
            return UNKNOWN
        kl_of_completion = step.noted.get("objective/kl")
        if kl_of_completion is None and "kl" in step.noted:
            kl_of_completion = step.noted["kl"] * length
        if kl_of_completion is None:
            return UNKNOWN
        if abs(kl_of_completion) <= max(self.PER_COMPLETION, self.PER_TOKEN * length):
            return HEALTHY
        return f"a KL of {number(kl_of_completion, 3)} for a completion of {length:.0f} tokens"

    def fixes(self, step: Step) -> list[str]:
        return self.facts.stay_closer(step.rate)


@dataclass
class ConstantReward(Alarm):
    """The same reward for every completion since the begin, so that noise is learnt.

    In five steps and 128 completions, because rare successes may take that long. Once a reward has
    differed, rewards that are all alike again are what success looks like.
    """

    name = "constant_reward"
    expected = "rewards that tell completions apart"
    patience: int = 5

    def suspect(self, step: Step) -> str | None:
        count = _count_completions(step)
        if count == 0:  # of some reward function nothing is known yet
            return UNKNOWN
        for low, high, _ in step.rewards.values():
            if _tells_apart(low, high):
                return HEALTHY
        if count < MIN_COMPLETIONS and self.count >= self.patience - 1:
            return UNKNOWN
        earned: list[str] = []
        for name, (low, high, _) in step.rewards.items():
            if low == high:
                earned.append(f"{name} gave {number(low, 3)}")
            else:
                span = f"{low!r} to {high!r}"
                earned.append(f"{name} gave {span}, which are about one number in float32,")
        return f"{', '.join(earned)} to each of {count} completions"

    def fixes(self, step: Step) -> list[str]:
        fix = f"{self.facts.easier}; if it is the best reward, there is nothing left to learn"
        return [*self.facts.sample_apart(), fix]


def _tells_apart(low: float, high: float) -> bool:
    """True where two rewards differ by more than rounding, or are whole numbers in float32."""
    if low.is_integer() and high.is_integer() and abs(high) < MAX_FLOAT32:
        return struct.pack("f", low) != struct.pack("f", high)
    return high - low > 1e-6 * max(1.0, abs(high))


@dataclass
class NoSignal(Alarm):
    """Rewards that prefer no completion to another of its prompt, since the begin or for 20 steps.

    Nothing but rounding is learnt. One reward may differ from prompt to prompt, and yet prefer no
    completion to another of the same prompt: groups are each alike, pairs are ties, or the one
    sample of a prompt earns what is expected. Rare successes take as long as for a constant reward.
    A training that ends earlier has learnt nothing either, unless it was of a step or two. What
    rounding leaves of a gradient that is 0, Adam makes into steps of full size: therefore the
    rewards are asked, and not the gradient.

    Once some step had a preference, groups that are alike again are what success looks like: it
    takes 20 steps and 512 completions in a row, and a mean reward that is less than the best one.
    The checkpoints of those steps are as good as those before.
    """

    name = "no_signal"
    expected = "completions of a prompt that earn different rewards"

    MIN_STEPS = 3
    STEPS_LATER = 20
    COMPLETIONS_LATER = 512
    patience: int = 5
    over: bool = False  # the steps since the begin, as some had a preference
    silent_steps: int = 0  # in a row, since then
    silent_completions: int = 0  # in those steps
    completions: int = 0  # up to the last step; a resume counts from 0 again

    def observe(self, step: Step) -> SickRun | None:
        """The end of a run without a signal from its begin on, or for long after it had one."""
        fresh_completions = max(0, _count_completions(step) - self.completions)
        self.completions = _count_completions(step)
        if not self.over:
            return super().observe(step)
        is_silent = self._is_silent(step)
        if is_silent is None:
            return None
        if not is_silent or self._may_be_success(step):
            self.silent_steps = 0
            self.silent_completions = 0
            return None
        self.silent_steps += 1
        self.silent_completions += fresh_completions
        is_early = self.silent_steps < max(self.STEPS_LATER, self.patience)
        if is_early or self.silent_completions < self.COMPLETIONS_LATER:
            return None
        fixes = [*self.facts.sample_apart(), "prompts that are solved now and then"]
        if self.facts.has_kl_coef:
            fixes.append(CLOSER)
        symptom = (
            f"all completions of each prompt earned the same in the last {self.silent_steps} steps"
        )
        return SickRun(self.fault(step, symptom, fixes))

    def _may_be_success(self, step: Step) -> bool:
        """True where completions earn as much as the best one so far, or nobody can tell."""
        earned = step.first_noted(EARNED)
        best = self.facts.best_of(step.rewards)
        if earned is None or best is None:
            return True
        return earned >= best - SAME_SHARE * self.facts.width_of(step.rewards)

    def suspect(self, step: Step) -> str | None:
        is_silent = self._is_silent(step)
        if is_silent is None:
            return UNKNOWN
        if not is_silent:
            self.over = True
            return HEALTHY
        # Where rewards are counted, the last step of the patience waits for enough of them.
        are_few = bool(step.rewards) and _count_completions(step) < MIN_COMPLETIONS
        if are_few and self.count >= self.patience - 1:
            return UNKNOWN
        return self._symptom(step)

    def conclude(self, step: Step, held_out: Sequence[Change]) -> SickRun | None:
        """The end of a training too short for the alarm, without any preference in its steps."""
        if self.over or self.count < self.MIN_STEPS:
            return None
        fault = self.fault(step, self._symptom(step), self.fixes(step))
        return SickRun(fault)

    def fixes(self, step: Step) -> list[str]:
        fix = f"{self.facts.easier}, or more completions of each"
        return [*self.facts.sample_apart(), fix]

    def _symptom(self, step: Step) -> str:
        """The sickness in the terms of what the trainer samples: groups, pairs or single ones."""
        if GROUPS_ALIKE in step.noted:
            return f"all completions of each prompt earned the same in all {step.number} steps"
        if _margins_of(step):
            return f"the two completions of each prompt earned the same in all {step.number} steps"
        return f"every gradient was 0 in all {step.number} steps"

    def _is_silent(self, step: Step) -> bool | None:
        """True for a step without any preference; None where nothing tells."""
        if GROUPS_ALIKE in step.noted:
            return step.noted[GROUPS_ALIKE] == 1.0
        margins = _margins_of(step)
        if margins:
            return min(map(abs, margins)) == 0.0
        if step.gradient is None:
            return None
        return step.gradient == 0.0


def _count_completions(step: Step) -> int:
    """The completions since the begin that every reward has judged."""
    return min((count for _, _, count in step.rewards.values()), default=0)


def _margins_of(step: Step) -> list[float]:
    """The margins between the two completions of a prompt that a trainer has noted."""
    margins = []
    for name in (PAIRS_APART, MARGINS[0]):
        if name in step.noted:
            margins.append(step.noted[name])
    return margins
