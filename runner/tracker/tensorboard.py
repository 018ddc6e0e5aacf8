"""TensorBoard: event files in the run folder."""

from pathlib import Path

import yaml
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback

from runner.tracker.callback import Tracker


class TensorBoard(Tracker, TensorBoardCallback):
    """Config and tags are texts; the figures of steps that are trained again are taken back."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if state.is_world_process_zero and self.logging_dir:
            is_resumed = any(Path(self.logging_dir).glob("events.out.tfevents.*"))
            first_step = state.global_step + 1
            self.tb_writer = SummaryWriter(log_dir=self.logging_dir, purge_step=first_step)
            if not is_resumed:
                config = yaml.safe_dump(
                    dict(self.experiment.node), sort_keys=False, allow_unicode=True
                )
                self.tb_writer.add_text("config", f"```yaml\n{config}```")
                self.tb_writer.add_text("tags", ", ".join(self.tags))
                self.tb_writer.add_text("group", self.group)
        super().on_train_begin(args, state, control, **kwargs)

    def close(self, finished: bool) -> None:
        if self.tb_writer:
            self.tb_writer.close()
