"""MLflow: a database that the runs of a sweep share, or a server."""

import os
from pathlib import Path

from torch import nn
from transformers import TrainerState, TrainingArguments
from transformers.integrations import MLflowCallback

from runner.tracker.callback import Tracker

SQLITE = "sqlite:///"  # before the path of a file


class MLflow(Tracker, MLflowCallback):
    """Each start of a run is one of MLflow's, which also gets the held-out scores after the end."""

    def setup(self, args: TrainingArguments, state: TrainerState, model: nn.Module) -> None:
        if state.is_world_process_zero:
            make_database()
        super().setup(args, state, model)


def make_database() -> None:
    """Make the tables of the database that a run will write to, one process after the other.

    MLflow makes them without a lock, so that of two runs that begin together one would fail.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not address.startswith(SQLITE):
        return
    from filelock import FileLock
    from mlflow import MlflowClient

    file = Path(address.removeprefix(SQLITE))
    with FileLock(file.with_name(f".{file.name}.lock")):
        MlflowClient(address).search_experiments(max_results=1)
