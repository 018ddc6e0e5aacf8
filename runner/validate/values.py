"""One value against what takes it: its type, its range, and the texts that the code knows.

A fault of a value says what was probably meant. A text that looks like a number, a word for true or
false, or a name of another tool is put into the words to type.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TypeGuard

from runner.config.dialect import Meaning, find_meanings
from runner.config.groups import GROUPS
from runner.errors import Fault
from runner.schema.did_you_mean import best_guess, nearest
from runner.schema.library_ranges import BY_CLASS, range_in_group
from runner.schema.literal import to_list, to_text
from runner.schema.ranges import FRACTION, NOT_NEGATIVE, POSITIVE, Range
from runner.schema.read import Parameter, Signature
from runner.schema.text import as_typed, short_text, to_override
from runner.schema.type import Type, shortened
from runner.schema.upstream.losses import OF_SAMPLES, loss_interface

NUMBER = Type("float")
# Words for true and false in texts that YAML does not read as such, in lower case.
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# Behind a word that would do nothing but type the default.
DEFAULT_REMARK = "  (the default)"
NULLS = ("none", "null", "~", "")


def range_of(path: str, name: str, signature: Signature, trainer: Signature | None) -> Range | None:
    """The range of a number that a library's target takes under this name; None for no known one.

    ``path`` is the key that a user would change, which is ``kl_coef`` for a beta that comes from
    there.
    """
    if trainer and name == "beta" and path in ("trainer.args.beta", "kl_coef"):
        special = _range_of_beta(signature, trainer)
        if special is not None:
            return special
    for owner in (*signature.lineage, signature.target):
        if name in BY_CLASS.get(owner, {}):
            return BY_CLASS[owner][name]
    if path == "kl_coef":
        return NOT_NEGATIVE
    return range_in_group(path.partition(".")[0], name)


def _range_of_beta(signature: Signature, trainer: Signature) -> Range | None:
    """The range of a beta that is not the weight of a KL divergence."""
    names = {*trainer.parameters, *signature.parameters}
    has_teacher = any(name.startswith("teacher_") for name in names)
    if has_teacher and "reward_funcs" not in names:
        return FRACTION  # between forward and reverse KL
    # Preferences are learnt through beta: at 0 nothing is, and below it the opposite is.
    loss = signature.parameters.get("loss_type")
    is_of_pairs = loss is not None and loss.default == "sigmoid"
    if is_of_pairs or loss_interface(trainer, signature) not in (None, *OF_SAMPLES):
        return POSITIVE
    return None


def find_misfits(
    path: str,
    value: object,
    parameter: Parameter,
    numbers: Range | None = None,
    choices: Collection[str] = (),
) -> list[Fault]:
    """The faults of a value as the argument of a parameter; several only for a mapping.

    ``numbers`` is the range of a number, and ``choices`` are the texts that the code compares it
    with. Numbers that are not finite are refused elsewhere.
    """
    accepted = parameter.type
    blank = _find_blank(path, value, parameter)
    if blank:
        return [blank]
    if not accepted.accepts(value):
        inner_faults = list(_find_misfits_inside(path, value, accepted))
        return inner_faults or [misfit_type(path, value, accepted, parameter.default)]
    misfit = misfit_choice(path, value, choices)
    if misfit is None:
        misfit = misfit_number(path, value, numbers, parameter.default)
    return [misfit] if misfit else []


def _find_blank(path: str, value: object, parameter: Parameter) -> Fault | None:
    """The fault of a text that stands for nothing, or of arguments without names; else None.

    A type of texts or mappings accepts these, so they are looked for first.
    """
    accepted = parameter.type
    if value == "None" and accepted.kind != "any" and accepted.accepts(None):
        return Fault(
            where=path,
            found="the text None; YAML writes nothing as null",
            expected="null",
            fix="=null",
        )
    if parameter.required and value == "":
        return Fault(
            where=path,
            found="an empty text",
            expected=str(accepted),
            fix="=<value>",
        )
    if isinstance(value, Mapping) and path.endswith("_kwargs"):
        for key in value:
            if not isinstance(key, str):
                return Fault(
                    where=path,
                    found=f"the key {key}",
                    expected="names of arguments, each with a value",
                    fix=f"{path}=null",
                )
    return None


def _find_misfits_inside(path: str, value: object, accepted: Type) -> Iterator[Fault]:
    """The faults of the keys and values of a mapping whose type says both."""
    if not isinstance(value, dict):
        return
    for alternative in accepted.alternatives:
        if alternative.kind == "dict" and alternative.parts:
            key_type, value_type = alternative.parts
            yield from _find_misfits_of_mapping(path, value, key_type, value_type)
            return


def _find_misfits_of_mapping(
    path: str, mapping: Mapping[object, object], key_type: Type, value_type: Type
) -> Iterator[Fault]:
    words = [str(choice) for choice in key_type.choices]
    for key, value in mapping.items():
        where = f"{path}.{key}"
        if words and key not in words:
            likeliest = best_guess(str(key), words, *words)
            yield Fault(
                where=where,
                found="no such key",
                expected=f"one of {shortened(words)}",
                fix=to_override(f"{path}.{likeliest}", value),
            )
        elif not value_type.accepts(value):
            yield misfit_type(where, value, value_type)


def misfit_number(
    path: str, value: object, numbers: Range | None, default: object = None
) -> Fault | None:
    """The fault of a number outside of a range, also of one in a list; else None."""
    if numbers is None:
        return None
    has_list_default = isinstance(default, list | tuple) and bool(default)
    if value == [] and has_list_default:
        return Fault(
            where=path,
            found="no number",
            expected=f"numbers, each {numbers}",
            fix=_word_for_default(path, default),
        )
    values = to_list(value)
    if not any(_is_outside(number, numbers) for number in values):
        return None
    if not isinstance(value, list):
        fix = _likeliest_fix(path, default, NUMBER, numbers)
    elif has_list_default:  # a single number would be no value for it
        fix = _word_for_default(path, default)
    else:
        fix = f"leave {path} out"
    return Fault(
        where=path,
        found=short_text(value),
        expected=str(numbers),
        fix=fix,
    )


def _is_outside(value: object, numbers: Range) -> bool:
    """True for a finite number outside of a range."""
    return is_plain_number(value) and math.isfinite(value) and value not in numbers


def misfit_choice(path: str, value: object, choices: Collection[str]) -> Fault | None:
    """The fault of a text that the code compares with nothing, also of one in a list; else None."""
    values = to_list(value)
    strange = [text for text in values if isinstance(text, str) and text not in choices]
    if not choices or not strange:
        return None
    corrected = []
    for text in values:
        if text not in strange:
            corrected.append(text)
        else:
            similar = best_guess(text, choices)
            if similar:
                corrected.append(similar)
    if not corrected:
        corrected = [next(iter(choices))]
    new_value = corrected if isinstance(value, list) else corrected[0]
    return Fault(
        where=path,
        found=", ".join(map(short_text, strange)),
        expected=str(Type("choice", values=tuple(choices))),
        fix=to_override(path, new_value),
    )


def misfit_type(path: str, value: object, accepted: Type, default: object = None) -> Fault:
    """The fault of a value that its type does not accept, with what was probably meant."""
    if isinstance(value, list) and len(value) > 1 and all(map(accepted.accepts, value)):
        return Fault(
            where=path,
            found=f"a list: {short_text(value)}",
            expected=f"{accepted}, or a sweep",
            fix=f"-m {path}={to_text(value)[1:-1]}",
        )
    meanings = list(find_meanings(path, value))
    meant = _list_meant(value, accepted)
    for meaning in meanings:
        if path in meaning.words and accepted.accepts(meaning.words[path]):
            meant.append(meaning.words[path])
    # The value with its kind; YAML may have read a word as true or false.
    kinds: dict[type, str] = {str: "the text ", list: "a list: ", dict: "a mapping: "}
    description = kinds.get(type(value), "") + short_text(value)
    if isinstance(value, bool) and meant and isinstance(meant[0], str):
        description += f", which is how YAML reads {meant[0]} without quotes"
    for meaning in meanings:
        if meaning.final:
            return Fault(
                where=path,
                found=description,
                expected=meaning.why,
                fix=meaning.fix,
            )
    elsewhere = _words_elsewhere(path, value, meanings)
    if elsewhere:
        fix = as_typed(elsewhere)
    elif not meant or (meant[0] == str(value) and isinstance(default, str)):
        fix = _likeliest_fix(path, default, accepted)
    else:
        fix = to_override(path, meant[0])
    return Fault(
        where=path,
        found=description,
        expected=str(accepted),
        fix=fix,
    )


def _words_elsewhere(path: str, value: object, meanings: list[Meaning]) -> Mapping[str, object]:
    """The first words that stand for a value at other keys; not those that only carry it."""
    for meaning in meanings:
        chooses_option = bool(meaning.words.keys() & set(GROUPS))
        is_carried = isinstance(value, str) and value in meaning.words.values()
        if is_carried and not chooses_option:
            continue
        if meaning.words and path not in meaning.words:
            return meaning.words
    return {}


def is_plain_number(value: object) -> TypeGuard[int | float]:
    """True for a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list_meant(value: object, accepted: Type) -> list[object]:
    """The value of an accepted type that was probably meant, or none."""
    if accepted.kind == "any":
        return []
    for guess in _list_guesses(value, accepted):
        if accepted.accepts(guess):
            return [guess]
    return []


