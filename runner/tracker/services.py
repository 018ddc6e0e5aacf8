"""The trackers of transformers that lack only an end of their own, or a place in the run folder."""

from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import (
    ClearMLCallback,
    CometCallback,
    DagsHubCallback,
    DVCLiveCallback,
    NeptuneCallback,
    SwanLabCallback,
    TrackioCallback,
)

from runner.tracker.callback import Tracker


class ClearML(Tracker, ClearMLCallback):
    """Each start of a run is a task of ClearML's."""


class Comet(Tracker, CometCallback):
    """Each start of a run is an experiment of Comet's."""

    name = "comet_ml"

    def close(self, finished: bool) -> None:
        """Send or store what is left, for which the library waits until Python ends."""
        import comet_ml

        super().close(finished)
        comet_ml.end()


class DagsHub(Tracker, DagsHubCallback):
    """Each start of a run is one of MLflow's, on DagsHub's server."""

    def close(self, finished: bool) -> None:
        import mlflow

        super().close(finished)
        mlflow.end_run("FINISHED" if finished else "FAILED")


class DVCLive(Tracker, DVCLiveCallback):
    """Files in the run folder that stand at the run's own steps; DVC itself is not asked."""

    remembers = True

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        if state.is_world_process_zero:
            from dvclive import Live

            folder = str(self.folder / "dvclive")
            self.live = Live(folder, resume=True, save_dvc_exp=False, dvcyaml=False)
        super().on_train_begin(args, state, control, **kwargs)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if self.live is not None:
            self.live.step = state.global_step
        super().on_log(args, state, control, logs=logs, **kwargs)


class Neptune(Tracker, NeptuneCallback):
    """Each start of a run is one of Neptune's."""


class SwanLab(Tracker, SwanLabCallback):
    """Each start of a run is an experiment of SwanLab's, which gets the frozen config and tags."""

    def setup(
        self,
        args: TrainingArguments,
        state: TrainerState,
        model: nn.Module,
        **kwargs: object,
    ) -> None:
        if state.is_world_process_zero:
            import swanlab

            # Not left to transformers, whose question for a run raises an error from 0.8 on.
            config = {"runner": dict(self.experiment.node)}
            swanlab.init(experiment_name=args.run_name, tags=self.tags, config=config)
        super().setup(args, state, model, **kwargs)

    def close(self, finished: bool) -> None:
        import swanlab

        super().close(finished)
        swanlab.finish()


class Trackio(Tracker, TrackioCallback):
    """Each start of a run goes on in one run of Trackio's."""

    remembers = True
