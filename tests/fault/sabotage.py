"""Ways to make a training sick, or to frighten whoever watches it, as parts that a configuration
names.

Each acts from step ``at`` on, counted as the training counts: what is wrong first belongs to that
step.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import weakref
from typing import Any, ClassVar

import torch
from transformers import TrainerCallback

# As numbers they would be refused before anything starts.
NUMBERS = {"nothing": math.nan, "endless": math.inf}


def _number(word: str | float) -> float:
    return NUMBERS[word] if word in NUMBERS else float(word)


def _trained(model: Any) -> list[torch.Tensor]:
    policy = getattr(model, "policy", model)
    return [weight for weight in policy.parameters() if weight.requires_grad]


class Weight(TrainerCallback):
    """One entry of each trained weight becomes ``value`` before the step."""

    def __init__(self, at: int, value: str = "nothing"):
        self.at = at
        self.value = _number(value)

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step + 1 >= self.at:
            self.spoil(model)

    def spoil(self, model: Any) -> None:
        with torch.no_grad():
            for weight in _trained(model):
                weight.view(-1)[0] = self.value


class Late(Weight):
    """The same after the step has been judged, so that a save finds it first."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        pass

    def on_save(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step >= self.at:
            self.spoil(model)


class Gradient(TrainerCallback):
    """Every gradient is multiplied by ``times`` and one entry of it becomes ``value``."""

    def __init__(self, at: int, times: float = 1.0, value: str | None = None):
        self.at = at
        self.times = times
        self.value = value

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step + 1 < self.at:
            return
        for weight in _trained(model):
            if weight.grad is not None:
                weight.grad.mul_(self.times)
                if self.value:
                    weight.grad.view(-1)[0] = _number(self.value)


class Reverse(TrainerCallback):
    """Every gradient changes its sign."""

    def __init__(self, at: int = 1):
        self.at = at

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step + 1 >= self.at:
            for weight in _trained(model):
                weight.grad = None if weight.grad is None else -weight.grad


class Rate(TrainerCallback):
    """The learning rate is multiplied by ``times``."""

    def __init__(self, at: int, times: float):
        self.at = at
        self.times = times

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step + 1 >= self.at:
            for group in optimizer.param_groups:
                group["lr"] *= self.times


class Moved(TrainerCallback):
    """The policy is no longer the start model when the training begins."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        with torch.no_grad():
            for weight in _trained(model):
                weight.add_(0.05 * torch.randn_like(weight))


class Masking:
    """Batches whose labels are all masked, from ``at`` to ``until``, or of evaluations only."""

    def __init__(self, inner: Any, at: int = 1, until: int = 10**9, evaluations: bool = False):
        self.inner = inner
        self.at = at
        self.until = until
        self.evaluations = evaluations
        self.count = 0

    def __call__(self, rows: list[Any]) -> Any:
        batch = self.inner(rows)
        self.count += 1
        if self.at <= self.count < self.until:
            batch["labels"] = torch.full_like(batch["labels"], -100)
        return batch


class Idle(torch.optim.SGD):
    """An optimizer whose steps do nothing."""

    def step(self, closure: Any = None) -> None:
        return None


def strangers(params: Any, lr: float = 0.1) -> Any:
    """An optimizer of weights that are not the model's."""
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=lr)


# --- Rewards ------------------------------------------------------------------------------------


def constant(completions: list[Any], value: float = 0.5) -> list[float]:
    return [value] * len(completions)


def _letters(completion: Any) -> float:
    """A reward that distinguishes completions, even of equal length."""
    return float(sum(map(ord, str(completion))) % 7)


class After:
    """A reward of the letters; from some call on, the same ``value`` for all."""

    def __init__(self, calls: int, value: str | float):
        self.calls = calls
        self.value = _number(value)
        self.__name__ = "after"
        self.count = 0

    def __call__(self, completions: list[Any]) -> list[float]:
        self.count += 1
        if self.count > self.calls:
            return [self.value] * len(completions)
        return [_letters(completion) for completion in completions]


