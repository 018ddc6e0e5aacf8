"""Our callbacks of trackers in the places of transformers' own."""

from pathlib import Path

from transformers import Trainer
from transformers.integrations import (
    ClearMLCallback,
    CometCallback,
    DagsHubCallback,
    DVCLiveCallback,
    MLflowCallback,
    NeptuneCallback,
    SwanLabCallback,
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
    get_reporting_integration_callbacks,
)

from runner.config.experiment import Experiment, Tracking
from runner.errors import EnvironmentFault
from runner.tracker.callback import Tracker, not_begun
from runner.tracker.mlflow import MLflow
from runner.tracker.services import (
    ClearML,
    Comet,
    DagsHub,
    DVCLive,
    Neptune,
    SwanLab,
    Trackio,
)
from runner.tracker.tensorboard import TensorBoard
from runner.tracker.wandb import Wandb

COMPLETE: dict[type, type[Tracker]] = {
    ClearMLCallback: ClearML,
    CometCallback: Comet,
    DagsHubCallback: DagsHub,
    DVCLiveCallback: DVCLive,
    MLflowCallback: MLflow,
    NeptuneCallback: Neptune,
    SwanLabCallback: SwanLab,
    TensorBoardCallback: TensorBoard,
    TrackioCallback: Trackio,
    WandbCallback: Wandb,
}


def check_trackers(tracking: Tracking) -> None:
    """Raise EnvironmentFault for a tracker whose callback cannot be built on this machine."""
    for library in tracking.libraries:
        try:
            (kind,) = get_reporting_integration_callbacks([library.name])
            kind()
        except Exception as error:  # whatever its library raises when it is imported
            raise EnvironmentFault(not_begun(library.name, error)) from error


def build_tracker(name: str, experiment: Experiment, folder: Path) -> Tracker:
    """Our callback of a tracker of transformers that takes the history of a run."""
    (kind,) = get_reporting_integration_callbacks([name])
    return COMPLETE[kind](experiment, folder)


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
