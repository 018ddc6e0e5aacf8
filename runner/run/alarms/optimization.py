"""Alarms of losses, gradients and weights."""

import math
from dataclasses import dataclass, field
from statistics import fmean

from runner.config.experiment import Tolerate
from runner.run.alarms.advice import MANY_TIMES, PREVIEW
from runner.run.alarms.alarm import HEALTHY, UNKNOWN, Alarm
from runner.run.alarms.observation import GROUPS_ALIKE, MUST_BE_NUMBERS, Step
from runner.schema.literal import number

# Times what a loss was, or 1: more than finite weights of the usual size can do to it.
HUGE_LOSS = 1e6


@dataclass
class NotFinite(Alarm):
    """A loss, gradient, weight or reward that is no number, after which all is lost."""

    name = "not_finite"
    expected = "finite numbers"

    first_loss: float | None = None

    def suspect(self, step: Step) -> str | None:
        if self.first_loss is None and step.loss is not None and math.isfinite(step.loss):
            self.first_loss = step.loss
        figures = {"the loss": step.loss, "a weight": step.weight}
        # float16 scales gradients until they overflow, skips that step and scales them less.
        if not step.skipped:
            figures["the gradient"] = step.gradient
        for name in MUST_BE_NUMBERS:
            figures[name] = step.noted.get(name)
        symptoms = [
            f"{name} is {value}" for name, value in figures.items() if _is_not_finite(value)
        ]
        if symptoms:
            return ", ".join(symptoms)
        if not _has_infinite_norm(step):
            return HEALTHY
        loss = ""
        if step.loss is not None:
            loss = f", that of a loss of {number(step.loss, 3)}"
        return (
            f"the norm of the gradient is {step.norm}{loss}; clipping by it makes every gradient 0"
        )

    def fixes(self, step: Step) -> list[str]:
        lower = self.facts.lower_rate(step.rate)
        is_broken = (
            _has_infinite_norm(step) or _is_not_finite(step.loss) or _is_not_finite(step.gradient)
        )
        # Before the first update no learning rate can be the cause.
        if is_broken and step.number <= 1 and not self.facts.steps_within:
            return [*self.facts.suspects(), f"the rows: {PREVIEW}"]
        usual_loss = max(1.0, abs(self.first_loss or 0.0))
        if step.loss is not None and HUGE_LOSS * usual_loss < abs(step.loss) < math.inf:
            return [
                *self.facts.suspects(),
                "other rows, because some make the loss this large",
                lower,
            ]
        return [lower]


def _is_not_finite(value: float | None) -> bool:
    """True for infinity and NaN; None is what nobody could see."""
    return value is not None and not math.isfinite(value)


def _has_infinite_norm(step: Step) -> bool:
    """True for a gradient whose norm is no finite number, though each of its entries may be one."""
    return _is_not_finite(step.norm) and step.gradient == 0 and not step.skipped


@dataclass
class ZeroGradient(Alarm):
    """No gradient at all.

    Every label is masked, the two answers of each pair are one, or nothing leads to a weight. That
    of one batch may be 0, therefore three steps. It is 0 as well where all has been learnt:
    then there was a gradient before, and little is left of the loss. Of groups of completions it is
    0 while each group has one reward, which is a sickness only where no completion ever had another
    (``constant_reward``).
    """

    name = "zero_gradient"
    expected = "a loss that depends on the weights"
    fix = f"look at what is trained: {PREVIEW}"

    LEARNT = 0.1  # of the first loss, below which all has been learnt
    patience: int = 3
    online: bool = False
    # of a step with a gradient; infinity in the middle of a training
    first_loss: float | None = None

    def suspect(self, step: Step) -> str | None:
        groups_alike = self.online and step.noted.get(GROUPS_ALIKE, 1.0) == 1.0
        if step.loss is None or step.gradient is None or groups_alike:
            return UNKNOWN
        if step.gradient != 0:
            if self.first_loss is None:
                self.first_loss = step.loss
            return HEALTHY
        if self.first_loss is not None and step.loss < self.LEARNT * self.first_loss:
            return HEALTHY
        return f"every gradient is 0, the loss {number(step.loss)}"

    def fixes(self, step: Step) -> list[str]:
        # A gradient of 0 with a norm has lost its entries to the clip.
        if step.norm and self.facts.clips_to_nothing:
            return [self.facts.larger_clip()]
        return [self.fix]


