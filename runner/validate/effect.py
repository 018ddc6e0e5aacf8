"""Typed fields of the trainer's config or an adapter that nothing reads, and pairs that must be in order.

A field that stands in a file is let be: a file is made for several trainings, and a word is typed for one.
"""

import re
from collections.abc import Iterator

from runner.errors import Fault
from runner.schema import upstream
from runner.schema.read import UNKNOWN, Signature
from runner.schema.text import short_text, to_override, to_text
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import is_plain_number


def find_idle_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each typed field that has no effect beside the others, and for bounds in the wrong order."""
    yield from _find_idle_of_adapter(context)
    config = context.signature(context.args)
    if not config:
        return
    beside = _conditions(config)
    replaced = {
        name: group
        for group, names in upstream.REPLACED_BY.items()
        if context.mapping(group).get("_target_")
        for name in names
    }
    for field in context.args:
        value, parameter = context.args[field], config.parameters.get(field)
        if not _is_typed(context, f"{ARGS}{field}") or parameter is None:
            continue
        if value in (None, parameter.default):
            continue
        if field in upstream.LOADED_BY_GROUP and not _loads_models(context):
            if f"{ARGS}{field}" not in context.typed:  # but a key inside of it, which may be a danger's
                continue
            found = f"{short_text(value)}, and the runner loads the model by keys of its own"
            yield Fault(f"{ARGS}{field}", found, upstream.LOADED_BY_GROUP[field], f"leave {ARGS}{field} out")
        elif field in upstream.DONE_BY_RUNNER:
            reason, instead = upstream.DONE_BY_RUNNER[field]
            found = f"{short_text(value)}, which nothing reads: {reason}"
            fix = f"{to_override(instead, value)} in place of it" if instead else f"leave {ARGS}{field} out"
            yield Fault(f"{ARGS}{field}", found, "none", fix)
        elif context.args.get(upstream.NEWER_NAMES.get(field, "")) is not None:
            newer = upstream.NEWER_NAMES[field]
            found = f"{short_text(value)}, and {newer} takes its place"
            yield Fault(f"{ARGS}{field}", found, "one of the two", f"leave {ARGS}{field} out")
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


def _conditions(config: Signature) -> dict[str, tuple[str, object] | None]:
    """The fields of a config that count only beside values of another one, with that one and its values."""
    conditions: dict[str, tuple[str, object] | None] = {}
    for owner in reversed(config.lineage):
        conditions |= upstream.READ_BESIDE.get(owner, {})
    return conditions


def _is_typed(context: ValidationContext, path: str) -> bool:
    """True where a key, or one inside of it, was typed."""
    return any(key == path or key.startswith(f"{path}.") for key in context.typed)


def _find_idle_of_adapter(context: ValidationContext) -> Iterator[Fault]:
    peft = context.mapping("peft")
    config = context.signature(peft)
    for field, condition in _conditions(config).items() if config else ():
        path, value = f"peft.{field}", peft.get(field)
        if config is None or condition is None or not _is_typed(context, path):
            continue
        if value in (None, config.parameters[field].default):
            continue
        other, wanted = condition
        current = peft.get(other, config.parameters[other].default)
        off = f"leave {path} out"
        if wanted == []:
            found = f"{short_text(value)}, which {config.name} does not read"
            fix = f"{to_override(f'peft.{other}', value)} in place of it"
            yield Fault(path, found, f"peft.{other}", fix)
        elif not isinstance(wanted, list):
            if not current:
                found = f"{short_text(value)}, which nothing reads without {other}"
                yield Fault(path, found, f"peft.{other} beside it", off)
        elif str(current).lower() not in [name.lower() for name in wanted]:
            found = f"{short_text(value)}, which nothing reads while {other} is {_shown(current)}"
            yield Fault(path, found, f"{other} one of {', '.join(wanted)}", off)


def _shown(value: object) -> str:
    return "its default" if value is UNKNOWN else short_text(value)


def _loads_models(context: ValidationContext) -> bool:
    """True for a trainer that loads a policy, or a reference beside it, by itself."""
    trainer = context.trainer
    if trainer is None or upstream.takes_path(trainer):
        return True
    names = trainer.parameters
    return upstream.REWARD_FUNCS in names and upstream.REF_MODEL not in names


def _find_idle(context: ValidationContext, field: str, other: str, wanted: object) -> Iterator[Fault]:
    path, value = f"{ARGS}{field}", short_text(context.args[field])
    off = f"leave {path} out"
    current = context.args.get(upstream.NEWER_NAMES.get(other, ""))
    if current is None:
        current = context.field(other)
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
