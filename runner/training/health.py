"""The callback that shows the alarms every optimizer step, in all processes at once.

However seldom a training logs, every optimizer step is looked at: its loss, the gradient and the
weights in a few small pieces (:class:`Probe`), the figures that the trainer notes for its own log
(``held_out.NOTES``), and the rewards that ``reward.panel`` has seen. All weights are looked at when
they are saved, so that no sick checkpoint is ever sealed.
"""

import functools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather
from peft import PeftConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from runner.config.build import asked_for
from runner.errors import SickRun
from runner.io.files import read_json, write_text
from runner.model.adapter import moves_start
from runner.reward.panel import RewardTracker
from runner.run import Run
from runner.run.alarms import (
    CHOSEN,
    NOTED,
    Alarm,
    Change,
    Facts,
    GradientAscent,
    NotFinite,
    Step,
    build_alarms,
)
from runner.schema import upstream
from runner.training.held_out import Notes, notes_of
from runner.training.probe import Probe, read_at_once
from runner.training.sickness_facts import find_facts
from runner.training.step_figures import (
    RewardRange,
    StepFigures,
    finite_or_none,
    gather_figures,
)

BROKEN = "a weight is not a finite number"
MEMORY = "alarms.json"  # in a checkpoint: what the alarms have seen so far
HALF_PRECISION = (torch.float16, torch.bfloat16)
# The largest first margin that rounding explains, with and without half precision.
ROUNDING_OF_HALF = 5e-2
ROUNDING = 1e-4


@dataclass(frozen=True)
class Slope:
    """The entries that the probe looks at, and their gradients, before a step."""

    weights: Tensor | None
    gradients: Tensor | None

    def cosine(self, weights_after: Tensor | None) -> Tensor | None:
        """The cosine between gradients and change of the weights; None without either."""
        if weights_after is None or self.weights is None or self.gradients is None:
            return None
        change = weights_after - self.weights
        return change @ self.gradients / (change.norm() * self.gradients.norm())


