"""The lower learning rate of a run that goes on after a rollback."""

from collections.abc import Callable

from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Slower(TrainerCallback):
    """Takes each step with a share of its learning rate.

    ``share`` gives the share for the steps taken so far.
    The rate is lower within a step only, so that the schedule and its checkpoint stay what they
    are. It holds for all steps that PPO takes within one.
    """

    def __init__(self, share: Callable[[int], float]):
        self.share = share

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Optimizer,
        **_: object,
    ) -> None:
        self.rates = [group["lr"] for group in optimizer.param_groups]
        share = self.share(state.global_step)
        for group in optimizer.param_groups:
            if group["lr"]:  # Adafactor may have none
                group["lr"] = group["lr"] * share

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Optimizer,
        **_: object,
    ) -> None:
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate
