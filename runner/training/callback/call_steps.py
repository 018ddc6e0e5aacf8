"""The steps to which the calls of tools and environments belong (``generate.call_log``)."""

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.generate.call_log import CallLog


class CallSteps(TrainerCallback):
    """Tells a record of calls which step is taken, and ends a training whose calls differ.

    An evaluation belongs to the step before it, and what comes behind the last step to one more, so
    that a run that goes on from a checkpoint repeats no call that is recorded.
    """

    def __init__(self, calls: CallLog):
        self.calls = calls

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.calls.begin(state.global_step)
        if state.global_step >= state.max_steps:  # no step follows
            self.calls.go_to(state.global_step + 1)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.calls.check()
        self.calls.go_to(state.global_step + 1)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.calls.check()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.calls.check()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.calls.go_to(state.global_step + 1)