@dataclass(eq=False)
class Health(TrainerCallback):
    """Ends a sick training with SickRun, in all processes at once and before anything is saved.

    It takes five steps at most. ``build(resumed=)`` makes the alarms, with true where they begin in
    the middle of a training; ``rewards`` gives what was earned so far. Where a trainer notes no
    figures of a step, those that it logs are judged. The state of the alarms is stored in each
    checkpoint, so that a sick run that goes on from its last good one is found sick again.
    """

    build: Callable[..., list[Alarm]]
    # The lowest and the highest value of each reward so far, and their count.
    rewards: Callable[[], Mapping[str, tuple[float, float, int]]] | None = None
    facts: Facts = field(default_factory=Facts)
    others_clip: bool = False  # another callback may change gradients before the optimizer's step
    alarms: list[Alarm] = field(default_factory=list)
    ascent: GradientAscent | None = None  # the alarm that asks for the slope of a step
    last_step: Step = field(default_factory=lambda: Step(0))

    # What this step has shown so far.
    notes: Notes | None = None
    loss: Tensor | None = None
    length: Tensor | None = None
    unclipped: Tensor | None = None  # the size of a piece of the gradient before its clip
    norm: Tensor | None = None  # of the gradient before its clip, where no piece tells it
    gradient: float | None = None
    before_step: Slope | None = None
    skipped: bool = False

    notes_read: dict[str, int] = field(default_factory=dict)  # how many of each are judged already
    rate: float = 0.0  # the highest learning rate so far
    pace: float = 1.0

    def observe_loss(self, trainer: Trainer, batch: object, loss: Tensor) -> None:
        """Add the loss of a micro-batch to that of the step.

        Its gradient is there, and nobody has clipped or scaled it yet.
        """
        self.notes = notes_of(trainer, "train")
        self.length = None
        if isinstance(batch, Mapping) and CHOSEN in (self.notes or ()):
            self.length = _answer_length(batch)
        loss = loss.detach() if loss.requires_grad else loss
        self.loss = loss if self.loss is None else self.loss + loss
        if self.ascent is not None and not self.ascent.over:
            self.before_step = Slope(self.probe.weights(), self.probe.gradients())
        accelerator = getattr(trainer, "accelerator", None)
        if accelerator is None or accelerator.sync_gradients:
            self._look_before_clip()

    def _look_before_clip(self) -> None:
        """Look at a piece of the gradient, which tells later if its clip has made all of it 0.

        Where that is not certain to tell, take the norm of all of it, which costs more.
        """
        if not self.measures_norm:
            self.unclipped = self.trained.glimpse()
        if self.unclipped is None:
            self.norm = self.trained.norm()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        **_: object,
    ) -> None:
        self.trained = Probe(model)
        # Of PPO's model, the alarms look at the policy, not at its critic.
        self.probe = Probe(model.policy) if hasattr(model, "policy") else self.trained
        dtypes = {weight.dtype for weight in self.trained.all}
        self.facts = replace(self.facts, is_half=not dtypes.isdisjoint(HALF_PRECISION))
        # A gradient may become 0 by something else than a clip by an infinite norm.
        self.measures_norm = (
            self.others_clip or self.facts.clips_to_nothing or torch.float16 in dtypes
        )
        self.is_shared = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._recall(Path(args.output_dir), state.global_step)
        self.gradient = None
        self.unclipped = None
        self.norm = None
        self.before_step = None
        self.skipped = False
        self.pace = 1.0
        self.rate = float(getattr(args, "learning_rate", 0.0))

    def _recall(self, folder: Path, step: int) -> None:
        """Make the alarms as they were at a step, of which there may be a checkpoint."""
        memory = read_json(folder / f"checkpoint-{step}" / MEMORY)
        self.fresh = [vars(alarm) for alarm in self.build(resumed=False)]
        self.alarms = self.build(resumed=step > 0 and memory is None)
        self.ascent = None
        for alarm in self.alarms:
            remembered = (memory or {}).get(alarm.name, {})
            vars(alarm).update(remembered)
            alarm.facts = self.facts
            if isinstance(alarm, GradientAscent):
                self.ascent = alarm

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.gradient = self.probe.gradient()
        if self.gradient == 0 and self.unclipped is not None and self.unclipped != 0:
            # A finite norm would have left something of it.
            self.norm = torch.full_like(self.unclipped, math.inf)

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Optimizer,
        **_: object,
    ) -> None:
        self.skipped = bool(getattr(optimizer, "step_was_skipped", False))
        paces = []
        for group in optimizer.param_groups:
            self.rate = max(self.rate, float(group["lr"]))
            if group.get("initial_lr"):
                paces.append(group["lr"] / group["initial_lr"])
        self.pace = float(max(paces, default=1.0))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        figures = self._figures()
        if self.is_shared:
            figures = gather_figures(figures, args.device)
        self.loss = None
        self.unclipped = None
        self.norm = None
        self.before_step = None
        step = Step(
            state.global_step,
            loss=figures.loss,
            gradient=figures.gradient,
            weight=figures.weight,
            moved=figures.moved,
            slope=figures.slope,
            rate=self.rate,
            norm=figures.norm,
            pace=self.pace,
            length=figures.length,
            skipped=self.skipped,
            noted=self._fresh_notes(),
            rewards=figures.rewards,
        )
        self._judge(step)

    def _figures(self) -> StepFigures:
        """The figures of this step that this process sees."""
        weights = self.probe.weights()
        moving = self.probe
        moving_weights = weights
        # A policy without a gradient waits for its critic, which then has to move.
        if self.gradient is None and self.probe is not self.trained:
            moving = self.trained
            moving_weights = moving.weights()
        on_device = {
            "loss": self.loss,
            "norm": self.norm,
            "length": self.length,
            "weight": None if weights is None else weights.dot(weights),
            "slope": self.before_step.cosine(weights) if self.before_step else None,
            "change": moving.change(moving_weights),
        }
        seen = {name: figure for name, figure in on_device.items() if figure is not None}
        figures = dict(zip(seen, read_at_once(list(seen.values())), strict=True))
        root_mean_square = None
        if weights is not None:
            root_mean_square = math.sqrt(figures["weight"] / len(weights))
        rewards = {}
        if self.rewards is not None:
            for name, (low, high, count) in self.rewards().items():
                rewards[name] = RewardRange(low, high, count)
        return StepFigures(
            loss=figures.get("loss", math.nan),
            gradient=self.gradient,
            weight=root_mean_square,
            moved=moving.has_moved(moving_weights, figures.get("change")),
            norm=figures.get("norm"),
            slope=finite_or_none(figures.get("slope")),
            length=finite_or_none(figures.get("length")),
            rewards=rewards,
        )

    def _fresh_notes(self) -> dict[str, float]:
        """The mean of what the trainer has noted in this step, of each figure that alarms judge."""
        means = {}
        counts = {}
        for name, values in (self.notes or {}).items():
            if name in NOTED:
                fresh = values[self.notes_read.get(name, 0) :]
                counts[name] = len(values)
                if len(fresh) == 1:
                    means[name] = float(fresh[0])
                elif fresh:
                    means[name] = statistics.fmean(map(float, fresh))
        self.notes_read = counts
        return means

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float],
        **_: object,
    ) -> None:
        if "loss" in logs:
            self.notes_read = {}  # with this line the trainer has emptied its notes
            if self.notes is None:
                self._judge(Step(state.global_step, noted=_floats(logs)))
        norm = logs.get("grad_norm")
        if norm is not None and not math.isfinite(norm) and not self.skipped:
            self._end(Step(state.global_step, gradient=norm), f"the norm of the gradient is {norm}")

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        **_: object,
    ) -> None:
        broken = []
        for name, value in _floats(metrics).items():
            is_loss = name.startswith("eval_") and name.endswith("loss")
            if is_loss and not math.isfinite(value):
                broken.append(f"{name} is {value}")
        if broken:
            self._end(Step(state.global_step, loss=math.nan), ", ".join(broken))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._refuse_broken_weights(args.device, state.global_step)
        if not state.is_world_process_zero:
            return
        memory = {}
        for alarm, fresh in zip(self.alarms, self.fresh, strict=True):
            changes = {}
            for key, value in vars(alarm).items():
                if key != "facts" and value != fresh[key]:
                    changes[key] = value
            memory[alarm.name] = changes
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_text(checkpoint / MEMORY, json.dumps(memory))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._refuse_broken_weights(args.device, state.global_step)

    def conclude(
        self, args: TrainingArguments, state: TrainerState, held_out: Sequence[Change]
    ) -> None:
        """Raise SickRun after the last step, where only the training as a whole shows a sickness.

        Its checkpoints are as good as any, so that they stay: the run goes on from them where the
        sickness is tolerated.
        """
        if not self.alarms:  # the best checkpoint was loaded, and no training has begun
            self._recall(Path(args.output_dir), state.global_step)
        step = replace(self.last_step, number=state.global_step)
        for alarm in self.alarms:
            sickness = alarm.conclude(step, held_out)
            if sickness is not None:
                raise sickness

    def sickness_behind(self, step: int) -> SickRun | None:
        """The sickness of a step that raised, where weights that are not finite are behind it."""
        if not self.alarms or self.trained.are_finite():
            return None
        return self._not_finite(Step(step, loss=math.nan), BROKEN)

    def _judge(self, step: Step) -> None:
        self.last_step = step
        for alarm in self.alarms:
            sickness = alarm.observe(step)
            if sickness is not None:
                raise sickness

    def _not_finite(self, step: Step, found: str) -> SickRun | None:
        """The sickness that NotFinite names; None where that alarm is switched off."""
        for alarm in self.alarms:
            if isinstance(alarm, NotFinite):
                return alarm.sickness(step, found)
        return None

    def _end(self, step: Step, found: str) -> None:
        sickness = self._not_finite(replace(step, rate=self.rate), found)
        if sickness is not None:
            raise sickness

    def _refuse_broken_weights(self, device: torch.device, step: int) -> None:
        is_broken = torch.tensor([float(not self.trained.are_finite())], device=device)
        if gather(is_broken).any():
            self._end(Step(step), BROKEN)


