"""Typed fields of the trainer's config that nothing reads, and pairs of fields that must be in order.

A field that stands in a file is let be: a file is made for several trainings, and a word is typed for one.
"""

import re
from collections.abc import Iterator

from runner.errors import Fault
from runner.schema import upstream
from runner.schema.read import UNKNOWN
from runner.schema.text import short_text, to_override, to_text
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import is_plain_number


def find_idle_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each typed field that has no effect beside the others, and for bounds in the wrong order."""
    config = context.signature(context.args)
    if not config:
        return
    beside: dict[str, tuple[str, object] | None] = {}
    for owner in reversed(config.lineage):
        beside |= upstream.READ_BESIDE.get(owner, {})
    replaced = {
        name: group
        for group, names in upstream.REPLACED_BY.items()
        if context.mapping(group).get("_target_")
        for name in names
    }
    for field in context.args:
        is_typed = f"{ARGS}{field}" in context.typed
        value, parameter = context.args[field], config.parameters.get(field)
        if not is_typed or parameter is None or value in (None, parameter.default):
            continue
        if field in upstream.LOADED_BY_GROUP and not _loads_models(context):
            found = f"{short_text(value)}, and the runner loads the model by keys of its own"
            yield Fault(f"{ARGS}{field}", found, upstream.LOADED_BY_GROUP[field], f"leave {ARGS}{field} out")
        elif field in replaced:
            group = replaced[field]
            found = f"{short_text(value)}, and {group} takes its place"
            yield Fault(f"{ARGS}{field}", found, "one of the two", _equivalent(field, value, group))
        elif condition := beside.get(field):
            yield from _find_idle(context, field, *condition)
    for low, high in upstream.ASCENDING:
        smaller, larger = context.field(low), context.field(high)
        if is_plain_number(smaller) and is_plain_number(larger) and smaller > larger:
            found = f"{short_text(smaller)}, above {high}: {short_text(larger)}"
            yield Fault(f"{ARGS}{low}", found, f"at most {high}", f"={short_text(larger)}")
    ends = context.field(upstream.REWARD_CLIP_RANGE)
    if isinstance(ends, list) and len(ends) == 2 and ends[0] >= ends[1]:
        path = f"{ARGS}{upstream.REWARD_CLIP_RANGE}"
        yield Fault(path, to_text(ends), "two numbers, the lower end first", f"leave {path} out")


def _loads_models(context: ValidationContext) -> bool:
    """True for a trainer that loads a policy, or a reference beside it, by itself."""
    trainer = context.trainer
    if trainer is None or upstream.takes_path(trainer):
        return True
    names = trainer.parameters
    return upstream.REWARD_FUNCS in names and upstream.REF_MODEL not in names


def _find_idle(context: ValidationContext, field: str, other: str, wanted: object) -> Iterator[Fault]:
    path, value = f"{ARGS}{field}", short_text(context.args[field])
    off, current = f"leave {path} out", context.field(other)
    if wanted == []:
        yield Fault(path, f"{value}, which the loss of this trainer does not read", "none", off)
        return
    if current is UNKNOWN and other == upstream.OPTIM:
        current = upstream.USUAL_OPTIMIZER
    if current is UNKNOWN:  # a default that is made as the config is
        return
    given = current if isinstance(current, list) else [current]
    found = f"{value}, which nothing reads while {other} is {short_text(current)}"
    if not isinstance(wanted, list):
        if not any(given) or given == ["no"]:
            yield Fault(path, found, f"another {other}", off)
    elif not any(re.fullmatch(wish, str(one)) for wish in wanted for one in given):
        shown = [wish.replace(".*", "*") for wish in wanted]
        if "*" not in shown[0]:
            off += f", or {to_override(f'{ARGS}{other}', shown[0])}"
        yield Fault(path, found, f"{other} one of {', '.join(shown)}", off)


def _equivalent(field: str, value: object, group: str) -> str:
    name = {upstream.ADAM_EPSILON: "eps", upstream.WEIGHT_DECAY: "weight_decay"}.get(field)
    if group == "optimizer" and name:
        return f"{to_override(f'{group}.{name}', value)} in place of it"
    return f"leave {ARGS}{field} out, or {group}={'none' if group == 'optimizer' else 'null'}"
