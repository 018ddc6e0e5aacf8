"""The callback that looks for sickness after every step, in all processes at once.

Whatever the logging steps are, every optimizer step is looked at: its loss, the gradient and the weights in a few small
pieces, and the figures that the trainer notes for its own log. All weights are looked at when they are saved, so that
no sick checkpoint is ever sealed. What a sick run does then is in ``training.recovery``.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.errors import SickRun
from runner.io.files import read_json, write_text
from runner.training.extension import Notes
from runner.training.health.alarms import NOTED, Alarm, GradientAscent, NotFinite, Step
from runner.training.health.probe import Probe

BROKEN = "a weight is no finite number"
MEMORY = "alarms.json"  # of a checkpoint: what the alarms have seen so far


class Health(TrainerCallback):
    """Ends a sick training with SickRun: within five steps, in all processes at once, and before anything is saved.

    ``build`` makes the alarms, called with true where they begin in the middle of a training; ``rewards`` gives what
    was earned so far. Of a trainer that notes no figures of a step, what is logged is judged. The state of the alarms
    is stored in each checkpoint, so that a sick run that goes on from its last good one is found sick again.
    """

    def __init__(
        self,
        build: Callable[[bool], list[Alarm]],
        rewards: Callable[[], Mapping[str, tuple[float, float, int]]] | None = None,
    ):
        self.build = build
        self.rewards = rewards
        self.notes: Notes | None = None
        self.alarms: list[Alarm] = []
        self.loss: Tensor | None = None
        self.taken: dict[str, int] = {}
        self.slope_at: tuple[Tensor | None, Tensor | None]

    def observe_loss(self, loss: Tensor, notes: Notes | None = None) -> None:
        """Add the loss of a micro-batch to that of the step; its gradient is there, and nobody has changed it yet.

        ``notes`` are the figures, by name, that the trainer has noted since it logged last.
        """
        self.notes = notes
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
        if any(isinstance(alarm, GradientAscent) and not alarm.over for alarm in self.alarms):
            self.slope_at = self.probe.weights(), self.probe.gradients()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **_
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

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        self.gradient = self.probe.gradient()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, optimizer: Optimizer, **_
    ) -> None:
        self.skipped = bool(getattr(optimizer, "step_was_skipped", False))
        paces = [group["lr"] / group["initial_lr"] for group in optimizer.param_groups if group.get("initial_lr")]
        self.pace = float(max(paces, default=1.0))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        self._judge(self._look(args.device, state.global_step))

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Mapping[str, float], **_
    ) -> None:
        if "loss" in logs:
            self.taken = {}  # with this the trainer has emptied its notes
        if "loss" in logs and self.notes is None:
            noted = {name: value for name, value in logs.items() if isinstance(value, float)}
            self._judge(Step(state.global_step, noted=noted))

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Mapping[str, float], **_
    ) -> None:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, float)}
        losses = {name: value for name, value in numbers.items() if name.startswith("eval_") and name.endswith("loss")}
        bad = [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]
        if bad and (sickness := self._not_finite(state.global_step, ", ".join(bad))):
            raise sickness

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        self._refuse_broken_weights(args.device, state.global_step)
        if state.is_world_process_zero:
            seen = zip(self.alarms, self.fresh, strict=True)
            memory = {each.name: {key: new for key, new in vars(each).items() if new != old[key]} for each, old in seen}
            write_text(Path(args.output_dir) / f"checkpoint-{state.global_step}" / MEMORY, json.dumps(memory))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        self._refuse_broken_weights(args.device, state.global_step)

    def _judge(self, step: Step) -> None:
        for alarm in self.alarms:
            if sickness := alarm.observe(step):
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
        """Gather the figures of the step in this process, and then of all of them."""
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
