"""What makes a training sick, and the callback that looks for it after every step.

Each alarm is a small class; its name is what ``tolerate`` takes, ``true`` to switch it off and a number for the steps
in a row that it may last. Whatever the logging steps are, every optimizer step is looked at: its loss, the gradient and
the weights in a few small pieces, and the figures that the trainer notes for its own log. All weights are looked at
when they are saved, so that no sick checkpoint is ever sealed. What a sick run does then is in ``resume.recovery``.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.errors import Fault, SickRun
from runner.files import read_json, write_text

LOWER = "a lower learning_rate=, or on_sick=rollback"
MARGINS, RANKINGS = ("rewards/margins", "margin"), ("rewards/accuracies", "accuracy")
MUST_BE_NUMBERS = ("reward", "kl", "objective/scores", "objective/kl")
NOTED = {*MARGINS, *RANKINGS, *MUST_BE_NUMBERS, "completions/mean_length", "frac_reward_zero_std"}
BROKEN = "a weight is no finite number"
MEMORY = "alarms.json"  # of a checkpoint: what the alarms have seen so far
NO_NEWS = ""  # what an alarm says of a step that shows nothing of what it looks at; None is a healthy step


@dataclass(frozen=True)
class Step:
    """What one optimizer step showed, alike in every process; None is what nobody could see."""

    number: int
    loss: float | None = None
    gradient: float | None = None  # the largest entry that was looked at; 0.0 only where every entry is 0
    weight: float | None = None  # the root mean square of the weights that were looked at
    moved: bool | None = None  # whether some weight changed
    slope: float | None = None  # the cosine between that change and the gradient of the loss: below 0 is downhill
    pace: float = 1.0  # the learning rate as a share of that which the schedule multiplies
    skipped: bool = False  # by the gradient scaler of float16, as it does now and then
    noted: Mapping[str, float] = field(default_factory=dict)  # the trainer's own figures, by the name in its log
    rewards: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)  # lowest, highest, count since begin


# --- Alarms -------------------------------------------------------------------------------------


class Alarm:
    """One way to be sick: ``patience`` steps in a row that ``suspect`` says something of.

    ``curable`` are those that a lower learning rate may help. ``lag`` is 1 where a step shows what the one before it
    has done, as a loss does and all that is said of samples.
    """

    name = ""
    patience = 1
    expected = ""
    cure = ""
    curable = False
    lag = 0

    def __init__(self, patience: int | None = None):
        self.patience = patience or self.patience
        self.count = 0

    def suspect(self, step: Step) -> str | None:
        """What is wrong with a step, None where nothing is, and ``NO_NEWS``."""
        raise NotImplementedError

    def hear(self, step: Step) -> SickRun | None:
        """Take a step in, and give the end of the run where it is time."""
        found = self.suspect(step)
        if found is None:
            self.count = 0
        elif found:
            self.count += 1
            if self.count >= self.patience:
                return self.sickness(step.number, found)
        return None

    def sickness(self, number: int, found: str) -> SickRun:
        """The end of a run; its checkpoints are good up to the step before the first that looked sick."""
        cure = f"{self.cure}; or tolerate.{self.name}=true"
        fault = Fault(f"{self.name} at step {number}", found, self.expected, cure.removeprefix("; or "))
        return SickRun(fault, healthy=max(0, number - self.patience - self.lag), curable=self.curable)


class NotFinite(Alarm):
    """A loss, gradient, weight or reward that is no number: nothing is learnt from it, and all after it is lost."""

    name = "not_finite"
    expected = "finite numbers"
    cure = LOWER
    curable = True

    def suspect(self, step: Step) -> str | None:
        seen = {"the loss": step.loss, "a weight": step.weight}
        # float16 scales gradients until they overflow, skips that step and scales them less.
        seen |= {} if step.skipped else {"the gradient": step.gradient}
        seen |= {name: step.noted.get(name) for name in MUST_BE_NUMBERS}
        bad = [f"{name} is {value}" for name, value in seen.items() if value is not None and not math.isfinite(value)]
        return ", ".join(bad) or None


class ZeroGradient(Alarm):
    """No gradient at all: every label is masked, the two answers of each pair are one, or nothing leads to a weight.

    That of one batch may be 0, therefore three. It is 0 as well where all has been learnt: then there was one before,
    and little is left of the loss. Of groups of completions it is 0 while each group has one reward, which is a
    sickness only where no completion ever had another (``constant_reward``).
    """

    name = "zero_gradient"
    patience = 3
    expected = "a loss that depends on the weights"
    cure = "look at what is trained: python -m runner preview <the same words>"
    LEFT = 0.1

    def __init__(self, patience: int | None = None, *, online: bool = False, resumed: bool = False):
        super().__init__(patience)
        self.online = online
        self.first_loss = math.inf if resumed else None

    def suspect(self, step: Step) -> str | None:
        groups_alike = self.online and step.noted.get("frac_reward_zero_std", 1.0) == 1.0
        if step.loss is None or step.gradient is None or groups_alike:
            return NO_NEWS
        if step.gradient != 0:
            self.first_loss = step.loss if self.first_loss is None else self.first_loss
            return None
        if self.first_loss is not None and step.loss < self.LEFT * self.first_loss:
            return None
        return f"every gradient is 0, the loss {step.loss:.4g}"


class Frozen(Alarm):
    """Weights that stay as they are: the optimizer has others, or what is trained is not what the model uses.

    Only steps that should move them count: not the begin of a warm-up, the end of a decay, or a step without gradient.
    """

    name = "frozen"
    patience = 3
    expected = "trained weights that change"
    cure = "another optimizer= or peft=, or model.dtype=float32, where small steps are not rounded away"
    PACE = 0.1

    def suspect(self, step: Step) -> str | None:
        if step.moved is None or step.skipped or step.gradient == 0 or step.pace < self.PACE:
            return None if step.moved else NO_NEWS
        return None if step.moved else "no trained weight has changed"


class Uphill(Alarm):
    """Weights that follow the gradient of their own loss upwards, so that the opposite is learnt: a sign is wrong.

    Asked of the first steps alone, until one goes down. Without momentum no optimizer goes up; with it a healthy
    training does, later.
    """

    name = "uphill"
    patience = 3
    expected = "weights that move down the gradient of the loss"
    cure = "the sign in optimizer= (maximize), or a callback that changes gradients"
    LEAST = 0.05  # weight decay alone moves them at right angles to it

    def __init__(self, patience: int | None = None, *, resumed: bool = False):
        super().__init__(patience)
        self.over = resumed

    def suspect(self, step: Step) -> str | None:
        if self.over or step.slope is None:
            return NO_NEWS
        self.over = step.slope <= self.LEAST
        return None if self.over else f"the weights move up the gradient of the loss (cosine {step.slope:.2f})"


class Exploded(Alarm):
    """Weights beyond all sizes that a model has: they began near 0.02 to 1 and are 100 times what they were."""

    name = "exploded"
    expected = "weights of about their first size"
    cure = LOWER
    curable = True
    TIMES = 100

    def __init__(self, patience: int | None = None):
        super().__init__(patience)
        self.first: float | None = None

    def suspect(self, step: Step) -> str | None:
        if step.weight is None:
            return NO_NEWS
        self.first = step.weight if self.first is None else self.first
        if step.weight <= self.TIMES * max(1.0, self.first):
            return None
        return f"the weights have grown from {self.first:.3g} to {step.weight:.3g}"


class Diverged(Alarm):
    """A loss far from what it was, five steps in a row: three times the lowest mean of five steps, and 6 more.

    One hard batch of one row can be that far off; five in a row do not come by chance, and rows of another kind that
    come after easy ones are at 5 or less. Far below is no better: none of these losses has so much to give, unless its
    sign is wrong. Only of losses that fall when the model learns; those of samples do not.
    """

    name = "diverged"
    patience = 5
    expected = "a loss that falls"
    cure = LOWER
    curable = True
    lag = 1
    TIMES, MORE, STEPS = 3.0, 6.0, 5

    def __init__(self, patience: int | None = None):
        super().__init__(patience)
        self.last: list[float] = []
        self.lowest: float | None = None

    def suspect(self, step: Step) -> str | None:
        if step.loss is None:
            return NO_NEWS
        usual = statistics.mean(self.last or [step.loss]) if self.lowest is None else self.lowest
        if abs(step.loss) > self.TIMES * abs(usual) + self.MORE:
            return f"a loss of {step.loss:.3g}, after {usual:.3g}"
        self.last = [*self.last, step.loss][-self.STEPS :]
        if len(self.last) == self.STEPS:
            mean = statistics.mean(self.last)
            self.lowest = mean if self.lowest is None else min(mean, self.lowest, key=abs)
        return None


class KL(Alarm):
    """A policy that has left its reference: more than 5 nats a token and 50 a completion, two steps in a row.

    Policies that are over-optimised but still speak were seen at 1 to 2 nats a token (85 for 53 tokens); a policy that
    always says the same against a reference that says anything reaches the logarithm of the vocabulary, 10 to 12. A
    short answer may well cost more than 5 a token, and a single completion can carry the estimate of a whole step.
    """

    name = "kl"
    patience = 2
    expected = "a policy that the reference still knows"
    cure = f"a larger kl_coef=, {LOWER}"
    curable = True
    lag = 1
    PER_TOKEN, PER_COMPLETION = 5.0, 50.0

    def __init__(self, patience: int | None = None, *, length: int | None = None):
        super().__init__(patience)
        self.length = length

    def suspect(self, step: Step) -> str | None:
        length = step.noted.get("completions/mean_length") or self.length
        whole = step.noted.get("objective/kl")
        if whole is None and "kl" in step.noted and length:
            whole = step.noted["kl"] * length
        if whole is None or not length:
            return NO_NEWS
        if abs(whole) <= max(self.PER_COMPLETION, self.PER_TOKEN * length):
            return None
        return f"a KL of {whole:.3g} for a completion of {length:.0f} tokens"


class Opposite(Alarm):
    """Preferences learnt the wrong way round: for five steps, and 32 pairs, the chosen answers have fallen behind.

    All those margins are below where they began, and so many pairs are ranked wrongly that chance would do it one time
    in a thousand; where no ranking is told, ten margins are by four standard errors. With a reference all begins with a
    margin of 0 and even odds, without one with what the first five steps showed. A held-out reward may fall in a
    healthy run; what is trained on may not.
    """

    name = "opposite"
    expected = "chosen answers that become likelier than rejected ones"
    cure = "the sign of the loss, or which column is dataset.columns.chosen"
    STEPS, PAIRS, RIGHT, LEAST = 5, 32, 1 / 3, 1e-3
    ERRORS_OF_RANKS, ERRORS_OF_MARGINS = 3.0, 4.0

    def __init__(self, patience: int | None = None, *, anchored: bool, pairs: int):
        super().__init__(patience)
        self.anchored = anchored
        self.pairs = pairs
        self.first: list[tuple[float, float | None]] = []
        self.last: list[tuple[float, float | None]] = []

    def suspect(self, step: Step) -> str | None:
        margin, right = (_first(step.noted, *names) for names in (MARGINS, RANKINGS))
        if margin is None:
            return NO_NEWS
        size = 2 * self.STEPS if right is None else max(self.STEPS, math.ceil(self.PAIRS / self.pairs))
        if len(self.first) < (1 if self.anchored else size):
            self.first.append((margin, right))
            return None
        self.last = [*self.last, (margin, right)][-size:]
        begin = 0.0 if self.anchored else statistics.mean(margin for margin, _ in self.first)
        falls = [begin - margin for margin, _ in self.last]
        if len(falls) < size or min(falls) <= 0 or statistics.mean(falls) <= self.LEAST:
            return None
        if not (self._margins_are_clear(falls) if right is None else self._ranks_are_clear()):
            return None
        return f"the margin of chosen over rejected has fallen from {begin:.3g} to {margin:.3g}"

    def _margins_are_clear(self, falls: list[float]) -> bool:
        return statistics.mean(falls) > self.ERRORS_OF_MARGINS * statistics.stdev(falls) / math.sqrt(len(falls))

    def _ranks_are_clear(self) -> bool:
        now, before = (statistics.mean(right or 0.0 for _, right in part) for part in (self.last, self.first))
        before = 0.5 if self.anchored else before
        spread = before * (1 - before) + (0 if self.anchored else now * (1 - now))
        error = math.sqrt(spread / (len(self.last) * self.pairs))
        return now <= self.RIGHT and before - now >= self.ERRORS_OF_RANKS * error


class ConstantReward(Alarm):
    """The same reward for every completion since the begin: there is nothing to prefer, and noise is learnt.

    In five steps and 128 completions, because rare successes may take that long; once a reward has differed, rewards
    that are all alike again are what success looks like.
    """

    name = "constant_reward"
    patience = 5
    expected = "rewards that tell completions apart"
    cure = "another reward=, or easier prompts; where it is the best reward, there is nothing left to learn"
    COMPLETIONS = 128

    def suspect(self, step: Step) -> str | None:
        if not step.rewards or not all(count for _, _, count in step.rewards.values()):
            return NO_NEWS
        if any(high - low > 1e-6 * max(1.0, abs(high)) for low, high, _ in step.rewards.values()):
            return None
        count = min(count for _, _, count in step.rewards.values())
        if count < self.COMPLETIONS and self.count >= self.patience - 1:
            return NO_NEWS
        told = ", ".join(f"{name} gave {low:.3g}" for name, (low, _, _) in step.rewards.items())
        return f"{told} to each of {count} completions"


class FirstMargin(Alarm):
    """A policy and a reference that differ before anything was learned: both are the start model, and the margin 0.

    Anything else is a wrong reference: an adapter copied with its weights, other weights read from disk, dropout in one
    of the two.
    """

    name = "first_margin"
    expected = "a margin of 0, because nothing was learned yet: the reference is not the start model"
    cure = "trainer.args.disable_dropout=true, or another peft="

    def __init__(self, patience: int | None = None, *, tolerance: float):
        super().__init__(patience)
        self.tolerance = tolerance

    def suspect(self, step: Step) -> str | None:
        margin = step.noted.get("rewards/margins")
        if step.number != 1 or margin is None or abs(margin) <= self.tolerance:
            return None
        return f"a reward margin of {margin:.3g}"


NAMES = tuple(alarm.name for alarm in Alarm.__subclasses__())


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
    ``pairs`` in each step. ``rounding`` is by how much the margin of the first step may differ from 0; None where it
    need not be 0.
    """
    tolerate = tolerate or {}
    how: dict[type[Alarm], dict[str, Any]] = {NotFinite: {}, Frozen: {}, Exploded: {}}
    how |= {ZeroGradient: {"online": online, "resumed": resumed}, Uphill: {"resumed": resumed}}
    sampled, fitted = {ConstantReward: {}, KL: {"length": length}}, {Opposite: {"anchored": anchored, "pairs": pairs}}
    how |= sampled if online else fitted | {Diverged: {}}
    how |= {} if rounding is None else {FirstMargin: {"tolerance": rounding}}
    patience = {kind: tolerate.get(kind.name) for kind in how}
    kept = {kind: None if steps is False else steps for kind, steps in patience.items() if steps is not True}
    return [kind(steps, **how[kind]) for kind, steps in kept.items()]


