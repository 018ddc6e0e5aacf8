"""An optimizer and a schedule of the user's own, made when the Trainer would make its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from transformers import Trainer


class Optimization(Trainer):
    """Comes after TRL's class in the method order; without anything set it changes nothing."""

    make_optimizer: Callable[[Trainer], Optimizer] | None = None
    make_schedule: Callable[[Optimizer, int], Any] | None = None

    def create_optimizer(self, model: Any = None) -> Optimizer:
        if self.optimizer is None and self.make_optimizer is not None:
            self.optimizer = self.make_optimizer(self)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        if self.lr_scheduler is None and self.make_schedule is not None:
            self.lr_scheduler = self.make_schedule(optimizer or self.optimizer, num_training_steps)
        return super().create_scheduler(num_training_steps, optimizer)
