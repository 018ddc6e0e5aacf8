"""Values against their parameters: the type, the range, and the names that the code knows.

The ranges are by the field's name, since TRL, transformers and peft call the same thing the same; a class that does not
has rows of its own.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from runner.config.dialect import find_meanings
from runner.config.menu import GROUPS
from runner.errors import Fault
from runner.run.alarms import ALARMS
from runner.schema import upstream
from runner.schema.read import Parameter, Signature
from runner.schema.text import as_typed, nearest, read_tables, short_text, to_override, to_text
from runner.schema.type import Type, shortened


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # without ``low`` itself
    below: bool = False  # without ``high`` itself
    other: float | None = None  # one more value, which means something of its own, such as -1 for "no limit"

    def __contains__(self, value: float) -> bool:
        enough = value > self.low if self.above else value >= self.low
        return value == self.other or (enough and (value < self.high if self.below else value <= self.high))

    def __str__(self) -> str:
        ends = []
        if not math.isinf(self.low):
            ends.append(f"{'above' if self.above else 'at least'} {self.low}")
        if not math.isinf(self.high):
            ends.append(f"{'below' if self.below else 'at most'} {self.high}")
        return " and ".join(ends) + ("" if self.other is None else f", or {self.other}")


def _ranges_of(kinds: Mapping[str, Sequence[str]]) -> dict[str, Range]:
    return {name: RANGES[kind] for kind, names in kinds.items() for name in names}


_TABLES = read_tables(__file__)
RANGES = {kind: Range(**ends) for kind, ends in _TABLES["ranges"].items()}
SETTINGS = {f"tolerate.{alarm}": RANGES["count"] for alarm in ALARMS} | _ranges_of(_TABLES["settings"])
BY_GROUP = {group: _ranges_of(kinds) for group, kinds in _TABLES["by_group"].items()}
BY_GROUP["trainer"] = _ranges_of(upstream.NUMERIC_FIELDS)
BY_CLASS = {owner: _ranges_of(kinds) for owner, kinds in _TABLES["by_class"].items()}


def range_of(path: str, name: str, signature: Signature, trainer: Signature | None) -> Range | None:
    """The range of a number that a target takes under this name; None where none is known, or the top level says it."""
    if trainer and name == "beta" and path in ("trainer.args.beta", "kl_coef"):
        names = {*trainer.parameters, *signature.parameters}
        if upstream.REWARD_FUNCS not in names and any(each.startswith("teacher_") for each in names):
            return RANGES["fraction"]  # between forward and reverse KL
        # Preferences are learnt through beta: at 0 nothing is, and below it the opposite is.
        loss = signature.parameters.get(upstream.LOSS_TYPE)
        if upstream.loss_interface(trainer, signature) or (loss and loss.default == "sigmoid"):
            return RANGES["positive"]
    rows = (BY_CLASS.get(owner, {}) for owner in (*signature.lineage, signature.target))
    usual = RANGES["not negative"] if path == "kl_coef" else range_in_group(path.partition(".")[0], name)
    return next((row[name] for row in rows if name in row), usual)


def range_in_group(group: str, name: str) -> Range | None:
    """The range of a number that targets of a group take under this name; None where none is known."""
    ranges = BY_GROUP.get(group, {})
    if name in ranges:
        return ranges[name]
    for pattern, numbers in ranges.items():
        if pattern.startswith("|") and re.fullmatch(pattern.strip("|"), name):
            return numbers
    return None


def find_misfits(
    path: str, value: object, parameter: Parameter, numbers: Range | None = None, choices: Collection[str] = ()
) -> list[Fault]:
    """The faults of a value as a parameter, several only of a mapping; what is not finite is refused elsewhere."""
    known, default = parameter.type, parameter.default
    if value == "None" and known.kind != "any" and known.accepts(None):
        return [Fault(path, "the text None; YAML writes nothing as null", "null", "=null")]
    if parameter.required and value == "":
        return [Fault(path, "an empty text", str(known), "=<value>")]
    odd = [key for key in value if not isinstance(key, str)] if isinstance(value, Mapping) else []
    if odd and path.endswith("_kwargs"):
        return [Fault(path, f"the key {odd[0]}", "names of arguments, each with a value", f"{path}=null")]
    if not known.accepts(value):
        return list(_misfits_inside(path, value, known)) or [misfit_type(path, value, known, default)]
    fault = misfit_choice(path, value, choices) or misfit_number(path, value, numbers, default)
    return [fault] if fault else []


def _misfits_inside(path: str, value: object, known: Type) -> Iterator[Fault]:
    shape = next((part for part in known.alternatives if part.kind == "dict"), None)
    if not isinstance(value, dict) or not shape or not shape.parts:
        return
    words = tuple(map(str, shape.parts[0].choices))
    for key, entry in value.items():
        inner = f"{path}.{key}"
        if words and key not in words:
            fix = to_override(f"{path}.{[*nearest(str(key), words), *words][0]}", entry)
            yield Fault(inner, "no such key", f"one of {shortened(list(words))}", fix)
        elif not shape.parts[1].accepts(entry):
            yield misfit_type(inner, entry, shape.parts[1])


def misfit_number(path: str, value: object, numbers: Range | None, default: object = None) -> Fault | None:
    """The fault of a number, or of one in a list, that is outside of a range; else None."""
    values = value if isinstance(value, list) else [value]
    if numbers is not None and value == [] and isinstance(default, list | tuple) and default:
        fix = f"{to_override(path, list(default))}  (the default)"
        return Fault(path, "no number", f"numbers, each {numbers}", fix)
    if numbers is None or all(each in numbers for each in values if is_plain_number(each) and math.isfinite(each)):
        return None
    fix = _fix(path, default, Type("float"), numbers)
    if isinstance(value, list):  # for which one number is no value
        fix = f"leave {path} out"
        if isinstance(default, list | tuple):
            fix = f"{to_override(path, list(default))}  (the default)"
    return Fault(path, short_text(value), str(numbers), fix)


def misfit_choice(path: str, value: object, choices: Collection[str]) -> Fault | None:
    """The fault of a text, or of one in a list, that the code compares with nothing; else None."""
    values = value if isinstance(value, list) else [value]
    strange = [each for each in values if isinstance(each, str) and each not in choices]
    if not choices or not strange:
        return None
    likely = [(nearest(each, choices) or [""])[0] if each in strange else each for each in values]
    meant = list(filter(None, likely)) or [next(iter(choices))]
    fix = to_override(path, meant if isinstance(value, list) else meant[0])
    return Fault(path, ", ".join(map(short_text, strange)), str(Type("choice", values=tuple(choices))), fix)


def misfit_type(path: str, value: object, known: Type, default: object = None) -> Fault:
    """The fault of a value that its type does not accept, with what was probably meant."""
    meanings = list(find_meanings(path, value))
    others = [each.words[path] for each in meanings if path in each.words]
    meant = _meant(value, known) or [each for each in others if known.accepts(each)]
    if isinstance(value, list) and value[1:] and all(map(known.accepts, value)):
        return Fault(path, f"a list: {short_text(value)}", f"{known}, or a sweep", f"-m {path}={to_text(value)[1:-1]}")
    is_guess = not meant or (meant[0] == str(value) and isinstance(default, str))
    fix = _fix(path, default, known) if is_guess else to_override(path, meant[0])
    for words in (each.words for each in meanings):
        # Unless the value is only carried to another name of the same number.
        is_carried = isinstance(value, str) and value in words.values() and not words.keys() & set(GROUPS)
        if words and path not in words and not is_carried:
            fix = as_typed(words)
            break
    kinds: dict[type, str] = {str: "the text ", list: "a list: ", dict: "a mapping: "}
    found = kinds.get(type(value), "") + short_text(value)
    if isinstance(value, bool) and meant and isinstance(meant[0], str):
        found += f", which is how YAML reads {meant[0]} without quotes"
    refusal = next((each for each in meanings if each.final), None)
    return Fault(path, found, refusal.why, refusal.fix) if refusal else Fault(path, found, str(known), fix)


def is_plain_number(value: object) -> TypeGuard[int | float]:
    """True for a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _meant(value: object, known: Type) -> list[object]:
    guesses: list[object] = [[value], str(value)]  # a list of one, or a text that looks like a number
    if isinstance(value, bool):  # YAML reads no, off, yes and on as these
        guesses = ["no" if value is False else "yes", "off" if value is False else "on", [value]]
    elif isinstance(value, float) and value.is_integer():
        guesses.insert(0, int(value))
    elif isinstance(value, str):
        guesses = [*_from_text(value), *nearest(value, [c for c in known.choices if str(c) == c]), [value]]
    elif value is None:
        guesses = [choice for choice in known.choices if choice == "none"]
    elif isinstance(value, list) and len(value) == 1:
        guesses = value
    return [guess for guess in guesses if known.kind != "any" and known.accepts(guess)][:1]


def _from_text(text: str) -> list[object]:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.lower() in words:
        return [words[text.lower()]]
    if text.lower() in ("none", "null", "~", ""):
        return [None]
    try:
        number = float(text)
    except ValueError:
        return []
    return [int(number), number] if number.is_integer() else [number]


def _fix(path: str, default: object, known: Type, numbers: Range | None = None) -> str:
    good = known.accepts(default) and default is not None and not isinstance(default, dict)
    if good and (numbers is None or (is_plain_number(default) and default in numbers)):
        return f"{to_override(path, default)}  (the default)"
    if known.choices:
        return to_override(path, known.choices[0])
    if numbers is not None and numbers.low in numbers and math.isfinite(numbers.low):
        return f"{path}={numbers.low}"
    return f"{path}=null" if known.kind == "none" else f"leave {path} out"
