"""Alarms: what makes a training sick, each a small class that observes every optimizer step.

An alarm's name, thresholds and patience stand in its class; what it expects, its lag, and why its thresholds are these,
in alarms.yaml, with what it says to type where that is always the same. Where a sickness has several causes the class
puts them in order, by what the steps have shown and by the :class:`Facts` of the configuration. Step numbers are those
of the whole training, also after a resume.

``training.health`` fills in each :class:`Step`, and says what kind of training the alarms are built for.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal, dataclass_transform

from runner.errors import Fault, SickRun
from runner.schema.text import number, read_tables

TABLE: dict[str, dict[str, Any]] = read_tables(__file__)
MARGINS, RANKINGS = ("rewards/margins", "margin"), ("rewards/accuracies", "accuracy")
HEALTHY, UNKNOWN = "", None
MAX_FLOAT32 = 3.4e38
Kind = Literal["loss", "share", "reward"]
MUST_BE_NUMBERS = ("reward", "kl", "objective/scores", "objective/kl")
# Of these the mean length only scales the alarm ``kl``: none is of lengths.
CHOSEN, TOKENS_RIGHT = "logps/chosen", "mean_token_accuracy"
GROUPS_ALIKE, PAIRS_APART = "frac_reward_zero_std", "objective/scores_margin"
NOTED = {CHOSEN, *MARGINS, *RANKINGS, *MUST_BE_NUMBERS, "completions/mean_length", GROUPS_ALIKE, PAIRS_APART}
EARNED = ("reward", "objective/scores", "self_distillation/reward_mean")
NOTED |= {TOKENS_RIGHT, *EARNED}
MANY_TIMES = 30  # a rate so many times the usual one is high: adapters learn at ten times the rate of all weights
TINY_CLIP = 1e-6  # a clip below it leaves nothing that Adam, whose epsilon is 1e-8, tells from 0
HUGE_LOSS = 1e6  # times what a loss was, or 1: beyond what weights can do that are themselves finite and of their size
PREVIEW = "python -m runner preview <the same words>"
LOWER, CLOSER = "a lower learning_rate=", "a larger kl_coef="


@dataclass(frozen=True)
class Step:
    """Figures of one optimizer step, alike in every process; None is what nobody could see."""

    number: int
    loss: float | None = None
    gradient: float | None = None  # the largest entry that was looked at; 0.0 only where every entry is 0
    weight: float | None = None  # the root mean square of the weights that were looked at
    moved: bool | None = None  # whether some weight changed
    slope: float | None = None  # the cosine between that change and the gradient of the loss: below 0 is downhill
    rate: float | None = None  # the highest learning rate so far
    norm: float | None = None  # of the gradient before its clip; an endless one has made every entry 0
    pace: float = 1.0  # the learning rate as a share of that which the schedule multiplies
    length: float | None = None  # trained tokens of an answer, on average
    skipped: bool = False  # by the gradient scaler of float16, as it does now and then
    noted: Mapping[str, float] = field(default_factory=dict)  # the trainer's own figures, by the name in its log
    rewards: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)  # lowest, highest, count since begin


@dataclass(frozen=True)
class Change:
    """A figure before and after the training, and what kind it is of: a loss, a share of right answers, a reward."""

    name: str
    before: float
    after: float
    kind: Kind

    def is_far_worse(self, width: float) -> bool:
        """True for what no healthy training does; ``width`` lies between the worst and the best reward of any.

        A loss has more than doubled and risen by a nat, by which each token keeps 37 % of its probability; one of
        nearly 0, as that of a teacher's own copy, is ten times what it was, and a quarter of a nat more. Of right
        answers half are lost, and a tenth of all answers. A mean reward has fallen by a third of the width.
        """
        if self.kind == "loss":
            before = abs(self.before)
            return self.after > min(2 * before + 1, 10 * before + 0.25)
        if self.kind == "share":
            return self.after <= self.before / 2 and self.before - self.after >= 0.1
        return width > 0 and self.before - self.after > width / 3

    def __str__(self) -> str:
        return f"{self.name} {number(self.before)} -> {number(self.after)}"


@dataclass(frozen=True)
class Facts:
    """Values of a configuration that tell one cause of a sickness from another; the defaults are those not known."""

    usual_rate: float | None = None  # that its options bring
    max_grad_norm: float = 0.0  # 0 clips nothing
    has_kl_coef: bool = True
    is_half: bool = False  # weights of 16 bits, in which small steps are rounded away
    steps_within: bool = False  # a step has taken several updates by the time that its loss is known, as PPO's
    greedy: str = ""  # what to type where all completions of a prompt are sampled alike
    reward_weights: tuple[float, ...] = ()
    changed: tuple[str, ...] = ()  # what to type about parts that can make a loss endless before anything is learnt

    def times_usual(self, rate: float | None) -> float:
        """The rate as a multiple of the usual one; 1 where that is not known."""
        return rate / self.usual_rate if rate is not None and self.usual_rate else 1.0

    def lower_rate(self, rate: float | None) -> str:
        """The advice to lower the rate, with how high it is where it is above the usual one."""
        times = self.times_usual(rate)
        return f"{LOWER} ({self._beside(rate, times)})" if times >= 2 else LOWER

    def higher_rate(self, rate: float | None) -> str:
        """The advice to raise the rate, with how low it is."""
        return f"a higher learning_rate= ({self._beside(rate, self.times_usual(rate))})"

    def suspects(self) -> list[str]:
        """The parts that may make a loss or a gradient endless without any step of the optimizer."""
        return [*self.changed, *(["model.dtype=float32"] if self.is_half else [])]

    def larger_clip(self) -> str:
        """The advice to clip less."""
        return f"trainer.args.max_grad_norm=1, as {number(self.max_grad_norm)} clips every gradient to nothing"

    def stay_closer(self, rate: float | None) -> list[str]:
        """The ways to keep a policy near its reference, the rate first where that is high."""
        lower = self.lower_rate(rate)
        if not self.has_kl_coef:
            return [lower]
        return [lower, CLOSER] if self.times_usual(rate) >= MANY_TIMES else [CLOSER, lower]

    def sample_apart(self) -> list[str]:
        """The advice to sample completions that differ, where they cannot."""
        return [self.greedy] if self.greedy else []

    def width_of(self, rewards: Mapping[str, tuple[float, float, int]]) -> float:
        """The way between the worst and the best sum of rewards that a completion may have earned so far."""
        weights = self.reward_weights or (1.0,) * len(rewards)
        widths = [high - low for low, high, count in rewards.values() if count]
        if len(widths) != len(weights):
            return 0.0
        return sum(abs(weight) * width for weight, width in zip(weights, widths, strict=True))

    def _beside(self, rate: float | None, times: float) -> str:
        return f"{number(rate, 3)} is {number(times, 3)} times {number(self.usual_rate, 3)}, the usual one here"


@dataclass_transform(field_specifiers=(field,))
@dataclass
class Alarm:
    """One way to be sick: ``patience`` steps in a row that ``suspect`` finds something wrong with; each a dataclass."""

    name = expected = fix = ""  # of each alarm those in alarms.yaml, as what follows
    lag = 0
    patience: int = 1
    count: int = 0  # of steps in a row, so far
    facts: Facts = field(default_factory=Facts, kw_only=True)

    def __init_subclass__(cls, name: str) -> None:
        for key, value in {"name": name, **TABLE[name]}.items():
            setattr(cls, key, value)
        dataclass(cls)

    def suspect(self, step: Step) -> str | None:
        """A line on what is wrong with a step; HEALTHY; or UNKNOWN where it has nothing of what the alarm looks at."""
        raise NotImplementedError

    def fixes(self, step: Step) -> list[str]:
        """The ways out, the likeliest first; of the causes that there are, those that the step leaves possible."""
        return [self.fix]

    def observe(self, step: Step) -> SickRun | None:
        """Take a step into account, and return the end of the run where it is time."""
        if (found := self.suspect(step)) is UNKNOWN:
            return None
        self.count = self.count + 1 if found else 0
        return self.sickness(step, found) if found and self.count >= self.patience else None

    def conclude(self, step: Step, held_out: Sequence[Change]) -> SickRun | None:
        """The end of a run whose last step is taken; None for one that is well."""
        return None

    def sickness(self, step: Step, found: str) -> SickRun:
        """The end of a run; its checkpoints are good up to the step before the first that looked sick."""
        healthy = max(0, step.number - self.patience - self.lag)
        fixes = self.fixes(step)
        fault = self.fault(step, found, fixes)
        return SickRun(fault, healthy=healthy, curable=_is_curable(fixes))

    def fault(self, step: Step, found: str, fixes: Sequence[str]) -> Fault:
        """The four beats of a sickness."""
        ways = [*fixes, *(["on_sick=rollback"] if _is_curable(fixes) else [])]
        fix = "; or ".join([*ways, f"tolerate.{self.name}=true"])
        return Fault(f"{self.name} at step {step.number}", found, self.expected, fix)


def _is_curable(fixes: Sequence[str]) -> bool:
    """True where a lower rate may help."""
    return any(fix.startswith(LOWER) for fix in fixes)


class NotFinite(Alarm, name="not_finite"):
    """A loss, gradient, weight or reward that is no number: nothing is learnt from it, and all after it is lost."""

    first_loss: float | None = None

    def suspect(self, step: Step) -> str | None:
        if self.first_loss is None and step.loss is not None and math.isfinite(step.loss):
            self.first_loss = step.loss
        seen = {"the loss": step.loss, "a weight": step.weight}
        # float16 scales gradients until they overflow, skips that step and scales them less.
        seen |= {} if step.skipped else {"the gradient": step.gradient}
        seen |= {name: step.noted.get(name) for name in MUST_BE_NUMBERS}
        bad = [f"{name} is {value}" for name, value in seen.items() if value is not None and not math.isfinite(value)]
        if not bad and _is_endless(step):
            loss = f", that of a loss of {number(step.loss, 3)}" if step.loss is not None else ""
            bad = [f"the norm of the gradient is {step.norm}{loss}; clipped by it every gradient is 0"]
        return ", ".join(bad)

    def fixes(self, step: Step) -> list[str]:
        lower = self.facts.lower_rate(step.rate)
        figures = [figure for figure in (step.loss, step.gradient) if figure is not None]
        is_broken = _is_endless(step) or not all(map(math.isfinite, figures))
        if is_broken and step.number <= 1 and not self.facts.steps_within:
            return [*self.facts.suspects(), f"the rows: {PREVIEW}"]
        usual = max(1.0, abs(self.first_loss or 0.0))
        if step.loss is not None and HUGE_LOSS * usual < abs(step.loss) < math.inf:
            return [*self.facts.suspects(), "other rows, of which some make a loss as large", lower]
        return [lower]


def _is_endless(step: Step) -> bool:
    """True for a gradient whose norm has no number, though each of its entries may have one."""
    has_norm = step.norm is None or math.isfinite(step.norm)
    return not has_norm and step.gradient == 0 and not step.skipped


class ZeroGradient(Alarm, name="zero_gradient"):
    """No gradient at all: every label is masked, the two answers of each pair are one, or nothing leads to a weight."""

    LEFT = 0.1
    patience: int = 3
    online: bool = False
    first_loss: float | None = None  # infinity in the middle of a training

    def suspect(self, step: Step) -> str | None:
        groups_alike = self.online and step.noted.get(GROUPS_ALIKE, 1.0) == 1.0
        if step.loss is None or step.gradient is None or groups_alike:
            return UNKNOWN
        if step.gradient != 0:
            self.first_loss = step.loss if self.first_loss is None else self.first_loss
            return HEALTHY
        is_learnt = self.first_loss is not None and step.loss < self.LEFT * self.first_loss
        return HEALTHY if is_learnt else f"every gradient is 0, the loss {number(step.loss)}"

    def fixes(self, step: Step) -> list[str]:
        is_clipped = bool(step.norm) and 0 < self.facts.max_grad_norm < TINY_CLIP
        return [self.facts.larger_clip()] if is_clipped else [self.fix]


class Frozen(Alarm, name="frozen"):
    """Weights that stay as they are: the optimizer has others, or what is trained is not what the model uses."""

    PACE = 0.1
    patience: int = 3

    def suspect(self, step: Step) -> str | None:
        if step.moved is None or step.skipped or step.gradient == 0 or step.pace < self.PACE:
            return HEALTHY if step.moved else UNKNOWN
        return HEALTHY if step.moved else "no trained weight has changed"

    def fixes(self, step: Step) -> list[str]:
        fixes = list[str]()
        if 0 < self.facts.max_grad_norm < TINY_CLIP:
            fixes.append(self.facts.larger_clip())
        if self.facts.times_usual(step.rate) < 1 / MANY_TIMES:
            fixes.append(self.facts.higher_rate(step.rate))
        if self.facts.is_half:
            fixes.append("model.dtype=float32, where small steps are not rounded away")
        return [*fixes, self.fix]


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

    def fixes(self, step: Step) -> list[str]:
        return [self.facts.lower_rate(step.rate)]


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

    def fixes(self, step: Step) -> list[str]:
        return [self.facts.lower_rate(step.rate)]


class HighLoss(Alarm, name="loss"):
    """A loss above the one that ``tolerate.loss`` names, for ``tolerate.loss_steps`` steps in a row; none without."""

    patience: int = 3
    most: float = math.inf
    first_loss: float | None = None

    def suspect(self, step: Step) -> str | None:
        if step.loss is None:
            return UNKNOWN
        self.first_loss = step.loss if self.first_loss is None else self.first_loss
        high = f"a loss of {number(step.loss)}, and at most {number(self.most)} is tolerated"
        return HEALTHY if step.loss <= self.most else high

    def fixes(self, step: Step) -> list[str]:
        lower = self.facts.lower_rate(step.rate)
        if self.first_loss is None or self.first_loss <= self.most:
            return [lower]
        return [f"a larger tolerate.loss=, because it began at {number(self.first_loss)}", lower]


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

    def fixes(self, step: Step) -> list[str]:
        return self.facts.stay_closer(step.rate)


class PreferencesInverted(Alarm, name="preferences_inverted"):
    """Preferences learnt the wrong way round: for five steps, and 32 pairs, the chosen answers have fallen behind."""

    STEPS, PAIRS, RIGHT, LEAST = 5, 32, 1 / 3, 1e-3
    ERRORS_OF_RANKS, ERRORS_OF_MARGINS = 3.0, 4.0
    anchored: bool = False
    pairs: int = 1
    first: list[tuple[float, float | None]] = field(default_factory=list)
    last: list[tuple[float, float | None]] = field(default_factory=list)
    first_loss: float | None = None

    def suspect(self, step: Step) -> str | None:
        self.first_loss = step.loss if self.first_loss is None else self.first_loss
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

    def fixes(self, step: Step) -> list[str]:
        lower, sign = self.facts.lower_rate(step.rate), self.fix
        if self.facts.times_usual(step.rate) >= MANY_TIMES:
            return [lower, sign]
        if step.loss is None or self.first_loss is None:
            return [sign, lower]
        # A loss of the wrong sign falls as the margins do.
        return [lower, sign] if step.loss > self.first_loss else [sign]


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

    def fixes(self, step: Step) -> list[str]:
        return self.facts.stay_closer(step.rate)


class ConstantReward(Alarm, name="constant_reward"):
    """The same reward for every completion since the begin: there is nothing to prefer, and noise is learnt."""

    COMPLETIONS = 128
    patience: int = 5

    def suspect(self, step: Step) -> str | None:
        if not step.rewards or not all(count for _, _, count in step.rewards.values()):
            return UNKNOWN
        if any(_tells_apart(low, high) for low, high, _ in step.rewards.values()):
            return HEALTHY
        count = min(count for _, _, count in step.rewards.values())
        if count < self.COMPLETIONS and self.count >= self.patience - 1:
            return UNKNOWN
        given = list[str]()
        for name, (low, high, _) in step.rewards.items():
            if low == high:
                given.append(f"{name} gave {number(low, 3)}")
            else:
                given.append(f"{name} gave {low!r} to {high!r}, which are about one number in float32,")
        return f"{', '.join(given)} to each of {count} completions"

    def fixes(self, step: Step) -> list[str]:
        return [*self.facts.sample_apart(), self.fix]


def _tells_apart(low: float, high: float) -> bool:
    """True where two rewards differ by more than rounding; whole numbers that float32 tells apart always do."""
    if low.is_integer() and high.is_integer() and abs(high) < MAX_FLOAT32:
        return struct.pack("f", low) != struct.pack("f", high)
    return high - low > 1e-6 * max(1.0, abs(high))


class NoSignal(Alarm, name="no_signal"):
    """Rewards that prefer no completion to another of its prompt since the begin: nothing, or rounding, is learnt."""

    COMPLETIONS, LEAST = 128, 3
    patience: int = 5
    over: bool = False

    def suspect(self, step: Step) -> str | None:
        is_silent = None if self.over else self._is_silent(step)
        if is_silent is None:
            return UNKNOWN
        self.over = not is_silent
        counts = [count for _, _, count in step.rewards.values()]
        if is_silent and counts and min(counts) < self.COMPLETIONS and self.count >= self.patience - 1:
            return UNKNOWN
        return self._found(step) if is_silent else HEALTHY

    def conclude(self, step: Step, held_out: Sequence[Change]) -> SickRun | None:
        """The end of a training too short for the alarm, in which no step had anything to learn from."""
        is_silent = not self.over and self.count >= self.LEAST
        return SickRun(self.fault(step, self._found(step), self.fixes(step))) if is_silent else None

    def fixes(self, step: Step) -> list[str]:
        return [*self.facts.sample_apart(), self.fix]

    def _found(self, step: Step) -> str:
        if GROUPS_ALIKE in step.noted:
            return f"all completions of each prompt earned the same in all {step.number} steps"
        if self._margins(step):
            return f"the two completions of each prompt earned the same in all {step.number} steps"
        return f"every gradient was 0 in all {step.number} steps"

    def _is_silent(self, step: Step) -> bool | None:
        """True for a step without any preference, by the share of groups, the pairs or else the gradient; or None."""
        if GROUPS_ALIKE in step.noted:
            return step.noted[GROUPS_ALIKE] == 1.0
        if margins := self._margins(step):
            return min(map(abs, margins)) == 0.0
        return None if step.gradient is None else step.gradient == 0.0

    def _margins(self, step: Step) -> list[float]:
        return [step.noted[name] for name in (PAIRS_APART, MARGINS[0]) if name in step.noted]


class EndedWorse(Alarm, name="ended_worse"):
    """A model that ended far worse than it began, on the rows that it was trained on and on held-out ones."""

    STEPS = 5
    online: bool = False
    over: bool = False
    first: dict[str, float] = field(default_factory=dict)  # the first step is the start model's
    last: dict[str, list[float]] = field(default_factory=dict)
    width: float = 0.0  # between the worst and the best reward of a completion

    def suspect(self, step: Step) -> str | None:
        figures = {name: step.noted.get(name) for name in EARNED} if self.online else {"loss": step.loss}
        if not self.online and MARGINS[0] not in step.noted:  # of pairs no answer is to be given
            figures[TOKENS_RIGHT] = step.noted.get(TOKENS_RIGHT)
        for name, figure in figures.items():
            if figure is not None and not self.over:
                self.first.setdefault(name, figure)
                self.last[name] = [*self.last.get(name, []), figure][-self.STEPS :]
        self.width = max(self.width, self.facts.width_of(step.rewards))
        return UNKNOWN

    def conclude(self, step: Step, held_out: Sequence[Change]) -> SickRun | None:
        """The end of a run that is far worse on held-out rows and in training; over-fitted it is better there."""
        if self.online:  # whose losses do not fall when the model learns
            held_out = [change for change in held_out if not change.name.endswith("loss")]
        worse = [change for change in held_out if change.is_far_worse(self.width)]
        worse_in_training = [change for change in self.changes() if change.is_far_worse(self.width)]
        if not worse or not worse_in_training:
            return None
        found = f"{worse[0]} on held-out rows, and in training {worse_in_training[0]}"
        fixes = self.fixes(step)
        return SickRun(self.fault(step, found, fixes), curable=_is_curable(fixes))

    def fixes(self, step: Step) -> list[str]:
        return self.facts.stay_closer(step.rate) if self.online else [self.facts.lower_rate(step.rate)]

    def changes(self) -> list[Change]:
        """The figures of the training, in its first step and as means of its last ones."""
        changes = list[Change]()
        for name, before in self.first.items():
            kind: Kind = "loss" if name == "loss" else "share" if name == TOKENS_RIGHT else "reward"
            changes.append(Change(name, before, fmean(self.last[name]), kind))
        return changes


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
        alarms += [ConstantReward(), NoSignal(over=resumed), KL(length=length)]
    else:
        alarms += [PreferencesInverted(anchored=anchored, pairs=pairs), ChosenLost(), Diverged()]
    alarms.append(EndedWorse(online=online, over=resumed))
    alarms += [] if rounding is None else [FirstMargin(tolerance=rounding)]
    for alarm in alarms:
        steps = tolerate.get(alarm.name)
        alarm.patience = steps if steps and steps is not True else alarm.patience
    if most := tolerate.get(HighLoss.name):
        alarms.append(HighLoss(patience=tolerate.get("loss_steps") or HighLoss.patience, most=most))
    return [alarm for alarm in alarms if tolerate.get(alarm.name) is not True]


ALARMS = tuple(kind.name for kind in Alarm.__subclasses__())
