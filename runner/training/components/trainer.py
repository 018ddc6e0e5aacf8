"""The trainer, served what its signature names, with our additions to it, its optimizer and its schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from runner.config.build import asked_for, build, locate, serve
from runner.schema import upstream
from runner.schema.text import Config, Node, named

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from transformers import PreTrainedTokenizerBase, Trainer

    from runner.training.extension import Hooks

NOT_FOR_THE_TRAINER = ("_target_", "form", "head", "evaluates", "args")


def build_trainer(cfg: Config, offered: Mapping[str, Any], hooks: Hooks, *, weighs_tokens: bool = False) -> Trainer:
    """The trainer, given those of the offered arguments that its constructor names.

    A precomputed reference is one that other runs find again. With ``weighs_tokens`` its batches may carry weights.
    """
    from transformers import PrinterCallback

    from runner.model.reference import match_reference
    from runner.training.extension import extend
    from runner.training.objective import objective_class
    from runner.training.precompute import drop_filled, is_shared, shared

    node, tokenizer = cfg["trainer"], offered[upstream.PROCESSING_CLASS]
    wanted, trainer_class = asked_for(node["_target_"]), locate(node["_target_"])
    own = {key: _build_inside(value, tokenizer) for key, value in node.items() if key not in NOT_FOR_THE_TRAINER}
    own_loss = hooks.loss or weighs_tokens
    objective = objective_class(node["_target_"], node["args"]["_target_"]) if own_loss else None
    shares_reference = is_shared(offered)
    with shared(offered) if shares_reference else contextlib.nullcontext(offered) as given:
        parts = dict(given) | ({} if objective else {upstream.COMPUTE_LOSS_FUNC: hooks.loss})
        served = {name: part for name, part in parts.items() if name in wanted and part is not None and part != []}
        trainer = extend(trainer_class, objective)(hooks=hooks, **served | own)
    trainer.remove_callback(PrinterCallback)
    match_reference(trainer)
    # Under its name in the config each reward is logged; TRL and PPO call a model by its folder.
    names = list(named(cfg["reward"] or {}, "reward"))
    logged = getattr(getattr(trainer, "rewards", None), "names", None) or getattr(trainer, "reward_func_names", [])
    logged[: len(names)] = names
    if shares_reference:
        drop_filled(trainer)
    return trainer


def optimizer_maker(node: Node | None) -> Callable[[Trainer], Optimizer] | None:
    """A function that makes the configured optimizer, for a trainer that knows its weights; None without one."""
    if not node:
        return None
    from runner.optimizer import build_optimizer

    settings = {key: value for key, value in node.items() if key not in ("_target_", "groups", "scheduler")}
    takes_rate = settings.get("lr") is None and "lr" in asked_for(node["_target_"])
    return lambda trainer: build_optimizer(
        locate(node["_target_"]),
        trainer.model.named_parameters(),
        settings=build(settings | ({"lr": trainer.args.learning_rate} if takes_rate else {})),
        groups=node.get("groups") or {},
        decayed=trainer.get_decay_parameter_names(trainer.model),
    )


def schedule_maker(node: Node | None) -> Callable[[Optimizer, int], LRScheduler] | None:
    """A function that makes the configured schedule of an optimizer for a number of steps; None without one."""
    schedule = (node or {}).get("scheduler")
    return schedule and (lambda optimizer, steps: serve(schedule, optimizer=optimizer, num_training_steps=steps))


def _build_inside(value: object, tokenizer: PreTrainedTokenizerBase) -> object:
    """A value of the trainer's node with the nodes in it built, and served the tokenizer."""
    if isinstance(value, list):
        return [_build_inside(each, tokenizer) for each in value]
    if not isinstance(value, Mapping):
        return value
    inside = {key: _build_inside(each, tokenizer) for key, each in value.items()}
    return serve(inside, tokenizer=tokenizer) if "_target_" in inside else inside