def _first(noted: Mapping[str, float], *names: str) -> float | None:
    return next((noted[name] for name in names if name in noted), None)


# --- Weights and gradients ----------------------------------------------------------------------


class Probe:
    """Small pieces of the weights that are trained, spread evenly over them; what befalls all of them shows there.

    A look costs a few microseconds for each of at most ``TENSORS`` pieces, whatever the size of the model. What only
    looks so in the pieces is looked up in all weights.
    """

    TENSORS, ENTRIES = 32, 256

    def __init__(self, model: nn.Module):
        self.all = [each for each in model.parameters() if each.requires_grad and each.numel()]
        self.picked = self.all[:: math.ceil(len(self.all) / self.TENSORS) or 1]
        self.before, self.bits = self.weights(), None

    @torch.no_grad()
    def weights(self) -> Tensor | None:
        """The entries that are looked at, in one row."""
        return _in_a_row([_piece(each) for each in self.picked])

    @torch.no_grad()
    def gradients(self) -> Tensor | None:
        """The entries that belong to those of ``weights``, 0 where a weight keeps none."""
        pieces = [_piece(each.grad if _has_gradient(each) else torch.zeros_like(each)) for each in self.picked]
        return _in_a_row(pieces)

    @torch.no_grad()
    def gradient(self) -> float | None:
        """The largest entry that was found, NaN where one is none; None where no weight keeps its gradient."""
        row = _in_a_row([_piece(each.grad) for each in self.picked if _has_gradient(each)])
        if row is not None and (largest := row.abs().max().item()) != 0:
            return largest
        return max(self._every_gradient(), key=lambda found: (math.isnan(found), found), default=None)

    def _every_gradient(self) -> Iterator[float]:
        for each in self.all:
            if _has_gradient(each):
                yield _local(each.grad).abs().max().item()

    def moved(self, weights: Tensor | None) -> float:
        """1 where some weight has changed since this was asked last, 0 where none has, -1 where nobody knows yet.

        ``weights`` are those of now. Where the pieces look the same, all weights are added up, now and next time.
        """
        before, self.before = self.before, weights
        if weights is None:
            return -1.0
        if not torch.equal(weights, before):
            self.bits = None
            return 1.0
        bits, self.bits = self.bits, self.sum_of_bits()
        return -1.0 if bits is None else float(bits != self.bits)

    @torch.no_grad()
    def sum_of_bits(self) -> int:
        """A number that another value of any weight changes."""
        kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return sum(int(_local(each).view(kinds[each.element_size()]).sum(dtype=torch.int64)) for each in self.all)

    @torch.no_grad()
    def are_finite(self) -> bool:
        """Whether all weights are numbers."""
        # A sum passes on what is no number, without a copy; only where it may have overflown are all entries asked.
        doubtful = (each for each in map(_local, self.all) if not each.sum(dtype=torch.float32).isfinite())
        return all(bool(each.isfinite().all()) for each in doubtful)


