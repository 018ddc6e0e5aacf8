"""The functions of ours that a trainer calls in the course of a training."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import Trainer

from runner.config.experiment import LossPart
from runner.io.turns import Row

Measure = Callable[[Trainer, str], dict[str, float]]
SamplingContext = Callable[[Trainer, bool], AbstractContextManager[None]]
ExchangingContext = Callable[[Trainer, Any], AbstractContextManager[Any]]


class SampleNotes(Protocol):
    """Notes of the completions that are trained on (``step_samples``)."""

    def begin(self, trainer: Trainer) -> None:
        """The step of a micro-batch begins."""

    def add_batch(self, batch: Any) -> None:
        """The loss of a micro-batch is computed next, which the trainer has prepared."""

    def write(self, trainer: Trainer) -> None:
        """The figures of a step are logged next."""


@dataclass
class Hooks:
    """Functions that a trainer calls in the course of a training; without any it is TRL's."""

    # False for a trainer whose own evaluation fails.
    evaluates: bool = True
    # ``measure(trainer, prefix)``: figures that join those of an evaluation.
    measure: Measure | None = None
    # ``sampling(trainer, is_evaluation)``: the context in which the trainer samples.
    sampling: SamplingContext = lambda trainer, is_evaluation: nullcontext()
    # ``exchanging(trainer, rows)``: gives the rows that the trainer steps on in the place of these.
    exchanging: ExchangingContext = lambda trainer, rows: nullcontext(rows)
    # ``on_evaluate(part)``: a part of an evaluation begins.
    on_evaluate: Callable[[str], None] = lambda part: None
    # ``on_loss(trainer, batch, loss)``: each micro-batch with its loss.
    on_loss: Callable[[Trainer, Any, Tensor], None] | None = None
    # ``on_log(logs, step)`` may change what is logged.
    on_log: Callable[[dict[str, float], int], None] | None = None
    samples: SampleNotes | None = None
    # ``on_rollout(trainer)``: a micro-batch was trained on, and perhaps sampled before.
    on_rollout: Callable[[Trainer], None] | None = None
    # The mean of each reward since it was called last.
    reward_means: Callable[[], dict[str, float]] | None = None
    # The rows of the batch that the trainer was given, for whoever samples for it.
    rows: Sequence[Row] = ()
    # False where the padding of a batch is to go through the model.
    skips_padding: bool = False
    make_optimizer: Callable[[Trainer], Optimizer] | None = None
    make_schedule: Callable[..., LRScheduler] | None = None
    # The user's own (``user_loss``), in place of the trainer's.
    loss: Callable[..., Tensor] | None = None
    # Its keys of ours.
    loss_part: LossPart = field(default_factory=LossPart)
    # True where the loss is no measure of held-out answers, and their cross-entropy is.
    reads_cross_entropy: bool = False
    # What the model's config says before the Trainer writes there what it needs in a training.
    use_cache: bool | None = None
