"""Mappings of the trainer's config that a library reads late, against what takes them.

``upstream.PASSED_ON`` names what takes each of them. Such a mapping is checked as the arguments of
any target are, and against the errors that the target's source raises. What a schedule or an
optimizer takes goes by the name of the one that is chosen.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from runner.errors import Fault
from runner.schema import upstream
from runner.schema.did_you_mean import best_guess
from runner.schema.library_ranges import range_in_group
from runner.schema.literal import to_text
from runner.schema.read import UNKNOWN, Parameter, Signature, read_signature
from runner.schema.refusal import find_refusals
from runner.schema.text import Node, short_text, to_override
from runner.schema.type import shortened
from runner.schema.upstream.constructor import PassedOn
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import find_misfits, is_plain_number

GENERATION = "generation_kwargs"
SCHEDULE = f"{ARGS}lr_scheduler_kwargs"


def find_passed_on_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each key or value of a mapping that its taker would refuse, or not read."""
    for field, passed_on in upstream.PASSED_ON.items():
        mapping = context.mapping(f"{ARGS}{field}")
        if not mapping or _is_read_by_vllm(context, field):
            continue
        parameters = _parameters_of_taker(passed_on)
        if parameters is None:
            continue
        if passed_on.prefix:
            mapping = {str(key).removeprefix(passed_on.prefix): mapping[key] for key in mapping}
        group = "generation" if field == GENERATION else "trainer"
        yield from _find_misfits(f"{ARGS}{field}", mapping, parameters, group)


def _is_read_by_vllm(context: ValidationContext, field: str) -> bool:
    return field == GENERATION and context.field("use_vllm") is True


def _parameters_of_taker(passed_on: PassedOn) -> dict[str, Parameter] | None:
    """The parameters that a mapping may fill; None for a taker that is not installed."""
    parameters = {key: Parameter(key) for key in passed_on.keys}
    if passed_on.to:
        signature = read_signature(passed_on.to)
        if signature is None:
            return None
        parameters |= signature.parameters
    for name in passed_on.given:
        parameters.pop(name, None)
    return parameters


def _find_misfits(
    where: str, mapping: Mapping[str, object], parameters: Mapping[str, Parameter], group: str
) -> Iterator[Fault]:
    """The faults of the keys and values of a mapping, as arguments with these parameters.

    ``group`` is the one whose ranges hold for the numbers.
    """
    for key, value in mapping.items():
        path = f"{where}.{key}"
        if key not in parameters:
            yield _unknown_key(where, str(key), value, parameters)
        # The signature does not say what a mapping inside may hold; null leaves it to the taker.
        elif value is not None and not isinstance(value, Mapping):
            numbers = range_in_group(group, key)
            yield from find_misfits(path, value, parameters[key], numbers)


def _unknown_key(where: str, key: str, value: object, parameters: Mapping[str, Parameter]) -> Fault:
    path = f"{where}.{key}"
    similar = best_guess(key, parameters)
    if similar:
        expected = similar
        word = to_override(f"{where}.{similar}", value)
        fix = f"{word} in place of {key}"
    else:
        expected = "none"
        if parameters:
            expected = f"one of {shortened(sorted(parameters))}"
        fix = f"leave {path} out"
    return Fault(
        where=path,
        found="no such key",
        expected=expected,
        fix=fix,
    )


