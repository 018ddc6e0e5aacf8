"""Weights & Biases: offline in the run folder, or on its server."""

import os

from torch import nn
from transformers import TrainerState, TrainingArguments
from transformers.integrations import WandbCallback

from runner.tracker.callback import Tracker


class Wandb(Tracker, WandbCallback):
    """The config is ``runner`` in that of wandb; id, group and project are variables."""

    remembers = True

    def setup(
        self,
        args: TrainingArguments,
        state: TrainerState,
        model: nn.Module,
        **kwargs: object,
    ) -> None:
        if state.is_world_process_zero:
            import wandb

            if wandb.run is not None and wandb.run.id != os.environ.get("WANDB_RUN_ID"):
                wandb.finish()  # of an earlier run in this process
            config = {"runner": self.experiment.node}
            wandb.init(name=args.run_name, tags=self.tags, config=config)
        super().setup(args, state, model, **kwargs)

    def close(self, finished: bool) -> None:
        import wandb

        super().close(finished)
        if wandb.run is not None:
            wandb.finish(exit_code=0 if finished else 1)
