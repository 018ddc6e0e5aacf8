"""The options of a verb: words ``key=value`` that are not keys of a configuration.

A verb declares them as the fields of a dataclass, each with its type, its range and its default.
The metadata of a field may hold ``key``, for a key that is not a Python name, and what ``Option``
calls ``parts`` and ``unit``.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from importlib import import_module
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from runner.command import CommandLine
from runner.config.conversion import plain
from runner.config.dialect import find_meanings
from runner.config.groups import GROUPS
from runner.errors import ConfigError, Fault
from runner.io.secrets import form_of
from runner.schema.did_you_mean import nearest
from runner.schema.ranges import Range
from runner.schema.type import Type
from runner.validate.context import TOP
from runner.validate.values import misfit_choice, misfit_number, misfit_type

Options = TypeVar("Options")
OptionField = Field[Any]


@dataclass(frozen=True)
class Option:
    """The values that an option of a verb takes."""

    kind: str = "str"  # bool, int, float or str
    numbers: Range | None = None
    words: Sequence[str] = ()  # the only ones that it takes; empty for any
    parts: str = ""  # names with slashes between them, such as org/name
    unit: str = ""  # a pattern of what may stand behind a number

    def read(self, key: str, text: str) -> Any:
        """The value that a text stands for; ConfigError where it is none."""
        form = form_of(text)
        if form:
            raise ConfigError(
                Fault(
                    where=key,
                    found=f"looks like {form}",
                    expected="no secret, because a file or its name would keep it",
                    fix=f"leave {key} out",
                )
            )
        value = self._value_of(key, text)
        misfit = self._misfit_of(key, value)
        if misfit:
            raise ConfigError(misfit)
        return value

    def _value_of(self, key: str, text: str) -> Any:
        if self.kind != "str":
            return plain(re.sub(f"(?i) *({self.unit})$", "", text))
        # The text may be the word of another tool for one of ours.
        for meaning in find_meanings(key, text):
            for word in meaning.words.values():
                if not self.words or word in self.words:
                    return word
        return text

    def _misfit_of(self, key: str, value: Any) -> Fault | None:
        """The fault of a value, as that of a key of a configuration; None where there is none."""
        if self.words:
            # A training may have another key of this name, whose meanings do not count here.
            return misfit_choice(key, value, self.words)
        accepted = Type(self.kind)
        if not accepted.accepts(value):
            return misfit_type(key, value, accepted)
        if self.parts and not re.fullmatch(re.sub(r"\w+", "[^/]+", self.parts), value):
            return Fault(
                where=key,
                found=value,
                expected=self.parts,
                fix=f"{key}={self.parts}",
            )
        return misfit_number(key, value, self.numbers)


# --- The options of a verb ------------------------------------------------------------------------
def options_of(verb: str) -> dict[str, Option]:
    """The options of a verb by their keys."""
    kind = getattr(import_module(f"runner.command.{verb}_options"), "Options", None)
    return options_in(kind) if kind else {}


def options_in(kind: type[Any]) -> dict[str, Option]:
    """The options that a dataclass declares, by their keys."""
    return {_key_of(entry): _to_option(entry) for entry in fields(kind)}


def _key_of(entry: OptionField) -> str:
    key: str = entry.metadata.get("key", entry.name)
    return key


def _to_option(entry: OptionField) -> Option:
    """The option that a field declares by its annotation: ``Count | None``, or some words."""
    kind: Any = entry.type
    alternatives = get_args(kind)
    if NoneType in alternatives:
        (kind,) = [alternative for alternative in alternatives if alternative is not NoneType]
    numbers = None
    words: tuple[str, ...] = ()
    if get_origin(kind) is Annotated:
        kind, numbers = get_args(kind)
    elif get_origin(kind) is Literal:
        words = get_args(kind)
        kind = str
    settings = {name: text for name, text in entry.metadata.items() if name != "key"}
    return Option(kind.__name__, numbers, words, **settings)


def to_record(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """The dataclass of the options with the values that were typed, by their keys."""
    named = {}
    for entry in fields(kind):  # type: ignore[arg-type]
        key = _key_of(entry)
        if key in values:
            named[entry.name] = values[key]
    return kind(**named)


# --- Reading a command line -----------------------------------------------------------------------
class SplitWords(NamedTuple):
    """The words of a verb, sorted."""

    options: dict[str, Any]  # the values of its own options by their keys
    overrides: list[str]
    faults: list[Fault]


def split_options(
    overrides: Sequence[str],
    own: Mapping[str, Option],
    verb: str,
    others: Collection[str] | None = None,
) -> SplitWords:
    """The options of a verb, the overrides that begin with ``others``, and the faults of both.

    Without ``others``, the overrides are those of a training.
    """
    split = SplitWords({}, [], [])
    known = [*own, *(others or ())]
    for override in overrides:
        key, _, text = override.lstrip("+").partition("=")
        if key in own:
            try:
                # Without the quotes with which Hydra reads it as text.
                split.options[key] = own[key].read(key, re.sub(r"^'([^']*)'$", r"\1", text))
            except ConfigError as error:
                split.faults.extend(error.faults)
            continue
        head = key.partition(".")[0].lstrip("~")
        near = []
        if head not in TOP and head not in GROUPS:
            near = nearest(key, known, 0.8 if others is None else 0.6)
        is_override = not near if others is None else head in others
        if is_override:
            split.overrides.append(override)
            continue
        reason = " has no such key"
        if others and head in GROUPS:
            reason = ": a key of training, which is already over"
        fix = f"{near[0]}={text}" if near else f"python -m runner {verb} --help"
        split.faults.append(
            Fault(
                where=key,
                found=f"{verb}{reason}",
                expected=", ".join(known),
                fix=fix,
            )
        )
    return split


def read_options(line: CommandLine, kind: type[Options]) -> Options:
    """The options of a verb that takes no other words; ConfigError with every fault of them."""
    split = split_options(line.overrides, options_in(kind), line.verb, ())
    ConfigError.refuse(split.faults)
    return to_record(kind, split.options)
