"""Typed fields of the trainer's config or of an adapter that nothing reads, and bounds out of order.

A field that stands in a file is left alone: a file is made for several trainings, and a word is typed
for one.
"""

import re
from collections.abc import Iterator

from runner.errors import Fault
from runner.schema import upstream
from runner.schema.literal import to_text
from runner.schema.read import UNKNOWN, Signature
from runner.schema.text import short_text, to_override
from runner.schema.upstream.idle_fields import ReadBeside
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
        is_usual = parameter is None or value in (None, parameter.default)
        if not is_usual and _is_typed(context, f"{ARGS}{field}"):
            yield from _find_idle_field(context, field, value, conditions.get(field))


def _find_idle_field(
    context: ValidationContext, field: str, value: object, condition: ReadBeside | None
) -> Iterator[Fault]:
    """The fault of a field that was typed and that nothing reads; ``condition`` says when it is."""
    where = f"{ARGS}{field}"
    text = short_text(value)
    off = f"leave {where} out"
    newer = upstream.NEWER_NAMES.get(field, "")
    group = _replacing_group(context, field)
    if field in upstream.LOADED_BY_GROUP and not _loads_models(context):
        # A key inside of it may be a danger, and is reported as that.
        if where in context.typed:
            found = f"{text}, but the runner loads the model by its own keys"
            yield Fault(where, found, upstream.LOADED_BY_GROUP[field], off)
    elif field in upstream.DONE_BY_RUNNER:
        reason, instead = upstream.DONE_BY_RUNNER[field]
        fix = f"{to_override(instead, value)} in place of it" if instead else off
        yield Fault(where, f"{text}, which nothing reads: {reason}", "none", fix)
    elif context.args.get(newer) is not None:
        yield Fault(where, f"{text}, but {newer} replaces it", "one of the two", off)
    elif group:
        found = f"{text}, but {group} replaces it"
        yield Fault(where, found, "one of the two", _equivalent(field, value, group))
    elif condition:
        yield from _find_unread(context, field, condition)


def _replacing_group(context: ValidationContext, field: str) -> str:
    """The group whose part takes the place of a field; empty without one."""
    for group, names in upstream.REPLACED_BY.items():
        if field in names and context.mapping(group).get("_target_"):
            return group
    return ""


def _conditions(config: Signature) -> dict[str, ReadBeside | None]:
    """The fields of a config that count only beside values of another one: that one, its values."""
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
    other = condition.field
    wanted = condition.values
    where = f"{ARGS}{field}"
    text = short_text(context.args[field])
    off = f"leave {where} out"
    if wanted == []:
        yield Fault(where, f"{text}, which the loss of this trainer does not read", "none", off)
        return
    current = context.args.get(upstream.NEWER_NAMES.get(other, ""))
    if current is None:
        current = context.field(other)
    if current is UNKNOWN and other == "optim":
        current = upstream.USUAL_OPTIMIZER
    if current is UNKNOWN:
        return  # a default that is made as the config is
    values = current if isinstance(current, list) else [current]
    found = f"{text}, which nothing reads while {other} is {short_text(current)}"
    if not isinstance(wanted, list):
        if not any(values) or values == ["no"]:
            yield Fault(where, found, f"another {other}", off)
        return
    for value in values:
        if any(re.fullmatch(pattern, str(value)) for pattern in wanted):
            return
    names = [pattern.replace(".*", "*") for pattern in wanted]
    if "*" not in names[0]:
        off += f", or {to_override(f'{ARGS}{other}', names[0])}"
    yield Fault(where, found, f"{other} one of {', '.join(names)}", off)


def find_idle_adapter_fields(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each typed field of an adapter that nothing reads."""
    peft = context.mapping("peft")
    config = context.signature(peft)
    if config is None:
        return
    for field, condition in _conditions(config).items():
        where = f"peft.{field}"
        value = peft.get(field)
        parameter = config.parameters.get(field)
        if parameter is None or condition is None or condition.field not in config.parameters:
            continue
        if value in (None, parameter.default) or not _is_typed(context, where):
            continue
        other = condition.field
        wanted = condition.values
        current = peft.get(other, config.parameters[other].default)
        text = short_text(value)
        off = f"leave {where} out"
        if wanted == []:
            found = f"{text}, which {config.name} does not read"
            fix = f"{to_override(f'peft.{other}', value)} in place of it"
            yield Fault(where, found, f"peft.{other}", fix)
        elif not isinstance(wanted, list):
            if not current:
                found = f"{text}, which nothing reads without {other}"
                yield Fault(where, found, f"peft.{other} in addition", off)
        elif str(current).lower() not in [name.lower() for name in wanted]:
            shown = "its default" if current is UNKNOWN else short_text(current)
            found = f"{text}, which nothing reads while {other} is {shown}"
            yield Fault(where, found, f"{other} one of {', '.join(wanted)}", off)


def find_bounds_out_of_order(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each pair of bounds of which the lower one is not below the upper one."""
    for low, high in upstream.ASCENDING:
        smaller = context.field(low)
        larger = context.field(high)
        if is_plain_number(smaller) and is_plain_number(larger) and smaller > larger:
            found = f"{short_text(smaller)}, above {high}: {short_text(larger)}"
            yield Fault(f"{ARGS}{low}", found, f"at most {high}", f"={short_text(larger)}")
    ends = context.field("reward_clip_range")
    if isinstance(ends, list) and len(ends) == 2 and ends[0] >= ends[1]:
        where = "trainer.args.reward_clip_range"
        yield Fault(where, to_text(ends), "two numbers, the lower end first", f"leave {where} out")
