"""Alarms: what makes a training sick, each a small class that observes every optimizer step.

An alarm's name, thresholds and patience stand in its class; what it expects and says to type, its lag, and why its
thresholds are these, in alarms.yaml. Step numbers are those of the whole training, also after a resume.

``training.health`` fills in each :class:`Step`, and says what kind of training the alarms are built for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, dataclass_transform

from runner.errors import Fault, SickRun
from runner.schema.text import number, read_tables

TABLE: dict[str, dict[str, Any]] = read_tables(__file__)
MARGINS, RANKINGS = ("rewards/margins", "margin"), ("rewards/accuracies", "accuracy")
HEALTHY, UNKNOWN = "", None
MUST_BE_NUMBERS = ("reward", "kl", "objective/scores", "objective/kl")
# Of these the mean length only scales the alarm ``kl``: none is of lengths.
CHOSEN = "logps/chosen"
NOTED = {CHOSEN, *MARGINS, *RANKINGS, *MUST_BE_NUMBERS, "completions/mean_length", "frac_reward_zero_std"}


@dataclass(frozen=True)
class Step:
    """Figures of one optimizer step, alike in every process; None is what nobody could see."""

    number: int
    loss: float | None = None
    gradient: float | None = None  # the largest entry that was looked at; 0.0 only where every entry is 0
    weight: float | None = None  # the root mean square of the weights that were looked at
    moved: bool | None = None  # whether some weight changed
    slope: float | None = None  # the cosine between that change and the gradient of the loss: below 0 is downhill
    pace: float = 1.0  # the learning rate as a share of that which the schedule multiplies
    length: float | None = None  # trained tokens of an answer, on average
    skipped: bool = False  # by the gradient scaler of float16, as it does now and then
    noted: Mapping[str, float] = field(default_factory=dict)  # the trainer's own figures, by the name in its log
    rewards: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)  # lowest, highest, count since begin


@dataclass_transform(field_specifiers=(field,))
@dataclass
class Alarm:
    """One way to be sick: ``patience`` steps in a row that ``suspect`` finds something wrong with; each a dataclass."""

    name = expected = fix = ""  # of each alarm those in alarms.yaml, as what follows
    curable, lag = False, 0
    patience: int = 1
    count: int = 0  # of steps in a row, so far

    def __init_subclass__(cls, name: str) -> None:
        for key, value in {"name": name, **TABLE[name]}.items():
            setattr(cls, key, value)
        dataclass(cls)

    def suspect(self, step: Step) -> str | None:
        """A line on what is wrong with a step; HEALTHY; or UNKNOWN where it has nothing of what the alarm looks at."""
        raise NotImplementedError

    def observe(self, step: Step) -> SickRun | None:
        """Take a step into account, and return the end of the run where it is time."""
        if (found := self.suspect(step)) is UNKNOWN:
            return None
        self.count = self.count + 1 if found else 0
        return self.sickness(step.number, found) if found and self.count >= self.patience else None

    def sickness(self, number: int, found: str) -> SickRun:
        """The end of a run; its checkpoints are good up to the step before the first that looked sick."""
        fix = f"{self.fix}; or tolerate.{self.name}=true"
        fault = Fault(f"{self.name} at step {number}", found, self.expected, fix)
        return SickRun(fault, healthy=max(0, number - self.patience - self.lag), curable=self.curable)


class NotFinite(Alarm, name="not_finite"):
    """A loss, gradient, weight or reward that is no number: nothing is learnt from it, and all after it is lost."""

    def suspect(self, step: Step) -> str | None:
        seen = {"the loss": step.loss, "a weight": step.weight}
        # float16 scales gradients until they overflow, skips that step and scales them less.
        seen |= {} if step.skipped else {"the gradient": step.gradient}
        seen |= {name: step.noted.get(name) for name in MUST_BE_NUMBERS}
        bad = [f"{name} is {value}" for name, value in seen.items() if value is not None and not math.isfinite(value)]
        return ", ".join(bad)


class ZeroGradient(Alarm, name="zero_gradient"):
    """No gradient at all: every label is masked, the two answers of each pair are one, or nothing leads to a weight."""

    LEFT = 0.1
    patience: int = 3
    online: bool = False
    first_loss: float | None = None  # infinity in the middle of a training

    def suspect(self, step: Step) -> str | None:
        groups_alike = self.online and step.noted.get("frac_reward_zero_std", 1.0) == 1.0
        if step.loss is None or step.gradient is None or groups_alike:
            return UNKNOWN
        if step.gradient != 0:
            self.first_loss = step.loss if self.first_loss is None else self.first_loss
            return HEALTHY
        is_learnt = self.first_loss is not None and step.loss < self.LEFT * self.first_loss
        return HEALTHY if is_learnt else f"every gradient is 0, the loss {number(step.loss)}"


class Frozen(Alarm, name="frozen"):
    """Weights that stay as they are: the optimizer has others, or what is trained is not what the model uses."""

    PACE = 0.1
    patience: int = 3

    def suspect(self, step: Step) -> str | None:
        if step.moved is None or step.skipped or step.gradient == 0 or step.pace < self.PACE:
            return HEALTHY if step.moved else UNKNOWN
        return HEALTHY if step.moved else "no trained weight has changed"


class GradientAscent(Alarm, name="gradient_ascent"):
    """Weights that follow the gradient of their own loss upwards, so that the opposite is learnt: a sign is wrong."""

    LEAST = 0.05  # weight decay alone moves them at right angles to it
    patience: int = 3
    over: bool = False

    def suspect(self, step: Step) -> str | None:
        if self.over or step.slope is None:
            return UNKNOWN
        self.over = step.slope <= self.LEAST
        return HEALTHY if self.over else f"the weights move up the gradient of the loss (cosine {step.slope:.2f})"


class Exploded(Alarm, name="exploded"):
    """Weights beyond all sizes that a model has: they began near 0.02 to 1 and are 100 times what they were."""

    TIMES = 100
    first: float | None = None

    def suspect(self, step: Step) -> str | None:
        if step.weight is None:
            return UNKNOWN
        self.first = step.weight if self.first is None else self.first
        grown = f"the weights have grown from {number(self.first, 3)} to {number(step.weight, 3)}"
        return grown if step.weight > self.TIMES * max(1.0, self.first) else HEALTHY


class Diverged(Alarm, name="diverged"):
    """A loss far from what it was, five steps in a row: three times the lowest mean of five steps, and 6 more."""

    TIMES, MORE, STEPS = 3.0, 6.0, 5
    patience: int = 5
    last: list[float] = field(default_factory=list)
    lowest: float | None = None

    def suspect(self, step: Step) -> str | None:
        if step.loss is None:
            return UNKNOWN
        usual = fmean(self.last or [step.loss]) if self.lowest is None else self.lowest
        if abs(step.loss) > self.TIMES * abs(usual) + self.MORE:
            return f"a loss of {number(step.loss, 3)}, after {number(usual, 3)}"
        self.last = [*self.last, step.loss][-self.STEPS :]
        if len(self.last) == self.STEPS:
            level = fmean(self.last)
            self.lowest = level if self.lowest is None else min(level, self.lowest, key=abs)
        return HEALTHY


class HighLoss(Alarm, name="loss"):
    """A loss above the one that ``tolerate.loss`` names, for ``tolerate.loss_steps`` steps in a row; none without."""

    patience: int = 3
    most: float = math.inf

    def suspect(self, step: Step) -> str | None:
        if step.loss is None:
            return UNKNOWN
        high = f"a loss of {number(step.loss)}, and at most {number(self.most)} is tolerated"
        return HEALTHY if step.loss <= self.most else high


class KL(Alarm, name="kl"):
    """A policy that has left its reference: more than 5 nats a token and 50 a completion, two steps in a row."""

    PER_TOKEN, PER_COMPLETION = 5.0, 50.0
    patience: int = 2
    length: int | None = None

    def suspect(self, step: Step) -> str | None:
        length = step.noted.get("completions/mean_length") or self.length
        if (whole := step.noted.get("objective/kl")) is None and "kl" in step.noted and length:
            whole = step.noted["kl"] * length
        if whole is None or not length:
            return UNKNOWN
        is_near = abs(whole) <= max(self.PER_COMPLETION, self.PER_TOKEN * length)
        return HEALTHY if is_near else f"a KL of {number(whole, 3)} for a completion of {length:.0f} tokens"


class PreferencesInverted(Alarm, name="preferences_inverted"):
    """Preferences learnt the wrong way round: for five steps, and 32 pairs, the chosen answers have fallen behind."""

    STEPS, PAIRS, RIGHT, LEAST = 5, 32, 1 / 3, 1e-3
    ERRORS_OF_RANKS, ERRORS_OF_MARGINS = 3.0, 4.0
    anchored: bool = False
    pairs: int = 1
    first: list[tuple[float, float | None]] = field(default_factory=list)
    last: list[tuple[float, float | None]] = field(default_factory=list)

    def suspect(self, step: Step) -> str | None:
        noted = step.noted
        margin, right = (next((noted[name] for name in names if name in noted), None) for names in (MARGINS, RANKINGS))
        if margin is None:
            return UNKNOWN
        size = 2 * self.STEPS if right is None else max(self.STEPS, math.ceil(self.PAIRS / self.pairs))
        if len(self.first) < (1 if self.anchored else size):
            self.first.append((margin, right))
            return HEALTHY
        self.last = [*self.last, (margin, right)][-size:]
        begin = 0.0 if self.anchored else fmean(margin for margin, _ in self.first)
        falls = [begin - margin for margin, _ in self.last]
        if len(falls) < size or min(falls) <= 0 or fmean(falls) <= self.LEAST:
            return HEALTHY
        error = stdev(falls) / math.sqrt(len(falls))
        is_clear = fmean(falls) > self.ERRORS_OF_MARGINS * error
        if right is not None:
            now, before = (fmean(right or 0.0 for _, right in part) for part in (self.last, self.first))
            before = 0.5 if self.anchored else before
            spread = before * (1 - before) + (0 if self.anchored else now * (1 - now))
            error = math.sqrt(spread / (size * self.pairs))
            is_clear = now <= self.RIGHT and before - now >= self.ERRORS_OF_RANKS * error
        fallen = f"the margin of chosen over rejected has fallen from {number(begin, 3)} to {number(margin, 3)}"
        return fallen if is_clear else HEALTHY


class ChosenLost(Alarm, name="chosen_lost"):
    """Preferences learnt by making both answers impossible: the chosen ones have lost 5 nats a token, 50 an answer."""

    PER_TOKEN, PER_ANSWER = 5.0, 50.0
    patience: int = 2
    first: float | None = None  # a token's log-probability in the first step

    def suspect(self, step: Step) -> str | None:
        if (whole := step.noted.get(CHOSEN)) is None or not step.length:
            return UNKNOWN
        now = whole / step.length
        self.first = now if self.first is None else self.first
        if (self.first - now) * step.length <= max(self.PER_ANSWER, self.PER_TOKEN * step.length):
            return HEALTHY
        return f"a log-probability of {number(now, 3)} for a token of the chosen answers, after {number(self.first, 3)}"


class ConstantReward(Alarm, name="constant_reward"):
    """The same reward for every completion since the begin: there is nothing to prefer, and noise is learnt."""

    COMPLETIONS = 128
    patience: int = 5

    def suspect(self, step: Step) -> str | None:
        if not step.rewards or not all(count for _, _, count in step.rewards.values()):
            return UNKNOWN
        if any(high - low > 1e-6 * max(1.0, abs(high)) for low, high, _ in step.rewards.values()):
            return HEALTHY
        count = min(count for _, _, count in step.rewards.values())
        if count < self.COMPLETIONS and self.count >= self.patience - 1:
            return UNKNOWN
        given = ", ".join(f"{name} gave {number(low, 3)}" for name, (low, _, _) in step.rewards.items())
        return f"{given} to each of {count} completions"


class FirstMargin(Alarm, name="first_margin"):
    """A policy and a reference that differ before anything was learned: both are the start model, and the margin 0."""

    tolerance: float = 0.0

    def suspect(self, step: Step) -> str | None:
        margin = step.noted.get("rewards/margins")
        is_off = step.number == 1 and margin is not None and abs(margin) > self.tolerance
        return f"a reward margin of {number(margin, 3)}" if is_off else HEALTHY


def steps_to_notice(tolerate: Mapping[str, Any] | None = None) -> int:
    """The most steps that pass from the last healthy one until a sickness is noticed, of whatever kind of training."""
    alarms = [alarm for online in (True, False) for alarm in build_alarms(tolerate, online=online)]
    return max((alarm.patience + alarm.lag for alarm in alarms), default=1)


def build_alarms(
    tolerate: Mapping[str, Any] | None = None,
    *,
    online: bool = False,
    anchored: bool = False,
    pairs: int = 1,
    rounding: float | None = None,
    length: int | None = None,
    resumed: bool = False,
) -> list[Alarm]:
    """The alarms of one kind of training, as ``tolerate`` leaves them.

    ``online`` is learning from rewarded samples of at most ``length`` tokens, ``anchored`` beside a reference, from
    ``pairs`` in each step. ``rounding`` is by how much the first margin may differ from 0; None where it need not be 0.
    """
    tolerate = tolerate or {}
    alarms: list[Alarm] = [NotFinite(), Frozen(), Exploded()]
    alarms += [ZeroGradient(online=online, first_loss=math.inf if resumed else None), GradientAscent(over=resumed)]
    if online:
        alarms += [ConstantReward(), KL(length=length)]
    else:
        alarms += [PreferencesInverted(anchored=anchored, pairs=pairs), ChosenLost(), Diverged()]
    alarms += [] if rounding is None else [FirstMargin(tolerance=rounding)]
    for alarm in alarms:
        steps = tolerate.get(alarm.name)
        alarm.patience = steps if steps and steps is not True else alarm.patience
    if most := tolerate.get(HighLoss.name):
        alarms.append(HighLoss(patience=tolerate.get("loss_steps") or HighLoss.patience, most=most))
    return [alarm for alarm in alarms if tolerate.get(alarm.name) is not True]


ALARMS = tuple(kind.name for kind in Alarm.__subclasses__())
