"""The callbacks of a training in the order in which they must come."""

import functools
from collections.abc import Callable, Sequence

from transformers import Trainer, TrainerCallback

from runner.config.experiment import Tracking
from runner.io.files import JsonObject
from runner.run import Run
from runner.run.adjustments import ROLLBACK, adjusted_share, count_of
from runner.tracker.callback import PostponedEnd
from runner.training.callback.progress import Progress
from runner.training.callback.slower import Slower
from runner.training.callback.step_record import Record
from runner.training.callback.stop import StopAtStep, StopRequest
from runner.training.callback.user import (
    ServedParts,
    build_callbacks,
    build_own_trackers,
    handles,
)
from runner.training.checkpoint import Seal
from runner.training.health import Health
from runner.training.moved_models import MovedModels
from runner.training.prompt_encoder import PromptEncoder


class Joined(TrainerCallback):
    """Our callbacks as one, in their order.

    An event that none of them handles stays what it is in TrainerCallback, and costs nothing.
    """

    def __init__(self, callbacks: Sequence[TrainerCallback]):
        for event in dir(self):
            if event.startswith("on_"):
                calls = []
                for callback in callbacks:
                    if event in vars(type(callback)):
                        calls.append(getattr(callback, event))
                if calls:
                    setattr(self, event, functools.partial(self._call, calls))

    def _call(self, calls: Sequence[Callable[..., None]], *given: object, **parts: object) -> None:
        for call in calls:
            call(*given, **parts)


def add_own_trackers(
    trainer: Trainer, tracking: Tracking, parts: ServedParts
) -> list[PostponedEnd]:
    """Add the tracker of the user's own to a trainer, if there is one; its end comes later."""
    callbacks = build_own_trackers(tracking, parts)
    callbacks += build_own_trackers(tracking, parts, trainer)
    for callback in callbacks:
        trainer.add_callback(callback)
        callback.on_init_end(trainer.args, trainer.state, trainer.control)
    return [PostponedEnd(callback) for callback in callbacks]


def add_callbacks(
    trainer: Trainer,
    run: Run,
    parts: ServedParts,
    stop: StopRequest | None,
    health: Health,
    seal: Seal,
    adjustments: Sequence[JsonObject],
) -> None:
    """Add the user's callbacks that ask for the trainer, then ours.

    The stop comes before all that read whether a step is saved, and the seal after all that write
    into a checkpoint.
    """
    for user_callback in build_callbacks(run.experiment.callbacks, parts, trainer):
        trainer.add_callback(user_callback)
        user_callback.on_init_end(trainer.args, trainer.state, trainer.control)
    health.others_clip = any(
        handles(type(other), "on_pre_optimizer_step")
        for other in trainer.callback_handler.callbacks
    )
    callbacks: list[TrainerCallback] = []
    if stop is not None:
        callbacks.append(StopAtStep(stop, seal.cycle_steps))
    record = Record(run.metrics, run.set_status, run)
    progress = Progress(record)
    trainer.hooks.on_evaluate = progress.begin_evaluation
    callbacks += [record, health, progress, MovedModels(trainer), PromptEncoder(trainer), seal]
    if count_of(adjustments, ROLLBACK):
        share = functools.partial(adjusted_share, adjustments)
        callbacks.append(Slower(share))
    trainer.add_callback(Joined(callbacks))
