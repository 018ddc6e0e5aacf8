"""Optimizers are classes like torch's; schedules, functions or classes that take an optimizer."""

import torch
from torch.optim.lr_scheduler import LambdaLR


class SignDescent(torch.optim.Optimizer):
    """Moves each weight by ``lr`` against the sign of its smoothed gradient (Bernstein et al.

    2018).
    """

    def __init__(self, params, lr: float = 1e-4, momentum: float = 0.9, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - group["momentum"])
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(
                    mean.sign(), alpha=group["lr"]
                )


def hold_and_fall(optimizer, num_training_steps, hold: float = 0.5):
    """The full rate for a share of the steps, then a straight line down to zero.

    The runner fills in ``num_training_steps``.
    """
    held = int(hold * num_training_steps)
    return LambdaLR(
        optimizer,
        lambda step: min(1.0, (num_training_steps - step) / max(1, num_training_steps - held)),
    )
