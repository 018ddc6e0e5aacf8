"""Mappings of the trainer's config that a library reads late: their keys and values against what takes them.

``upstream.passed_on`` says what that is. Each such mapping is checked as the arguments of any target are, and against
the errors that its source raises. What a schedule or an optimizer takes goes by the name of the one that is chosen.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from runner.errors import Fault
from runner.schema import upstream
from runner.schema.read import UNKNOWN, Parameter, read_signature
from runner.schema.refusal import find_refusals
from runner.schema.text import nearest, short_text, to_override, to_text
from runner.schema.type import shortened
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import find_misfits, is_plain_number, range_in_group


def find_passed_on_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each key or value of a mapping that whoever is given it would refuse, or not read."""
    if not context.signature(context.args):
        return
    for field, row in upstream.PASSED_ON.items():
        value = context.mapping(f"{ARGS}{field}")
        if not value or _is_read_by_vllm(context, field):
            continue
        known: dict[str, Parameter] = {key: Parameter(key) for key in row.get("keys", ())}
        if "to" in row:
            signature = read_signature(row["to"])
            if signature is None:
                continue
            known |= signature.parameters
        if prefix := row.get("prefix"):  # which may stand before each key
            value = {str(key).removeprefix(prefix): entry for key, entry in value.items()}
        for name in row.get("given", ()):
            known.pop(name, None)
        group = "generation" if field == upstream.GENERATION_KWARGS else "trainer"
        yield from _find_misfits(f"{ARGS}{field}", value, known, group)
    yield from _find_sampling_faults(context)
    yield from _find_schedule_faults(context)
    yield from _find_optimizer_faults(context)


def _is_read_by_vllm(context: ValidationContext, field: str) -> bool:
    return field == upstream.GENERATION_KWARGS and context.field(upstream.USE_VLLM) is True


def _find_misfits(
    where: str, given: Mapping[str, object], known: Mapping[str, Parameter], group: str
) -> Iterator[Fault]:
    for key, value in given.items():
        path = f"{where}.{key}"
        if key not in known:
            expected = f"one of {shortened(sorted(known))}" if known else "none"
            fix = f"leave {path} out"
            if near := nearest(str(key), known):
                expected = near[0]
                fix = f"{to_override(f'{where}.{near[0]}', value)} in place of {key}"
            yield Fault(path, "no such key", expected, fix)
        elif value is not None and not isinstance(value, Mapping):
            yield from find_misfits(path, value, known[key], range_in_group(group, key))


def _find_sampling_faults(context: ValidationContext) -> Iterator[Fault]:
    where = f"{ARGS}{upstream.GENERATION_KWARGS}"
    given = context.mapping(where)
    if not given or _is_read_by_vllm(context, upstream.GENERATION_KWARGS):
        return
    fields = upstream.config_fields(context.args)
    for key, value in given.items():
        field = upstream.SAMPLED_BY.get(key, "")
        if field in upstream.COMPLETION_LENGTHS:
            field = next((name for name in upstream.COMPLETION_LENGTHS if name in fields), "")
        if key in upstream.UNSAMPLED:
            reason, harmless = upstream.UNSAMPLED[key]
            if value != harmless:
                found = f"{short_text(value)}: {reason}"
                yield Fault(f"{where}.{key}", found, to_text(harmless), f"leave {where}.{key} out")
        elif field in fields:
            found = f"{short_text(value)}, which the trainer's own {field} does not know of"
            fix = f"{to_override(f'{ARGS}{field}', value)} in place of it"
            yield Fault(f"{where}.{key}", found, f"{ARGS}{field}", fix)


def _find_schedule_faults(context: ValidationContext) -> Iterator[Fault]:
    where = f"{ARGS}{upstream.LR_SCHEDULER_KWARGS}"
    schedule, given = context.field(upstream.LR_SCHEDULER_TYPE), context.mapping(where)
    if context.mapping("optimizer.scheduler") or schedule not in upstream.SCHEDULES:
        return
    target, *examples = upstream.SCHEDULES[schedule]
    signature = read_signature(target) if target else None
    if signature is None:
        if given and not target:
            yield Fault(where, f"{short_text(given)}, and {schedule} takes none", "null", "=null")
        return
    taken = {
        name: parameter for name, parameter in signature.parameters.items() if name not in upstream.GIVEN_TO_SCHEDULES
    }
    faults = list(_find_misfits(where, given, taken, "optimizer"))
    yield from faults
    if faults:
        return
    fix = f"={to_text(examples[0])}" if examples else f"leave {where} out"
    for name, parameter in taken.items():
        if parameter.required and name not in given:
            found = f"no {name}, which {schedule} needs"
            yield Fault(where, found, f"a mapping with {name}", f'"{where}{fix}"')
            return
    for name, field in upstream.SCHEDULE_BOUNDS.items():
        value, bound = given.get(name), context.field(field)
        if not is_plain_number(value) or not is_plain_number(bound) or not 0 < bound < value:
            continue
        tenth = max(1, bound // 10) if isinstance(bound, int) else bound / 10
        found = f"{short_text(value)}, above {field}: {short_text(bound)}"
        path = f"{where}.{name}"
        yield Fault(path, found, f"at most {field}", to_override(path, tenth))
    values = {name: given.get(name, parameter.default) for name, parameter in taken.items()}
    values |= dict.fromkeys(upstream.GIVEN_TO_SCHEDULES, UNKNOWN)
    for refusal in find_refusals(target, "" if signature.lineage == () else "__init__", values):
        text = refusal.text.partition(". ")[0].replace("`", "")
        found = f"{schedule}: {text}"
        yield Fault(where, found, "arguments that the schedule takes", f'"{where}{fix}"' if examples else fix)


def _find_optimizer_faults(context: ValidationContext) -> Iterator[Fault]:
    where, text = f"{ARGS}{upstream.OPTIM_ARGS}", context.field(upstream.OPTIM_ARGS)
    if not isinstance(text, str) or not text:
        return
    optimizer = str(context.args.get(upstream.OPTIM, upstream.USUAL_OPTIMIZER))
    known: Collection[str] = ()
    for pattern, names in upstream.OPTIMIZER_ARGS.items():
        if re.fullmatch(pattern, optimizer):
            known = names
    if not known:
        expected = "null: its settings are fields, such as adam_beta1"
        yield Fault(where, f"{short_text(text)}, of which {optimizer} reads nothing", expected, "=null")
        return
    for entry in text.replace(" ", "").split(","):
        key, equals, value = entry.partition("=")
        example = to_override(where, f"{next(iter(known))}=<value>")
        if not equals or not value or "=" in value:
            yield Fault(where, short_text(entry), "key=value, with commas between", example)
        elif key not in known:
            near = nearest(key, known)
            fix = to_override(where, f"{near[0]}={value}") if near else example
            found = f"{key}, which {optimizer} does not read"
            yield Fault(where, found, f"some of {', '.join(known)}", fix)
