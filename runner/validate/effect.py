"""Typed fields of the trainer's config that nothing reads, and pairs of fields of which one must not be above the other.

A field that stands in a file is let be: a file is made for several trainings, and a word is typed for one.
"""

import re
from collections.abc import Iterator

from runner.errors import Fault
from runner.schema import upstream
from runner.schema.read import UNKNOWN
from runner.schema.text import short_text, to_override
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import is_plain_number


def find_idle_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each typed field that has no effect beside the others, and for bounds in the wrong order."""
    config = context.signature(context.args)
    if not config:
        return
    beside: dict[str, list[object] | None] = {}
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
        if field in replaced:
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


def _find_idle(context: ValidationContext, field: str, other: str, wanted: object) -> Iterator[Fault]:
    current, value = context.field(other), short_text(context.args[field])
    path = f"{ARGS}{field}"
    if current is UNKNOWN:  # a default that is made as the config is
        return
    if wanted == "set":
        if current in (None, False, 0, "", "no"):
            expected = f"{other}, beside which it counts"
            yield Fault(path, f"{value}, which nothing reads: no {other}", expected, f"leave {path} out")
        return
    values = wanted if isinstance(wanted, list) else [wanted]
    if not values:
        yield Fault(path, f"{value}, which the loss of this trainer does not read", "none", f"leave {path} out")
        return
    given = current if isinstance(current, list) else [current]
    if any(re.fullmatch(str(wish), str(one)) for wish in values for one in given):
        return
    found = f"{value}, which {other}={short_text(current)} does not read"
    is_plain = re.fullmatch(r"[\w-]+", str(values[0]))
    fix = f"leave {path} out" + (f", or {to_override(f'{ARGS}{other}', values[0])}" if is_plain else "")
    yield Fault(path, found, f"{other} of {', '.join(map(str, values))}", fix)


def _equivalent(field: str, value: object, group: str) -> str:
    name = {upstream.ADAM_EPSILON: "eps", upstream.WEIGHT_DECAY: "weight_decay"}.get(field)
    if group == "optimizer" and name:
        return f"{to_override(f'{group}.{name}', value)} in place of it"
    return f"leave {ARGS}{field} out, or {group}={'none' if group == 'optimizer' else 'null'}"