def _local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor that may be spread over several."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _has_gradient(weight: Tensor) -> bool:
    return weight.grad is not None and not weight.grad.is_sparse and weight.grad.numel() > 0


def _piece(tensor: Tensor) -> Tensor:
    """The first entries of the middle row, without a copy of the tensor."""
    tensor = _local(tensor)
    while tensor.ndim > 1:
        tensor = tensor[len(tensor) // 2]
    return tensor[: Probe.ENTRIES]


def _in_a_row(pieces: Sequence[Tensor]) -> Tensor | None:
    if not pieces:
        return None
    device = pieces[0].device
    return torch.cat([piece.reshape(-1).to(device, torch.float32) for piece in pieces])


# --- The callback -------------------------------------------------------------------------------


class Health(TrainerCallback):
    """Ends a sick training with SickRun: within five steps, in all processes at once, and before anything is saved.

    ``build`` makes the alarms, and is told whether they begin in the middle of a training; ``rewards`` gives what was
    earned so far. Of a trainer that notes no figures of a step, what is logged is judged. What the alarms have seen is
    kept in each checkpoint, so that a sick run that goes on from its last good one is found sick again.
    """

    def __init__(
        self,
        build: Callable[[bool], list[Alarm]],
        rewards: Callable[[], Mapping[str, tuple[float, float, int]]] | None = None,
    ):
        self.build = build
        self.rewards = rewards
        self.notes: Mapping[str, Sequence[float | Tensor]] | None = None
        self.alarms: list[Alarm] = []
        self.loss: Tensor | None = None
        self.evaluated: dict[str, float] = {}
        self.taken: dict[str, int] = {}
        self.slope_at: tuple[Tensor | None, Tensor | None] = (None, None)

    def observe_loss(self, loss: Tensor, notes: Mapping[str, Sequence[float | Tensor]] | None = None) -> None:
        """Add the loss of a micro-batch to that of the step; its gradient is there, and nobody has changed it yet.

        ``notes`` are the figures, by name, that the trainer has noted since it logged last.
        """
        self.notes = notes
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
        if any(isinstance(alarm, Uphill) and not alarm.over for alarm in self.alarms):
            self.slope_at = self.probe.weights(), self.probe.gradients()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        **kwargs: object,
    ) -> None:
        memory = read_json(Path(args.output_dir) / f"checkpoint-{state.global_step}" / MEMORY)
        self.fresh = [vars(alarm) for alarm in self.build(False)]
        self.alarms = self.build(state.global_step > 0 and memory is None)
        for alarm in self.alarms:
            vars(alarm).update((memory or {}).get(alarm.name, {}))
        self.trained = Probe(model)
        self.probe = Probe(model.policy) if hasattr(model, "policy") else self.trained
        self.gradient, self.skipped, self.pace = None, False, 1.0
        self.slope_at = (None, None)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.gradient = self.probe.gradient()

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        optimizer: Optimizer,
        **kwargs: object,
    ) -> None:
        self.skipped = bool(getattr(optimizer, "step_was_skipped", False))
        paces = [group["lr"] / group["initial_lr"] for group in optimizer.param_groups if group.get("initial_lr")]
        self.pace = float(max(paces, default=1.0))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._judge(self._look(args.device, state.global_step))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any],
        **kwargs: object,
    ) -> None:
        figures = {name: value for name, value in logs.items() if isinstance(value, float)}
        if "loss" not in logs:
            self.evaluated = figures
            return
        self.taken = {}  # with this the trainer has emptied its notes
        if self.notes is None:
            self._judge(Step(state.global_step, noted=figures))

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        bad = [f"{name} is {value}" for name, value in self.evaluated.items() if not math.isfinite(value)]
        bad = [told for told in bad if told.startswith("eval_") and "loss is" in told]
        if bad and (sickness := self._not_finite(state.global_step, ", ".join(bad))):
            raise sickness

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        self._refuse_broken_weights(args.device, state.global_step)
        if state.is_world_process_zero:
            seen = zip(self.alarms, self.fresh, strict=True)
            memory = {each.name: {key: new for key, new in vars(each).items() if new != old[key]} for each, old in seen}
            write_text(Path(args.output_dir) / f"checkpoint-{state.global_step}" / MEMORY, json.dumps(memory))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._refuse_broken_weights(args.device, state.global_step)

    def _judge(self, step: Step) -> None:
        for alarm in self.alarms:
            if sickness := alarm.hear(step):
                raise sickness

    def sickness_behind(self, number: int) -> SickRun | None:
        """The sickness of a step that raised, where weights that are no numbers are behind it."""
        return self._not_finite(number, BROKEN) if self.alarms and not self.trained.are_finite() else None

    def _not_finite(self, number: int, found: str) -> SickRun | None:
        return next((each.sickness(number, found) for each in self.alarms if isinstance(each, NotFinite)), None)

    def _refuse_broken_weights(self, device: torch.device, number: int) -> None:
        broken = any(row[0] for row in gathered([float(not self.trained.are_finite())], device))
        if broken and (sickness := self._not_finite(number, BROKEN)):
            raise sickness

    def _look(self, device: torch.device, number: int) -> Step:
        """What the step showed in this process, and then in all of them."""
        weights = self.probe.weights()
        # A policy without a gradient waits for its critic, which then has to move.
        waits = self.gradient is None and self.probe is not self.trained
        moved = self.trained.moved(self.trained.weights()) if waits else self.probe.moved(weights)
        rewards = dict(self.rewards()) if self.rewards else {}
        mine = [
            math.nan if self.loss is None else self.loss.item(),
            -1.0 if self.gradient is None else self.gradient,
            -1.0 if weights is None else (weights.norm() / math.sqrt(len(weights))).item(),
            moved,
            self._slope(weights),
            *(value for each in rewards.values() for value in each),
        ]
        self.loss = None
        rows = gathered(mine, device)
        losses, gradients, sizes, moves, slopes, *earned = zip(*rows, strict=True)
        lows, highs, counts = earned[::3], earned[1::3], earned[2::3]
        spread = zip(rewards, map(min, lows), map(max, highs), map(sum, counts), strict=True)
        return Step(
            number,
            loss=sum(losses) / len(losses),
            gradient=_largest(gradients),
            weight=_largest(sizes),
            moved=None if max(moves) < 0 else max(moves) > 0,
            slope=next((slope for slope in slopes if math.isfinite(slope)), None),
            pace=self.pace,
            skipped=self.skipped,
            noted=self._noted(),
            rewards={name: (low, high, int(count)) for name, low, high, count in spread},
        )

    def _slope(self, weights: Tensor | None) -> float:
        """The cosine between the gradient that the loss gave and what became of the weights; NaN where one is 0."""
        (before, gradient), self.slope_at = self.slope_at, (None, None)
        if weights is None or before is None or gradient is None:
            return math.nan
        change = weights - before
        return (change @ gradient / (change.norm() * gradient.norm())).item()

    def _noted(self) -> dict[str, float]:
        """The means of what the trainer has noted in this step."""
        noted = {name: values for name, values in (self.notes or {}).items() if name in NOTED}
        fresh = {name: values[self.taken.get(name, 0) :] for name, values in noted.items()}
        self.taken = {name: len(values) for name, values in noted.items()}
        return {name: statistics.fmean(map(float, values)) for name, values in fresh.items() if values}


def _largest(values: Sequence[float]) -> float | None:
    """The largest of what the processes saw, NaN where one of them is; None where none of them saw anything."""
    found = math.nan if any(map(math.isnan, values)) else max(values)
    return None if found < 0 else found


def gathered(values: Sequence[float], device: torch.device) -> list[list[float]]:
    """The same numbers from every process, in their order."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [list(values)]
    row = torch.tensor(values, dtype=torch.float64, device=device)
    rows = [torch.empty_like(row) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(rows, row)
    return torch.stack(rows).tolist()