def find_generation_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each key of generation_kwargs that a field of the trainer must agree with."""
    where = f"{ARGS}{GENERATION}"
    keys = context.mapping(where)
    if not keys or _is_read_by_vllm(context, GENERATION):
        return
    fields = upstream.config_fields(context.args)
    for key, value in keys.items():
        path = f"{where}.{key}"
        field = _field_of_generation_key(key, fields)
        if key in upstream.UNSAMPLED:
            reason, harmless = upstream.UNSAMPLED[key]
            if value != harmless:
                yield Fault(
                    where=path,
                    found=f"{short_text(value)}: {reason}",
                    expected=to_text(harmless),
                    fix=f"leave {path} out",
                )
        elif field in fields:
            yield Fault(
                where=path,
                found=f"{short_text(value)}, which the trainer's own {field} does not know of",
                expected=f"{ARGS}{field}",
                fix=f"{to_override(f'{ARGS}{field}', value)} in place of it",
            )


def _field_of_generation_key(key: str, fields: Collection[str]) -> str:
    """The field of a trainer's config for a key of generation_kwargs; empty without one.

    The length of completions goes by several names, of which a config has one.
    """
    field = upstream.SAMPLED_BY.get(key, "")
    if field not in upstream.COMPLETION_LENGTHS:
        return field
    for name in upstream.COMPLETION_LENGTHS:
        if name in fields:
            return name
    return ""


def find_schedule_faults(context: ValidationContext) -> Iterator[Fault]:
    """The faults of lr_scheduler_kwargs, for the schedule that is chosen."""
    name = context.field("lr_scheduler_type")
    arguments = context.mapping(SCHEDULE)
    # A scheduler of the optimizer group replaces the field.
    if context.mapping("optimizer.scheduler") or name not in upstream.SCHEDULES:
        return
    schedule = upstream.SCHEDULES[name]
    signature = read_signature(schedule.takes) if schedule.takes else None
    if signature is not None:
        yield from _find_faults_of_schedule(context, name, arguments, signature)
    elif schedule.takes is None and arguments:
        yield Fault(
            where=SCHEDULE,
            found=f"{short_text(arguments)}, but {name} takes none",
            expected="null",
            fix="=null",
        )


def _find_faults_of_schedule(
    context: ValidationContext, name: str, arguments: Node, signature: Signature
) -> Iterator[Fault]:
    """The faults of the arguments of a schedule that takes some."""
    parameters = dict(signature.parameters)
    for argument in upstream.GIVEN_TO_SCHEDULES:
        parameters.pop(argument, None)
    misfits = list(_find_misfits(SCHEDULE, arguments, parameters, "optimizer"))
    if misfits:
        yield from misfits
        return
    fix = f"leave {SCHEDULE} out"
    example = upstream.SCHEDULES[name].example
    if example:
        fix = f'"{SCHEDULE}={to_text(example)}"'
    for argument, parameter in parameters.items():
        if parameter.required and argument not in arguments:
            yield Fault(
                where=SCHEDULE,
                found=f"no {argument}, which {name} needs",
                expected=f"a mapping with {argument}",
                fix=fix,
            )
            return
    yield from _find_bound_faults(context, arguments)
    values: dict[str, object] = {}
    for argument, parameter in parameters.items():
        values[argument] = arguments.get(argument, parameter.default)
    method = "__init__" if signature.lineage else ""
    unknown = dict.fromkeys(upstream.GIVEN_TO_SCHEDULES, UNKNOWN)
    refusals = find_refusals(signature.target, method, values | unknown)
    for refusal in refusals:
        text = refusal.text.partition(". ")[0].replace("`", "")
        yield Fault(
            where=SCHEDULE,
            found=f"{name}: {text}",
            expected="arguments that the schedule takes",
            fix=fix,
        )


def _find_bound_faults(
    context: ValidationContext, arguments: Mapping[str, object]
) -> Iterator[Fault]:
    """A fault for each argument of a schedule above the field of the trainer that bounds it."""
    for name, field in upstream.SCHEDULE_BOUNDS.items():
        value = arguments.get(name)
        bound = context.field(field)
        if not is_plain_number(value) or not is_plain_number(bound):
            continue
        if not 0 < bound < value:
            continue
        # What fits any bound, in its unit: a number of steps stays a whole number.
        tenth = bound / 10
        if isinstance(bound, int):
            tenth = max(1, bound // 10)
        path = f"{SCHEDULE}.{name}"
        yield Fault(
            where=path,
            found=f"{short_text(value)}, above {field}: {short_text(bound)}",
            expected=f"at most {field}",
            fix=to_override(path, tenth),
        )


def find_optimizer_argument_faults(context: ValidationContext) -> Iterator[Fault]:
    """The faults of optim_args, a text of keys and values, for the optimizer that is chosen."""
    where = f"{ARGS}optim_args"
    text = context.field("optim_args")
    if not isinstance(text, str) or not text:
        return
    optimizer = str(context.args.get("optim", upstream.USUAL_OPTIMIZER))
    names = _argument_names(optimizer)
    if not names:
        yield Fault(
            where=where,
            found=f"{short_text(text)}, but {optimizer} reads none of it",
            expected="null: its settings are fields, such as adam_beta1",
            fix="=null",
        )
        return
    first_name = next(iter(names))
    example = to_override(where, f"{first_name}=<value>")
    for pair in text.replace(" ", "").split(","):
        key, equals, value = pair.partition("=")
        if not equals or not value or "=" in value:
            yield Fault(
                where=where,
                found=short_text(pair),
                expected="key=value, with commas between",
                fix=example,
            )
        elif key not in names:
            similar = best_guess(key, names)
            fix = example
            if similar:
                fix = to_override(where, f"{similar}={value}")
            yield Fault(
                where=where,
                found=f"{key}, which {optimizer} does not read",
                expected=f"some of {', '.join(names)}",
                fix=fix,
            )


def _argument_names(optimizer: str) -> Collection[str]:
    """The arguments that an optimizer of transformers reads from optim_args."""
    for pattern, arguments in upstream.OPTIMIZER_ARGS.items():
        if re.fullmatch(pattern, optimizer):
            return arguments
    return ()