def _list_guesses(value: object, accepted: Type) -> list[object]:
    """The values of other types that may have been meant, the likeliest first."""
    if isinstance(value, bool):
        # YAML reads no, off, yes and on as true and false.
        words = ["yes", "on"] if value else ["no", "off"]
        return [*words, [value]]
    if isinstance(value, str):
        texts = [choice for choice in accepted.choices if isinstance(choice, str)]
        return [*_read_text(value), *nearest(value, texts), [value]]
    if value is None:
        return [choice for choice in accepted.choices if choice == "none"]
    if isinstance(value, list) and len(value) == 1:
        return value
    guesses: list[object] = [[value], str(value)]
    if isinstance(value, float) and value.is_integer():
        guesses.insert(0, int(value))
    return guesses


def _read_text(text: str) -> list[object]:
    """The values of other types that a text may stand for."""
    word = text.lower()
    if word in BOOLEANS:
        return [BOOLEANS[word]]
    if word in NULLS:
        return [None]
    try:
        number = float(text)
    except ValueError:
        return []
    if not number.is_integer():
        return [number]
    return [int(number), number]


def _likeliest_fix(path: str, default: object, accepted: Type, numbers: Range | None = None) -> str:
    """The word to type where nothing tells what was meant: the default if it is accepted."""
    is_accepted = accepted.accepts(default) and not isinstance(default, dict | None)
    if numbers is not None and is_accepted:
        is_accepted = is_plain_number(default) and default in numbers
    if is_accepted:
        return _word_for_default(path, default)
    if accepted.choices:
        return to_override(path, accepted.choices[0])
    if numbers is not None and numbers.low in numbers and math.isfinite(numbers.low):
        return f"{path}={numbers.low}"
    return f"{path}=null" if accepted.kind == "none" else f"leave {path} out"


def _word_for_default(path: str, default: object) -> str:
    return to_override(path, default) + DEFAULT_REMARK
