"""The collator, the loss, the optimizer and the inner parts of a trainer, and how its loss runs."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedTokenizerBase, Trainer

from runner.config.build import asked_for, build, locate, serve
from runner.config.experiment import Experiment, LossPart, OptimizerPart, Part, TrainerPart
from runner.config.sampler import RUNNER
from runner.errors import Fault, RunnerError
from runner.io.files import JsonObject
from runner.model.encoding import processor_of
from runner.optimizer import build_optimizer
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.training.curriculum import RowCurriculum
from runner.training.hooks import Hooks, SamplingContext
from runner.training.trainer_sampler import TrainerSampler


def loss_interface_of(trainer: TrainerPart) -> str | None:
    """The way in which a trainer computes its loss: a key of ``upstream.LOSS_INTERFACES``."""
    signature = read_signature(trainer.target)
    config = read_signature(trainer.args["_target_"])
    return upstream.loss_interface(signature, config)


def optimizer_settings(optimizer: OptimizerPart, learning_rate: float) -> JsonObject:
    """The arguments of an optimizer, with the trainer's learning rate unless it has its own."""
    settings = optimizer.arguments
    del settings["_target_"]
    if settings.get("lr") is None and "lr" in asked_for(optimizer.target):
        settings["lr"] = learning_rate
    built: JsonObject = build(settings)
    return built


def optimizer_maker(optimizer: OptimizerPart | None) -> Callable[[Trainer], Optimizer] | None:
    """A function that makes the configured optimizer of a trainer; None without one."""
    if not optimizer:
        return None

    def make_optimizer(trainer: Trainer) -> Optimizer:
        return build_optimizer(
            locate(optimizer.target),
            trainer.model.named_parameters(),
            settings=optimizer_settings(optimizer, trainer.args.learning_rate),
            groups=optimizer.groups or {},
            decayed=trainer.get_decay_parameter_names(trainer.model),
        )

    return make_optimizer


def schedule_maker(optimizer: OptimizerPart | None) -> Callable[..., LRScheduler] | None:
    """A function that makes the schedule of a configured optimizer; None without one."""
    if not optimizer or not optimizer.scheduler:
        return None
    return functools.partial(serve, optimizer.scheduler)


def trainer_sampling(experiment: Experiment) -> SamplingContext:
    """The context in which a trainer samples: by the runner's sampler, or as TRL does."""
    if experiment.trainer.sampler == RUNNER:
        return TrainerSampler(experiment.seed).sampling
    return Hooks.sampling


def build_curricula(experiment: Experiment) -> list[RowCurriculum]:
    """The curriculum of a configuration, a callback; none where it has none."""
    column = experiment.trainer.curriculum
    return [RowCurriculum(column, experiment.seed)] if column else []


def build_collator(
    part: Part | None,
    tokenizer: PreTrainedTokenizerBase,
    inner: Callable[..., dict[str, Any]] | None = None,
) -> Callable[..., dict[str, Any]] | None:
    """The configured collator, served the tokenizer.

    One that wraps the trainer's own asks for it as ``inner``, and is built only where it is given;
    any other only where it is not.
    """
    if part is None:
        return None
    wraps = "inner" in asked_for(part.target)
    if wraps != (inner is not None):
        return None
    offered = {
        "tokenizer": tokenizer,
        "processing_class": processor_of(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "inner": inner,
    }
    unset = {}
    for name, served in offered.items():
        if name not in part.node:
            unset[name] = served
    collator: Callable[..., dict[str, Any]] = serve(part.node, **unset)
    return collator


def build_loss(part: LossPart | None) -> Callable[..., Any] | None:
    """The configured loss: a function with its settings bound, or an object that is called."""
    if not part:
        return None
    settings = part.arguments
    if not inspect.isclass(locate(part.target)):
        settings["_partial_"] = True
    elif "reduction" in asked_for(part.target):
        settings.setdefault("reduction", "none")
    loss: Callable[..., Any] = build(settings)
    return loss


def build_inside(value: Any, tokenizer: PreTrainedTokenizerBase, where: str) -> Any:
    """A value of the trainer's node with the nodes in it built, and served the tokenizer."""
    if isinstance(value, list):
        return [build_inside(item, tokenizer, where) for item in value]
    if not isinstance(value, Mapping):
        return value
    built = {}
    for key, inner in value.items():
        built[key] = build_inside(inner, tokenizer, f"{where}.{key}")
    if "_target_" not in built:
        return built
    try:
        return serve(built, tokenizer=tokenizer)
    except RunnerError as error:
        # Faults of a teacher are said under its own key, not under that of the policy.
        for index, fault in enumerate(error.faults):
            beats = [re.sub(r"(?<!\S)model\.", f"{where}.", beat) for beat in astuple(fault)]
            error.faults[index] = Fault(*beats)
        raise
