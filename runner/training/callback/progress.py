"""The bar of a training, and its lines on a terminal or in a file."""

import sys
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from runner.io.files import JsonObject
from runner.io.terminal import is_terminal, progress_bar, said
from runner.report.number import format_duration
from runner.report.score import list_figures
from runner.training.callback.step_record import Record


class Progress(TrainerCallback):
    """A bar with the last figure on a terminal, and a line for each logged step in the log.

    Where there is no terminal the lines are printed.
    """

    def __init__(self, record: Record):
        self.record = record
        self.bar = progress_bar("", 0, "step", disable=True)
        self.hidden = True
        self.batches = 0  # of an evaluation that are done

    def begin_evaluation(self, part: str) -> None:
        """Say on the bar that a part of an evaluation is under way.

        Once the training has ended it has a bar of its own.
        """
        if self.record.ended and self.bar.disable and not self.hidden:
            self.bar = progress_bar(part, self.bar.total, "step", initial=self.bar.n, leave=False)
        self.bar.set_description(part)

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        **_: object,
    ) -> None:
        self.batches += 1
        description = f"evaluating {self.batches}"
        if has_length(eval_dataloader):
            description += f"/{len(eval_dataloader)}"
        self.bar.set_description(description)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.batches = 0
        self.bar.set_description("training")
        if self.record.ended:
            self.bar.close()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.hidden = not (state.is_world_process_zero and is_terminal(sys.stderr))
        self.bar = progress_bar(
            "training",
            state.max_steps,
            "step",
            initial=state.global_step,
            disable=self.hidden,
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: JsonObject,
        **_: object,
    ) -> None:
        figures = list_figures(logs)
        if self.record.ended or not figures or not state.is_world_process_zero:
            return
        if not figures[0].startswith("eval_"):
            self.bar.set_postfix_str(figures[0], refresh=False)
        remaining = self.record.line["remaining_seconds"]
        if remaining and remaining > 0.5:
            figures.append(f"{format_duration(remaining)} left")
        line = f"step      {state.global_step}/{state.max_steps}  {'  '.join(figures)}"
        if self.bar.disable or not is_terminal(sys.stdout):
            print(line, flush=True)
        else:
            said.info("%s", line)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.bar.close()
