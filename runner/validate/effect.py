"""Typed fields of a trainer's config, an adapter or a tracker that nothing reads, and bounds.

A field that stands in a file is left alone: a file is made for several trainings, and a word is
typed for one.
"""

import re
from collections.abc import Iterator

from runner.config.experiment import Tracking
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.literal import to_list, to_text
from runner.schema.read import UNKNOWN, Signature
from runner.schema.text import Node, short_text, to_override
from runner.schema.upstream.idle_fields import ReadBeside
from runner.schema.upstream.trackers import MODES, TRACKERS
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import is_plain_number

# The arguments of the optimizer group that stand for fields of the trainer's config.
OPTIMIZER_ARGUMENTS = {"adam_epsilon": "eps", "weight_decay": "weight_decay"}


def find_idle_fields(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each typed field of the trainer's config that nothing reads."""
    config = context.signature(context.args)
    if not config:
        return
    conditions = _conditions(config)
    for field, value in context.args.items():
        parameter = config.parameters.get(field)
        if parameter is None or value in (None, parameter.default):
            continue
        if _is_typed(context, f"{ARGS}{field}"):
            yield from _find_idle_field(context, field, value, conditions.get(field))


def _find_idle_field(
    context: ValidationContext, field: str, value: object, condition: ReadBeside | None
) -> Iterator[Fault]:
    """The fault of a field that was typed and that nothing reads; ``condition`` says when it is."""
    where = f"{ARGS}{field}"
    text = short_text(value)
    leave_out = f"leave {where} out"
    newer_name = upstream.NEWER_NAMES.get(field, "")
    group = _replacing_group(context, field)
    if field in upstream.LOADED_BY_GROUP and not _loads_models(context):
        # A key inside of it may be a danger, and is reported as that.
        if where in context.typed:
            yield Fault(
                where=where,
                found=f"{text}, but the runner loads the model by its own keys",
                expected=upstream.LOADED_BY_GROUP[field],
                fix=leave_out,
            )
    elif field in upstream.DONE_BY_RUNNER:
        reason, replacement = upstream.DONE_BY_RUNNER[field]
        fix = leave_out
        if replacement:
            fix = f"{to_override(replacement, value)} in place of it"
        yield Fault(
            where=where,
            found=f"{text}, which nothing reads: {reason}",
            expected="none",
            fix=fix,
        )
    elif context.args.get(newer_name) is not None:
        yield Fault(
            where=where,
            found=f"{text}, but {newer_name} replaces it",
            expected="one of the two",
            fix=leave_out,
        )
    elif group:
        yield Fault(
            where=where,
            found=f"{text}, but {group} replaces it",
            expected="one of the two",
            fix=_equivalent(field, value, group),
        )
    elif condition:
        yield from _find_unread(context, field, condition)


def _replacing_group(context: ValidationContext, field: str) -> str:
    """The group whose part takes the place of a field; empty without one."""
    for group, names in upstream.REPLACED_BY.items():
        if field in names and context.mapping(group).get("_target_"):
            return group
    return ""


def _conditions(config: Signature) -> dict[str, ReadBeside | None]:
    """The condition under which a field counts, for each field of a config that has one.

    What a class says replaces what its bases say; None takes a condition of theirs back.
    """
    conditions: dict[str, ReadBeside | None] = {}
    for owner in reversed(config.lineage):
        conditions |= upstream.READ_BESIDE.get(owner, {})
    return conditions


def _is_typed(context: ValidationContext, path: str) -> bool:
    """True where a key, or one inside of it, was typed."""
    return any(key == path or key.startswith(f"{path}.") for key in context.typed)


def _loads_models(context: ValidationContext) -> bool:
    """True for a trainer that loads a policy, or a reference beside it, by itself."""
    trainer = context.trainer
    if trainer is None or upstream.takes_path(trainer):
        return True
    return "reward_funcs" in trainer.parameters and "ref_model" not in trainer.parameters


def _equivalent(field: str, value: object, group: str) -> str:
    """The word by which a group takes the value of a field that it replaces."""
    if group == "optimizer" and field in OPTIMIZER_ARGUMENTS:
        argument = OPTIMIZER_ARGUMENTS[field]
        return f"{to_override(f'{group}.{argument}', value)} in place of it"
    off = "none" if group == "optimizer" else "null"
    return f"leave {ARGS}{field} out, or {group}={off}"


def _find_unread(context: ValidationContext, field: str, condition: ReadBeside) -> Iterator[Fault]:
    """The fault of a field that is read only under a condition that is not met."""
    where = f"{ARGS}{field}"
    text = short_text(context.args[field])
    leave_out = f"leave {where} out"
    if condition.values == []:
        yield Fault(
            where=where,
            found=f"{text}, which the loss of this trainer does not read",
            expected="none",
            fix=leave_out,
        )
        return
    decider = condition.field
    current = _current_value(context, decider)
    if current is UNKNOWN:
        return  # a default that is made as the config is
    values = to_list(current)
    unread = f"{text}, which nothing reads while {decider} is {short_text(current)}"
    if not isinstance(condition.values, list):
        is_set = any(values) and values != ["no"]
        if not is_set:
            yield Fault(
                where=where,
                found=unread,
                expected=f"another {decider}",
                fix=leave_out,
            )
        return
    for value in values:
        current_text = str(value)
        if any(re.fullmatch(pattern, current_text) for pattern in condition.values):
            return
    names = [pattern.replace(".*", "*") for pattern in condition.values]
    fix = leave_out
    if "*" not in names[0]:
        choice = to_override(f"{ARGS}{decider}", names[0])
        fix = f"{leave_out}, or {choice}"
    yield Fault(
        where=where,
        found=unread,
        expected=f"{decider} one of {', '.join(names)}",
        fix=fix,
    )


def _current_value(context: ValidationContext, field: str) -> object:
    """The value that a field of the trainer's config will have, under its newer name if it has one.

    UNKNOWN stands for a default that only the library computes.
    """
    newer_name = upstream.NEWER_NAMES.get(field, "")
    value: object = context.args.get(newer_name)
    if value is None:
        value = context.field(field)
    if value is UNKNOWN and field == "optim":
        return upstream.USUAL_OPTIMIZER
    return value


def find_idle_adapter_fields(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each typed field of an adapter that nothing reads."""
    peft = context.mapping("peft")
    config = context.signature(peft)
    if config is None:
        return
    for field, condition in _conditions(config).items():
        parameter = config.parameters.get(field)
        if parameter is None or condition is None or condition.field not in config.parameters:
            continue
        is_default = peft.get(field) in (None, parameter.default)
        if not is_default and _is_typed(context, f"peft.{field}"):
            yield from _find_unread_in_adapter(peft, field, condition, config)


def _find_unread_in_adapter(
    peft: Node, field: str, condition: ReadBeside, config: Signature
) -> Iterator[Fault]:
    """The fault of a field of an adapter whose condition is not met."""
    where = f"peft.{field}"
    text = short_text(peft[field])
    leave_out = f"leave {where} out"
    decider = condition.field
    current = peft.get(decider, config.parameters[decider].default)
    if condition.values == []:
        replacement = to_override(f"peft.{decider}", peft[field])
        yield Fault(
            where=where,
            found=f"{text}, which {config.name} does not read",
            expected=f"peft.{decider}",
            fix=f"{replacement} in place of it",
        )
    elif not isinstance(condition.values, list):
        if not current:
            yield Fault(
                where=where,
                found=f"{text}, which nothing reads without {decider}",
                expected=f"peft.{decider} in addition",
                fix=leave_out,
            )
    elif str(current).lower() not in map(str.lower, condition.values):
        shown = "its default" if current is UNKNOWN else short_text(current)
        yield Fault(
            where=where,
            found=f"{text}, which nothing reads while {decider} is {shown}",
            expected=f"{decider} one of {', '.join(condition.values)}",
            fix=leave_out,
        )


def find_bounds_out_of_order(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each pair of bounds of which the lower one is not below the upper one."""
    for low, high in upstream.ASCENDING:
        smaller = context.field(low)
        larger = context.field(high)
        if not is_plain_number(smaller) or not is_plain_number(larger):
            continue
        if smaller > larger:
            bound = short_text(larger)
            yield Fault(
                where=f"{ARGS}{low}",
                found=f"{short_text(smaller)}, above {high}: {bound}",
                expected=f"at most {high}",
                fix=f"={bound}",
            )
    ends = context.field("reward_clip_range")
    if isinstance(ends, list) and len(ends) == 2 and ends[0] >= ends[1]:
        where = f"{ARGS}reward_clip_range"
        yield Fault(
            where=where,
            found=to_text(ends),
            expected="two numbers, the lower end first",
            fix=f"leave {where} out",
        )


def find_unread_tracker_keys(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each typed key of ours that none of the chosen trackers takes, or not so."""
    tracking = Tracking.read(context.mapping("tracker"))
    libraries = tracking.libraries
    names = " and ".join(library.name for library in libraries)
    for key in ("project", "entity", "mode"):
        where = f"tracker.{key}"
        value = tracking.node.get(key)
        if value is None or where not in context.typed or not libraries or tracking.target:
            continue
        if not any(library.takes(key) for library in libraries):
            takers = [library.name for library in TRACKERS.values() if library.takes(key)]
            yield Fault(
                where=where,
                found=f"{short_text(value)}, but {names} takes no {key}",
                expected=f"one of the trackers {', '.join(takers)}",
                fix=f"leave {where} out",
            )
    for library in libraries:
        is_typed = "tracker.mode" in context.typed and tracking.mode in MODES
        if library.modes and is_typed and tracking.mode not in library.modes:
            yield Fault(
                where="tracker.mode",
                found=f"{tracking.mode}, which {library.name} has not",
                expected=" or ".join(library.modes),
                fix=f"={[*library.modes][-1]}",
            )
