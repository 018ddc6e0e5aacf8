"""Parts that are each right and do not go together with the trainer, or with each other.

A part that the trainer's own constructor does not name cannot be served, and one that it cannot do
without must be there.
"""

import contextlib
from collections.abc import Iterator
from typing import cast

from runner.config.experiment import RewardPart
from runner.dataset.form import fits
from runner.errors import DataError, Fault
from runner.schema import upstream
from runner.schema.literal import to_text
from runner.schema.read import Signature
from runner.schema.role import Role
from runner.schema.text import named, short_text
from runner.schema.type import shortened
from runner.validate.context import ARGS, ValidationContext, is_given

# Rewards that make something of rows of a form, before a model that judges; the first one is the
# one to type.
REWARDS_FOR = {
    "preference": [],
    "demonstration": ["exact_match", "final_answer", "overlap"],
    "prompt": [],
}
# The groups that a run may leave out.
OPTIONAL_GROUPS = ("reward", "peft", "collator", "callback", "optimizer")


def find_parts_not_taken(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each part that the trainer does not take."""
    trainer = context.trainer
    if trainer is None:
        return
    for group in OPTIONAL_GROUPS:
        if not _is_served(context, trainer, group):
            off = "none" if "none" in context.menu.get(group, ()) else "null"
            yield Fault(
                where=group,
                found=f"set, but {trainer.name} takes no {group}",
                expected="none, or a trainer that takes one",
                fix=f"={off}",
            )


def _is_served(context: ValidationContext, trainer: Signature, group: str) -> bool:
    """True for a group that holds nothing, or whose part the trainer takes."""
    node = context.cfg.get(group)
    if not is_given(node) or trainer.is_open or context.changes_model(node):
        return True
    return any(upstream.FROM_GROUP.get(name) == group for name in trainer.parameters)


def _has_reward(context: ValidationContext) -> bool:
    """True where something says what a completion is worth: a reward, or an environment."""
    if is_given(context.cfg.get("reward")) or context.cfg.get("environment"):
        return True
    return bool(context.mapping("trainer").get("environment_factory"))


def find_missing_teacher(context: ValidationContext) -> Iterator[Fault]:
    """The fault of a trainer that learns from a teacher and has none."""
    trainer = context.trainer
    if trainer is None or "teacher_model" not in trainer.parameters:
        return
    if not context.mapping("trainer").get("teacher_model"):
        yield Fault(
            where="trainer.teacher_model",
            found=f"none, but {trainer.name} learns from a teacher",
            expected="a model that shares the tokenizer",
            fix="trainer.teacher_model.path=<org/name>",
        )


def find_missing_reward(context: ValidationContext) -> Iterator[Fault]:
    """The fault of a trainer that learns from rewards and has none."""
    trainer = context.trainer
    if trainer is None or "reward_funcs" not in trainer.parameters or _has_reward(context):
        return
    if context.args.get("reward_model_path"):
        return
    options = _list_rewards(context)
    expected = "entries with a _target_"
    fix = "reward.<name>._target_=<module.name>"
    if options:
        expected = f"one of {shortened(options)}"
        fix = f"={options[0]}"
    yield Fault(
        where="reward",
        found=f"none, but {trainer.name} learns from rewards",
        expected=expected,
        fix=fix,
    )


def find_weighting_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for weights of rewards or losses that are too few, too many, or all zero."""
    entries = named(context.mapping("reward"), "reward")
    count = len(entries)
    if context.args.get("reward_model_path"):
        count += 1
    weights = context.args.get("reward_weights")
    is_counted = _has_reward(context) and not context.cfg.get("environment")
    if isinstance(weights, list) and is_counted and len(weights) != count:
        rewards = "1 reward" if count == 1 else f"{count} rewards"
        yield Fault(
            where="trainer.args.reward_weights",
            found=f"{len(weights)} weights for {rewards}",
            expected="one for each",
            fix=f"={to_text([1.0] * count)}",
        )
    shares: dict[str, object] = {
        "trainer.args.reward_weights": weights,
        "trainer.args.loss_weights": context.args.get("loss_weights"),
    }
    parts = [entry for entry in entries.values() if isinstance(entry, dict)]
    shares["reward"] = [part.get("weight", RewardPart.weight) for part in parts]
    sides = [context.field("desirable_weight"), context.field("undesirable_weight")]
    if None not in sides:
        shares[f"{ARGS}desirable_weight"] = sides
    for where, values in shares.items():
        if not isinstance(values, list) or not values or any(values):
            continue
        fix = f"leave {where} out"
        if where == "reward":
            fix = f"reward.{next(iter(entries))}.weight=1"
        yield Fault(
            where=where,
            found=f"{short_text(values)}: nothing would be learnt from them",
            expected="a weight that is not 0",
            fix=fix,
        )


def _list_rewards(context: ValidationContext) -> list[str]:
    """The rewards of the menu, those that suit the form of the rows first."""
    rows = context.mapping("dataset")
    form = rows.get("form")
    path = rows.get("path")
    if form is None and isinstance(path, str):
        form = _detect_form(context, path)
    suitable = ["chat_model"]
    for trainer_form, names in REWARDS_FOR.items():
        if fits(form, trainer_form) or trainer_form == "prompt":
            suitable = [*names, "chat_model"]
            break
    options = context.options("reward")
    first = [name for name in suitable if name in options]
    further = [name for name in options if name not in suitable]
    return first + further


def _detect_form(context: ValidationContext, path: str) -> str | None:
    """The form of the rows in local files; None where there are none, or their check will tell."""
    # Only what a configuration does not say is read from its files.
    from runner.dataset.detect import read_layout
    from runner.dataset.scan import MAX_BYTES_READ, check_files, read_columns
    from runner.dataset.source_files import find_files

    columns = cast("dict[Role, str]", context.mapping("dataset.columns"))
    with contextlib.suppress(DataError):
        files = find_files(path)
        if files:
            check_files(files, MAX_BYTES_READ)
            return read_layout(read_columns(files, MAX_BYTES_READ), {}, given=columns).form
    return None
