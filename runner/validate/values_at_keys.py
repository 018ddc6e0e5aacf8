"""Values at the keys of a configuration: at the runner's own, and at arguments of targets.

What fits a value alone is in ``values``; here the key and the trainer say what else must hold.
"""

from collections.abc import Collection, Iterator

from runner.config.dialect import find_meanings
from runner.errors import Fault
from runner.io.visible import to_visible
from runner.schema.choices import choices_compared
from runner.schema.literal import to_list, to_text
from runner.schema.ranges import Range
from runner.schema.read import Parameter, Signature
from runner.schema.text import last_key, short_text
from runner.schema.upstream.trackers import REPORT_TO
from runner.validate.values import (
    find_misfits,
    misfit_choice,
    misfit_number,
    misfit_type,
    range_of,
)

# Keys whose value may be what a dialect's table refuses.
MEANT_OTHERWISE = ("resume",)
MAX_PATH_BYTES = 3500  # systems allow 4096, and a run's folders and files come on top
MAX_NAME_BYTES = 255
MAX_NAME_LETTERS = 100


def find_setting_faults(
    path: str, key: Parameter, value: object, allow: Collection[str]
) -> Iterator[Fault]:
    """The fault of the value of a key that the runner itself reads.

    ``allow`` are the packages that the command line opened.
    """
    is_accepted = key.type.accepts(value)
    misfit = None
    if value is not None and (not is_accepted or path in MEANT_OTHERWISE):
        misfit = _meant_otherwise(path, value)
    if misfit is None and (not is_accepted or (isinstance(value, dict) and "_target_" in value)):
        misfit = misfit_type(path, value, key.type)
    if misfit is None:
        misfit = misfit_number(path, value, key.range)
    if misfit is None and path == "tracker.report_to":
        misfit = misfit_choice(path, value, REPORT_TO)
    if misfit:
        yield misfit
    else:
        yield from _find_unusable(path, value, allow)


def _meant_otherwise(path: str, value: object) -> Fault | None:
    """The fault of a value that means in another tool what cannot be had at this key; else None."""
    for meaning in find_meanings(path, value):
        if meaning.final:
            return Fault(
                where=path,
                found=short_text(value),
                expected=meaning.why,
                fix=meaning.fix or f"leave {path} out",
            )
    return None


def _find_unusable(path: str, value: object, allow: Collection[str]) -> Iterator[Fault]:
    """The fault of a value that fits the type of its key, and that no run can have."""
    if path == "name" and isinstance(value, str) and not is_folder_name(value):
        yield Fault(
            where=path,
            found=short_text(value),
            expected=f"a plain folder name, up to {MAX_NAME_LETTERS} characters",
            fix="name=<word>",
        )
    elif path == "output_root" and isinstance(value, str):
        yield from _find_root_faults(value)
    elif path == "allow" and isinstance(value, list):
        strange = sorted(set(value) - set(allow))
        if strange:
            text = to_text(strange)
            yield Fault(
                where=path,
                found=f"{text} in a file",
                expected="allow on the command line only",
                fix=f"allow={text}",
            )


def _find_root_faults(root: str) -> Iterator[Fault]:
    """The fault of a folder for runs that no system could make, or nobody could read."""
    if not root:
        yield Fault(
            where="output_root",
            found="nothing",
            expected="a folder",
            fix="output_root=outputs",
        )
        return
    names = [name.encode(errors="surrogateescape") for name in root.split("/")]
    size = len(root.encode(errors="surrogateescape"))
    longest = max(map(len, names))
    if size >= MAX_PATH_BYTES or longest > MAX_NAME_BYTES or to_visible(root) != root:
        yield Fault(
            where="output_root",
            found=f"{short_text(root)}: a path of {size} bytes",
            expected=f"at most {MAX_PATH_BYTES}, {MAX_NAME_BYTES} in each folder's name, all of "
            "them visible",
            fix="=outputs",
        )


def is_folder_name(name: str) -> bool:
    """True for a name that is one part of a path on every system, and not a hidden one."""
    size = len(name.encode(errors="surrogateescape"))
    if not 0 < len(name) <= MAX_NAME_LETTERS or size > MAX_NAME_BYTES or name[0] in ".-":
        return False
    return to_visible(name) == name and "/" not in name and "\\" not in name


def find_argument_faults(
    where: str,
    path: str,
    value: object,
    parameter: Parameter,
    signature: Signature,
    trainer: Signature | None,
) -> list[Fault]:
    """The faults of a value at a key that is a parameter of a target.

    ``where`` is the key to name. ``trainer`` tells what it compares the fields of its config with.
    """
    choices: tuple[str, ...] = ()
    if any(isinstance(text, str) for text in to_list(value)):
        choices = texts_at(path, parameter, signature, trainer)
    numbers = range_at(where, last_key(path), parameter, signature, trainer)
    return find_misfits(where, value, parameter, numbers, choices)


def range_at(
    where: str, name: str, parameter: Parameter, signature: Signature, trainer: Signature | None
) -> Range | None:
    """The range of the number at a key, by its annotation or else by its name."""
    return parameter.range or range_of(where, name, signature, trainer)


def texts_at(
    path: str, parameter: Parameter, signature: Signature, trainer: Signature | None
) -> tuple[str, ...]:
    """The only texts at a key: those that a trainer compares a field of its config with.

    None where every text may be right, and where the type itself says which are.
    """
    if parameter.name == "report_to":
        return REPORT_TO
    if trainer is None or not path.startswith("trainer.args."):
        return ()
    compared = choices_compared(trainer.target, parameter.name)
    if not compared or parameter.type.choices:
        return ()
    if isinstance(parameter.default, str) and parameter.default not in compared:
        return ()
    of_config = choices_compared(signature.target, parameter.name, 1)
    return tuple(dict.fromkeys([*compared, *of_config]))
