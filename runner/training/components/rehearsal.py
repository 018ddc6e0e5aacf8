"""Parts that a library builds late, built once with stand-ins before rows load.

These are the optimizer, its schedule, the settings of sampling, the adapter, and a loss of what is
sampled. So a value that a library refuses ends the run at its start, under its key.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from transformers import GenerationConfig, Trainer, TrainingArguments, get_scheduler

from runner.config.build import asked_for, locate, serve
from runner.config.experiment import OptimizerPart
from runner.errors import RunnerError, own_place
from runner.io.hub import is_of_network
from runner.run import Run
from runner.run.adjustments import is_out_of_memory
from runner.run.blame import find_refused_keys
from runner.schema import upstream
from runner.training.components.model import task_type_of
from runner.training.components.trainer_parts import (
    build_loss,
    loss_interface_of,
    optimizer_settings,
)
from runner.training.policy_objective import try_loss

STEPS = 100  # of the schedule that is tried
SCHEDULE_ARGS = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")


@contextlib.contextmanager
def blaming(run: Run, *parts: str) -> Iterator[None]:
    """Raise an exception of a library as a fault of these parts, the only ones used inside."""
    try:
        yield
    except (RunnerError, ImportError, OSError):
        raise
    except Exception as error:
        if own_place(error) or is_out_of_memory(error) or is_of_network(error):
            raise
        refused = find_refused_keys(run, error, parts)
        if refused:
            raise refused from error
        raise


def rehearse_components(run: Run, args: TrainingArguments) -> None:
    """Build what the trainer will build of the configuration alone.

    Raises ConfigError for a value that a library refuses.
    """
    generation = getattr(args, "generation_kwargs", None)
    if generation and not getattr(args, "use_vllm", False):
        with blaming(run, "trainer.args.generation_kwargs"):
            GenerationConfig(**generation).validate()
    if args.gradient_checkpointing_kwargs:
        with blaming(run, "trainer.args.gradient_checkpointing_kwargs"):
            weight = torch.ones(1, requires_grad=True)
            checkpoint(torch.sin, weight, **args.gradient_checkpointing_kwargs).backward()
    loss = run.experiment.loss
    kind = loss_interface_of(run.experiment.trainer)
    if loss and kind in upstream.OF_SAMPLES:
        with blaming(run, "loss"), torch.random.fork_rng(devices=[]):
            try_loss(build_loss(loss), kind, getattr(args, "beta", None))
    peft = run.experiment.peft
    if peft and peft.target.startswith("peft.") and "model" not in asked_for(peft.target):
        with blaming(run, "peft"):
            serve(peft.arguments, task_type=task_type_of(run.experiment.trainer.head))
    weight = nn.Parameter(torch.zeros(2, 2))
    configured = run.experiment.optimizer
    if configured:
        optimizer = _build_configured(run, args, configured, weight)
    else:
        optimizer = _build_default(run, args, weight)
    with blaming(run, "optimizer._target_" if configured else "trainer.args.optim"):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    _rehearse_schedule(run, args, optimizer)


def _build_configured(
    run: Run, args: TrainingArguments, configured: OptimizerPart, weight: nn.Parameter
) -> Optimizer:
    """The configured optimizer of a weight, and of one in each of its groups.

    Only optimizers of torch and transformers are built: others may need a GPU, or more weights.
    """
    target = configured.target
    settings = optimizer_settings(configured, args.learning_rate)
    is_known = target.startswith(("torch.optim.", "transformers."))
    if not is_known or "named_parameters" in asked_for(target):
        return _stand_in(weight, args)
    with blaming(run, "optimizer"):
        optimizer: Optimizer = locate(target)([weight], **settings)
    for pattern, group_settings in (configured.groups or {}).items():
        group: dict[str, Any] = {"params": [nn.Parameter(torch.zeros(2, 2))]}
        for key, value in group_settings.items():
            if key != "lr_ratio":
                group[key] = value
        with blaming(run, f"optimizer.groups.{pattern}", "optimizer.groups"):
            locate(target)([group], **settings)
    return optimizer


def _build_default(run: Run, args: TrainingArguments, weight: nn.Parameter) -> Optimizer:
    """The optimizer of ``trainer.args.optim``, where it can be built from a weight alone."""
    if args.optim_target_modules:
        return _stand_in(weight, args)
    with blaming(run, "trainer.args.optim"):
        make, settings = Trainer.get_optimizer_cls_and_kwargs(args)
        if isinstance(make, type) and not {"model", "optimizer_dict"} & settings.keys():
            optimizer: Optimizer = make([weight], **settings)
            return optimizer
    return _stand_in(weight, args)


def _stand_in(weight: nn.Parameter, args: TrainingArguments) -> Optimizer:
    """An optimizer for the schedule to be tried with."""
    return torch.optim.SGD([weight], lr=args.learning_rate)


def _rehearse_schedule(run: Run, args: TrainingArguments, optimizer: Optimizer) -> None:
    """Build the configured schedule, or the trainer's own."""
    configured = run.experiment.optimizer
    if configured and configured.scheduler:
        with blaming(run, "optimizer.scheduler"):
            serve(configured.scheduler, optimizer=optimizer, num_training_steps=STEPS)
        return
    with blaming(run, *(f"trainer.args.{name}" for name in SCHEDULE_ARGS)):
        get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=args.get_warmup_steps(STEPS),
            num_training_steps=STEPS,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
