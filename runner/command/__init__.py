"""The verbs, one file each; each has one public function of the file's name. Only here do the parts meet.

The help of a verb and its own options stand in the YAML file beside it, what several of them read
of the command line here and in the files that begin with an underscore.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.config.conversion import plain
from runner.config.dialect import find_meanings
from runner.config.groups import GROUPS
from runner.errors import ConfigError, Fault
from runner.io.secrets import form_of
from runner.schema import ranges
from runner.schema.did_you_mean import nearest
from runner.schema.text import read_tables
from runner.schema.type import Type
from runner.validate.context import TOP
from runner.validate.values import misfit_choice, misfit_number, misfit_type

VERBS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


@dataclass(frozen=True)
class CommandLine:
    """The words of a command, sorted: the verb, overrides, run folders, our flags, and the flags for Hydra alone."""

    verb: str
    overrides: list[str]
    runs: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    multirun: bool = False
    dry_run: bool = False
    debug: bool = False
    inspect: list[str] = field(default_factory=list)


def table_of(verb: str) -> dict[str, Any]:
    """The table beside a verb: its ``help``, and the ``options`` of its own with those that it shares with others."""
    table = read_tables(str(Path(__file__).with_name(f"{verb}.py")))
    shared = table_of(table["beside"])["options"] if "beside" in table else {}
    return table | {"options": shared | table.get("options", {})}


NUMBERS = {
    "count": ranges.COUNT,
    "fraction": ranges.FRACTION,
    "not negative": ranges.NOT_NEGATIVE,
    "port": ranges.PORT,
    "positive": ranges.POSITIVE,
    "seed": ranges.SEED,
    "share": ranges.SHARE,
}


@dataclass(frozen=True)
class Option:
    """The values that an option of a verb takes: a kind, of numbers the name of a range, of words all of them."""

    kind: str = "str"
    numbers: str = ""
    words: Sequence[str] = ()
    parts: str = ""  # such as org/name: so many words with slashes between
    unit: str = ""  # a pattern of what may stand behind a number

    def read(self, key: str, text: str) -> Any:
        """The value that a text stands for; raises ConfigError where it is none, as for a key of a configuration."""
        if form := form_of(text):
            raise ConfigError(
                Fault(
                    where=f"{key}",
                    found=f"looks like {form}",
                    expected="no secret, because a file or its name would keep it",
                    fix=f"leave {key} out",
                )
            )
        known = Type("choice", values=tuple(self.words)) if self.words else Type(self.kind)
        meant = [word for meaning in find_meanings(key, text) for word in meaning.words.values()]
        value = next((word for word in meant if word in (self.words or meant)), text)
        value = value if self.kind == "str" else plain(re.sub(f"(?i) *({self.unit})$", "", text))
        numbers = NUMBERS[self.numbers] if self.numbers else None
        if self.words:  # not as a key of a training, which others call by the same name
            misfit = misfit_choice(key, value, self.words)
        else:
            misfit = (
                misfit_number(key, value, numbers)
                if known.accepts(value)
                else misfit_type(key, value, known)
            )
        if self.parts and not re.fullmatch(re.sub(r"\w+", "[^/]+", self.parts), text):
            misfit = Fault(key, text, self.parts, f"{key}={self.parts}")
        if misfit:
            raise ConfigError(misfit)
        return value


def options_of(verb: str) -> dict[str, Option]:
    """The own options of a verb by their keys."""
    return {key: Option(**(node or {})) for key, node in table_of(verb)["options"].items()}


def split_options(
    overrides: Sequence[str],
    own: Mapping[str, Option],
    verb: str,
    others: Collection[str] | None = None,
) -> tuple[dict[str, Any], list[str], list[Fault]]:
    """The verb's own options, the overrides that begin with ``others`` (None: as of a training), and faults of both."""
    options, kept, faults = {}, [], []
    for override in overrides:
        key, _, text = override.lstrip("+").partition("=")
        if key in own:
            try:  # without the quotes that make Hydra read it as text
                options[key] = own[key].read(key, re.sub(r"^'([^']*)'$", r"\1", text))
            except ConfigError as error:
                faults += error.faults
            continue
        head, known = key.partition(".")[0].lstrip("~"), [*own, *(others or ())]
        near = (
            [] if head in (*TOP, *GROUPS) else nearest(key, known, 0.8 if others is None else 0.6)
        )
        if (others is None and not near) or head in (others or ()):
            kept.append(override)
            continue
        reason = (
            ": a key of training, which is already over"
            if others and head in GROUPS
            else " has no such key"
        )
        fix = f"{near[0]}={text}" if near else f"python -m runner {verb} --help"
        faults.append(Fault(key, f"{verb}{reason}", ", ".join(known), fix))
    return options, kept, faults


def read_options(overrides: Sequence[str], verb: str) -> dict[str, Any]:
    """The options of a verb that takes no others; ConfigError with every key that it does not have, and bad values."""
    options, _, faults = split_options(overrides, options_of(verb), verb, ())
    ConfigError.refuse(faults)
    return options
