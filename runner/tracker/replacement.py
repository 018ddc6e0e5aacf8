"""Our callbacks of trackers in the places of transformers' own."""

from pathlib import Path

from transformers import Trainer
from transformers.integrations import TensorBoardCallback, WandbCallback

from runner.schema.text import Config
from runner.tracker.callback import Tracker
from runner.tracker.tensorboard import TensorBoard
from runner.tracker.wandb import Wandb

COMPLETE: dict[type, type[Tracker]] = {TensorBoardCallback: TensorBoard, WandbCallback: Wandb}


def replace_trackers(trainer: Trainer, config: Config, folder: Path) -> list[Tracker]:
    """Put callbacks that log all that belongs to a run in the places of the trainer's own ones."""
    callbacks = trainer.callback_handler.callbacks
    trackers = []
    for index, callback in enumerate(callbacks):
        if type(callback) in COMPLETE:
            tracker = COMPLETE[type(callback)](config, folder)
            callbacks[index] = tracker
            trackers.append(tracker)
    return trackers
