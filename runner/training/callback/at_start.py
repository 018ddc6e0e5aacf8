"""A function that is called once, before the first step."""

from collections.abc import Callable

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class AtStart(TrainerCallback):
    """Calls a function once, when the model is wrapped for training and no step was taken.

    An evaluation before that would leave a model of several processes without the wrapper that
    averages their gradients.
    """

    def __init__(self, call: Callable[[], None]):
        self.call = call

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.call()