class Rare:
    """0 for all completions but one in ``every``."""

    def __init__(self, every: int):
        self.every = every
        self.count = 0
        self.__name__ = "rare"

    def __call__(self, completions: list[Any]) -> list[float]:
        numbers = range(self.count, self.count + len(completions))
        self.count += len(completions)
        return [float(number % self.every == 0) for number in numbers]


class Halved:
    """A reward of the letters for every second group of completions of one prompt, and zero for the
    others.
    """

    def __init__(self, group: int = 4):
        self.group = group
        self.__name__ = "halved"

    def __call__(self, completions: list[Any]) -> list[float]:
        return [
            (number // self.group % 2) * _letters(completion)
            for number, completion in enumerate(completions)
        ]


class Huge:
    """Rewards of the letters, multiplied."""

    def __init__(self, times: float):
        self.times = times
        self.__name__ = "huge"

    def __call__(self, completions: list[Any]) -> list[float]:
        return [self.times * _letters(completion) for completion in completions]


def by_prompt(prompts: list[Any], completions: list[Any]) -> list[float]:
    """A reward that ignores the completion."""
    return [_letters(prompt) for prompt in prompts]


# --- Losses -------------------------------------------------------------------------------------


def reversed_dpo(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps):
    """DPO with its sign swapped."""
    margins = (chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps)
    return -torch.nn.functional.logsigmoid(-0.1 * margins)


class NanLoss:
    """The usual loss, and NaN from some batch on, in trainings or evaluations."""

    def __init__(self, at: int, evaluations: bool = False):
        self.at = at
        self.evaluations = evaluations
        self.count = 0

    def __call__(self, log_probs):
        self.count += torch.is_grad_enabled() is not self.evaluations
        spoilt = self.count >= self.at and torch.is_grad_enabled() is not self.evaluations
        return -log_probs * (math.nan if spoilt else 1.0)


class HugeLoss:
    """The usual loss; from some batch on, with a gradient of finite entries but no finite norm."""

    def __init__(self, at: int):
        self.at = at
        self.count = 0

    def __call__(self, log_probs):
        self.count += torch.is_grad_enabled()
        return -log_probs * (1e30 if self.count >= self.at else 1.0)


# --- Memory -------------------------------------------------------------------------------------


class Short(TrainerCallback):
    """A step that has no memory for more than ``rows`` rows.

    It counts the models left by earlier starts.
    """

    met: ClassVar[list[Any]] = []
    left: ClassVar[list[int]] = []

    def __init__(self, rows: int, at: int = 1, name: str = "per_device_train_batch_size"):
        self.rows = rows
        self.at = at
        self.name = name

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        Short.left.append(sum(one() is not None for one in Short.met))
        Short.met.append(weakref.ref(model))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows = getattr(args, self.name) or math.inf
        if state.global_step + 1 >= self.at and rows > self.rows:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate room for {rows} rows"
            )


class Measuring:
    """A collator that runs out of memory for evaluations of more than ``rows`` rows."""

    def __init__(self, inner: Any, rows: int):
        self.inner = inner
        self.rows = rows

    def __call__(self, rows: list[Any]) -> Any:
        measuring = any(frame.function == "evaluation_loop" for frame in inspect.stack(0))
        if measuring and len(rows) > self.rows:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
            )
        return self.inner(rows)


# --- What a lower rate heals, and what comes between ---------------------------------------------


class Fragile(TrainerCallback):
    """A step with a NaN gradient if the learning rate is above ``rate``."""

    def __init__(self, at: int, rate: float):
        self.at = at
        self.rate = rate

    def on_pre_optimizer_step(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        if state.global_step + 1 == self.at and optimizer.param_groups[0]["lr"] > self.rate:
            for weight in _trained(model):
                weight.grad.fill_(math.nan)


class Crash(TrainerCallback):
    """A step that ends the process without a word, once per run."""

    def __init__(self, folder: Any, at: int):
        self.mark = folder / "crashed"
        self.at = at

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.at and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
