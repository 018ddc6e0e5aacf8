"""The trainer, served what its signature names, with our additions to it, its optimizer and its schedule."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from runner.config import asked_for, build, locate, serve

NOT_FOR_THE_TRAINER = ("_target_", "form", "head", "evaluates", "args")


def build_sharing(node: Mapping[str, Any], tray: Mapping[str, Any], tokenizer: Any) -> Any:
    """The trainer, with a precomputed reference that other runs find again."""
    from runner.trainer.precompute import drop_filled, is_shared, shared

    if not is_shared(tray):
        return build_trainer(node, tray, tokenizer)
    with shared(tray) as given:
        trainer = build_trainer(node, given, tokenizer)
    drop_filled(trainer)
    return trainer


def build_trainer(node: Mapping[str, Any], tray: Mapping[str, Any], tokenizer: Any) -> Any:
    """The trainer, served what its constructor names, with evaluations that keep their names and random state."""
    from transformers import PrinterCallback

    from runner.model.reference import match_reference

    wanted = asked_for(node["_target_"])
    own = {key: value for key, value in node.items() if key not in NOT_FOR_THE_TRAINER}
    own = {key: _build_inside(value, tokenizer) for key, value in own.items()}
    served = {name: part for name, part in tray.items() if name in wanted and not _empty(part)}
    cls, loss = locate(node["_target_"]), tray["compute_loss_func"]
    objective = _objective(cls) if loss or tray["weight_rules"] else None
    if objective:
        served.pop("compute_loss_func", None)
    trainer = _extended(cls, objective)(**served | own)
    if objective:
        trainer.loss_function = loss
    trainer.remove_callback(PrinterCallback)
    match_reference(trainer)
    return trainer


def _objective(trainer: type) -> type | None:
    from runner.trainer.objective import objective_of

    return objective_of(trainer)


@functools.cache
def _extended(trainer: type, objective: type | None = None) -> type:
    """The same trainer, under the same name, with our additions between it and transformers' Trainer.

    An ``objective`` comes before it, where its public ``compute_loss`` is asked.
    """
    from runner.trainer.evaluation import Evaluation, Measurement
    from runner.trainer.optimization import Optimization

    bases = (Measurement, *([objective] if objective else []), trainer, Evaluation, Optimization)
    return type(trainer.__name__, bases, {"__module__": trainer.__module__})


def set_optimizer(trainer: Any, node: Mapping[str, Any] | None) -> None:
    """Have the trainer make the configured optimizer and schedule, once it knows its weights and steps."""
    if not node:
        return
    from runner.optimizer import build_optimizer

    settings = {key: value for key, value in node.items() if key not in ("_target_", "groups", "scheduler")}
    if settings.get("lr") is None and "lr" in asked_for(node["_target_"]):
        settings["lr"] = trainer.args.learning_rate
    trainer.make_optimizer = lambda trainer: build_optimizer(
        locate(node["_target_"]),
        trainer.model.named_parameters(),
        settings=build(settings),
        groups=node.get("groups") or {},
        decayed=trainer.get_decay_parameter_names(trainer.model),
    )
    if schedule := node.get("scheduler"):
        trainer.make_schedule = lambda optimizer, steps: serve(schedule, optimizer=optimizer, num_training_steps=steps)


def _build_inside(value: Any, tokenizer: Any) -> Any:
    """A value of the trainer's node with the nodes in it built, and served the tokenizer."""
    if isinstance(value, list):
        return [_build_inside(each, tokenizer) for each in value]
    if not isinstance(value, Mapping):
        return value
    inside = {key: _build_inside(each, tokenizer) for key, each in value.items()}
    return serve(inside, tokenizer=tokenizer) if "_target_" in inside else inside


def _empty(part: Any) -> bool:
    return part is None or (isinstance(part, list) and not part)
