"""The collator, the loss and the optimizer of a trainer, and the way it computes its loss."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedTokenizerBase, Trainer

from runner.collator import Collator
from runner.config.build import asked_for, build, locate, serve
from runner.model.encoding import processor_of
from runner.optimizer import build_optimizer
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.text import Node

# The keys of an optimizer's node that are not its target's arguments.
NOT_SETTINGS = ("_target_", "groups", "scheduler")


def loss_interface_of(trainer: Node) -> str | None:
    """The way in which a trainer computes its loss: a key of ``upstream.LOSS_INTERFACES``."""
    signature = read_signature(trainer["_target_"])
    config = read_signature(trainer["args"]["_target_"])
    return upstream.loss_interface(signature, config)


def optimizer_settings(node: Node, learning_rate: float) -> dict[str, Any]:
    """The arguments of an optimizer, with the trainer's learning rate unless it has its own."""
    settings = {key: value for key, value in node.items() if key not in NOT_SETTINGS}
    if settings.get("lr") is None and "lr" in asked_for(node["_target_"]):
        settings["lr"] = learning_rate
    built: dict[str, Any] = build(settings)
    return built


def optimizer_maker(node: Node | None) -> Callable[[Trainer], Optimizer] | None:
    """A function that makes the configured optimizer of a trainer; None without one."""
    if not node:
        return None

    def make_optimizer(trainer: Trainer) -> Optimizer:
        return build_optimizer(
            locate(node["_target_"]),
            trainer.model.named_parameters(),
            settings=optimizer_settings(node, trainer.args.learning_rate),
            groups=node.get("groups") or {},
            decayed=trainer.get_decay_parameter_names(trainer.model),
        )

    return make_optimizer


def schedule_maker(optimizer: Node | None) -> Callable[..., LRScheduler] | None:
    """A function that makes the schedule of a configured optimizer; None without one."""
    schedule = (optimizer or {}).get("scheduler")
    return functools.partial(serve, schedule) if schedule else None


def build_collator(
    node: Node | None, tokenizer: PreTrainedTokenizerBase, inner: Collator | None = None
) -> Collator | None:
    """The configured collator, served the tokenizer.

    One that wraps the trainer's own asks for it as ``inner``, and is built only where it is given;
    any other only where it is not.
    """
    if node is None:
        return None
    wraps = "inner" in asked_for(node["_target_"])
    if wraps != (inner is not None):
        return None
    offered = {
        "tokenizer": tokenizer,
        "processing_class": processor_of(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "inner": inner,
    }
    unset = {name: part for name, part in offered.items() if name not in node}
    collator: Collator = serve(node, **unset)
    return collator


def build_loss(node: Node | None) -> Callable[..., Any] | None:
    """The configured loss: a function with its settings bound, or an object that is called."""
    if not node:
        return None
    target = node["_target_"]
    settings = dict(node)
    if not inspect.isclass(locate(target)):
        settings["_partial_"] = True
    elif "reduction" in asked_for(target):
        settings.setdefault("reduction", "none")
    loss: Callable[..., Any] = build(settings)
    return loss