@dataclass
class Frozen(Alarm):
    """Weights that stay as they are.

    The optimizer has others, or what is trained is not what the model uses. Only steps that should
    move them count: not the begin of a warm-up, the end of a decay, or a step without gradient.
    """

    name = "frozen"
    expected = "trained weights that change"
    fix = "another optimizer= or peft="

    MIN_PACE = 0.1
    patience: int = 3

    def suspect(self, step: Step) -> str | None:
        if step.moved:
            return HEALTHY
        should_move = not step.skipped and step.gradient != 0 and step.pace >= self.MIN_PACE
        if step.moved is None or not should_move:
            return UNKNOWN
        return "no trained weight has changed"

    def fixes(self, step: Step) -> list[str]:
        fixes: list[str] = []
        if self.facts.clips_to_nothing:
            fixes.append(self.facts.larger_clip())
        if self.facts.times_usual(step.rate) < 1 / MANY_TIMES:
            fixes.append(self.facts.higher_rate(step.rate))
        if self.facts.is_half:
            fixes.append("model.dtype=float32, where small steps are not rounded away")
        fixes.append(self.fix)
        return fixes


@dataclass
class GradientAscent(Alarm):
    """Weights that follow the gradient of their own loss upwards: a sign is wrong.

    Asked of the first steps alone, until one goes down. Without momentum no optimizer goes up; with
    it a healthy training does, later.
    """

    name = "gradient_ascent"
    expected = "weights that move down the gradient of the loss"
    fix = "the sign in optimizer= (maximize), or a callback that changes gradients"

    MIN_COSINE = 0.05  # weight decay alone moves weights at right angles to the gradient
    patience: int = 3
    over: bool = False

    def suspect(self, step: Step) -> str | None:
        if self.over or step.slope is None:
            return UNKNOWN
        if step.slope <= self.MIN_COSINE:
            self.over = True
            return HEALTHY
        return f"the weights move up the gradient of the loss (cosine {step.slope:.2f})"


@dataclass
class Exploded(Alarm):
    """Weights of 100 times their first size, which is 0.02 to 1 in a healthy model."""

    name = "exploded"
    expected = "weights of about their initial size"

    TIMES = 100
    first: float | None = None

    def suspect(self, step: Step) -> str | None:
        if step.weight is None:
            return UNKNOWN
        if self.first is None:
            self.first = step.weight
        if step.weight > self.TIMES * max(1.0, self.first):
            first = number(self.first, 3)
            return f"the weights have grown from {first} to {number(step.weight, 3)}"
        return HEALTHY

    def fixes(self, step: Step) -> list[str]:
        return [self.facts.lower_rate(step.rate)]


@dataclass
class Diverged(Alarm):
    """A loss far from what it was, five steps in a row.

    Far is three times the lowest mean of five steps, and 6 more. One hard batch of one row can be
    that far off; five in a row do not come by chance, and rows of another kind that come after easy
    ones are at 5 or less. Far below is no better: none of these losses has so much to give, unless
    its sign is wrong. Only losses that fall when the model learns are judged; those of samples do
    not.
    """

    name = "diverged"
    expected = "a loss that falls"
    lag = 1

    TIMES = 3.0
    MORE = 6.0
    STEPS = 5
    patience: int = 5
    last: list[float] = field(default_factory=list)
    lowest: float | None = None

    def suspect(self, step: Step) -> str | None:
        if step.loss is None:
            return UNKNOWN
        if self.lowest is None:
            usual_loss = fmean(self.last or [step.loss])
        else:
            usual_loss = self.lowest
        if abs(step.loss) > self.TIMES * abs(usual_loss) + self.MORE:
            return f"a loss of {number(step.loss, 3)}, after {number(usual_loss, 3)}"
        self.last = [*self.last, step.loss][-self.STEPS :]
        if len(self.last) == self.STEPS:
            level = fmean(self.last)
            self.lowest = level if self.lowest is None else min(level, self.lowest, key=abs)
        return HEALTHY

    def fixes(self, step: Step) -> list[str]:
        return [self.facts.lower_rate(step.rate)]


@dataclass
class HighLoss(Alarm):
    """A loss above ``tolerate.loss`` for ``tolerate.loss_steps`` steps in a row."""

    name = "loss"
    expected = "a lower loss within tolerate.loss_steps steps"
    lag = 1

    patience: int = Tolerate.loss_steps
    most: float = math.inf
    first_loss: float | None = None

    def suspect(self, step: Step) -> str | None:
        if step.loss is None:
            return UNKNOWN
        if self.first_loss is None:
            self.first_loss = step.loss
        if step.loss <= self.most:
            return HEALTHY
        return f"a loss of {number(step.loss)}, but at most {number(self.most)} is tolerated"

    def fixes(self, step: Step) -> list[str]:
        lower = self.facts.lower_rate(step.rate)
        if self.first_loss is None or self.first_loss <= self.most:
            return [lower]
        return [f"a larger tolerate.loss=, because it began at {number(self.first_loss)}", lower]
