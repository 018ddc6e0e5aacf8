"""A signal that asks to stop, and the save by which a training answers it."""

from typing import Protocol

import torch
from accelerate.utils import gather
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class StopRequest(Protocol):
    """A signal that asks to stop, where its ``number`` is set."""

    number: int | None
    agreed: bool  # True where another process has heard the signal
    listening: bool  # True while a signal waits for the end of a step

    def error(self) -> Exception: ...


class StopAtStep(TrainerCallback):
    """Saves and ends the training after a step where one process has heard a signal.

    All processes stop at the same step, and at one from which a resume is exact.
    """

    def __init__(self, stop: StopRequest, cycle_steps: int = 1):
        self.stop = stop
        self.cycle_steps = cycle_steps
        self.processes = 1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.processes = args.world_size  # takes long to ask for at each step

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.stop.listening = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if state.global_step % self.cycle_steps:
            return
        number = self.stop.number
        if self.processes > 1:
            heard = gather(torch.tensor([number or 0], device=args.device))
            number = int(heard.max()) or None
            if number and self.stop.number is None:
                self.stop.number = number
                self.stop.agreed = True
        if number is not None:
            control.should_save = True
            control.should_training_stop = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Leave out the work at the end of an epoch where a stop comes within one.

        The run that goes on would do it a second time.
        """
        is_within = (state.epoch or 0) % 1 != 0
        if self.stop.number is not None and control.should_training_stop and is_within:
            control.should_log = False
            control.should_save = False
            control.should_evaluate = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.stop.listening = False
