"""Our callbacks of trackers in the places of transformers' own."""

from pathlib import Path

from transformers import Trainer
from transformers.integrations import MLflowCallback, TensorBoardCallback, WandbCallback

from runner.config.experiment import Experiment
from runner.tracker.callback import Tracker
from runner.tracker.mlflow import MLflow
from runner.tracker.tensorboard import TensorBoard
from runner.tracker.wandb import Wandb

COMPLETE: dict[type, type[Tracker]] = {
    MLflowCallback: MLflow,
    TensorBoardCallback: TensorBoard,
    WandbCallback: Wandb,
}


def replace_trackers(trainer: Trainer, experiment: Experiment, folder: Path) -> list[Tracker]:
    """Put callbacks that log all that belongs to a run in the places of the trainer's own ones."""
    callbacks = trainer.callback_handler.callbacks
    trackers = []
    for index, callback in enumerate(callbacks):
        if type(callback) in COMPLETE:
            tracker = COMPLETE[type(callback)](experiment, folder)
            callbacks[index] = tracker
            trackers.append(tracker)
    return trackers