def _answer_length(batch: Mapping[str, Any]) -> Tensor | None:
    """The mean number of tokens of an answer, in a batch of pairs or of labelled answers."""
    mask = batch.get("completion_mask")
    if mask is None and "chosen_labels" in batch:
        mask = batch["chosen_labels"] != upstream.IGNORED
    if mask is None:
        return None
    length: Tensor = mask.sum() / len(mask)
    return length


def _floats(figures: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if isinstance(value, float)}


def build_health(
    run: Run, args: TrainingArguments, peft: PeftConfig | None, panel: RewardTracker | None
) -> Health:
    """The alarms that fit this kind of training, by the trainer's signature and arguments."""
    arguments = asked_for(run.experiment.trainer.target)
    online = "reward_funcs" in arguments
    anchored = "ref_model" in arguments
    rounding = None
    # A learnt prompt or prefix begins away from its reference, however right that is.
    if anchored and not moves_start(peft):
        rounding = ROUNDING_OF_HALF if args.bf16 or args.fp16 else ROUNDING
    pairs = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    build = functools.partial(
        build_alarms,
        run.experiment.tolerate,
        online=online,
        anchored=anchored,
        pairs=pairs,
        rounding=rounding,
        length=upstream.completion_length(vars(args)),
    )
    facts = find_facts(run, args, peft, online=online)
    return Health(build, panel.spread if panel else None, facts)
