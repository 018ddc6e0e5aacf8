"""An experiment as it grows out of another tool's configuration, with a note on what became of each key.

Our side is read from the menu and from the signatures of TRL, so that a value that is TRL's default is not written.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml

from runner.errors import Fault
from runner.importers.convert import to_mapping
from runner.importers.read import ForeignConfig
from runner.importers.table import Rule, Table, is_wanted
from runner.io.files import MENU
from runner.io.secrets import LOGIN_KEY, SECRET_KEY, form_of
from runner.schema.read import Signature, read_signature

MAPPED, SAME, NO_EQUIVALENT = "mapped", "same by default", "no equivalent"
IGNORED = "ignored (machine, not experiment)"
KINDS = (MAPPED, SAME, NO_EQUIVALENT, IGNORED)
HIDDEN = "..."  # in the place of a secret
FIX = "mend it in their file, or leave the key out there"

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True)
class Note:
    """A key and what became of it: ``target`` is where it went, ``why`` a remark, ``implied`` a default of the tool."""

    kind: str
    key: str
    value: object
    target: str = ""
    why: str = ""
    implied: bool = False


@dataclass
class Draft:
    """The experiment: an option for some groups, values, and the notes; ``overrides`` still have to be typed."""

    name: str
    table: Table
    reading: ForeignConfig
    keys: dict[str, Any] = field(default_factory=dict)
    implied: set[str] = field(default_factory=set)  # keys that are not in their file, but have a default
    choices: dict[str, str | None] = field(default_factory=lambda: {"trainer": "sft", "model": "hub"})
    values: dict[str, Any] = field(default_factory=lambda: {"model": {"path": "???"}, "dataset": {"path": "???"}})
    notes: list[Note] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    unset: set[str] = field(default_factory=set)  # keys whose value the user has to say before it runs
    faults: list[Fault] = field(default_factory=list)
    where: str = ""  # in which entry of their file the keys stand

    def add(self, keys: Mapping[str, Any]) -> None:
        """Add keys of theirs without their secrets, nested ones that have rows of their own as ``outer.inner``."""
        outer = {key.partition(".")[0] for key in self.table.keys if "." in key}
        for key, raw in keys.items():
            value = _without_secrets(key, raw)
            if key in outer and isinstance(value, Mapping):
                self.keys |= {f"{key}.{inner}": entry for inner, entry in value.items()}
            elif key in outer - self.table.keys.keys() and is_wanted(value, "enabled"):
                self.convert(key, value, to_mapping, {})
            else:
                self.keys[key] = value

    def imply(self, defaults: Mapping[str, Any]) -> None:
        """Add the values that their tool has, where their file does not say any."""
        absent = {key: value for key, value in defaults.items() if self.keys.get(key) is None}
        self.keys |= absent
        self.implied |= absent.keys()

    def find_rules(self, key: str) -> list[Rule]:
        """The rules of a key in the table, in their order."""
        return self.table.keys.get(key) or self.table.keys.get(f"{key.partition('.')[0]}.*", [])

    def take(self, key: str, to: Callable[[object], T], default: D) -> T | D:
        """The converted value of a key, which is dealt with by this; the default where there is none, or false."""
        self.taken.add(key)
        return default if self.keys.get(key) is False else self.read(key, to, default)

    def read(self, key: str, to: Callable[[object], T], default: D) -> T | D:
        """The converted value of a key; the default where there is none, or where it is a fault."""
        return self.convert(key, self.keys.get(key), to, default)

    def convert(self, where: str, value: object, to: Callable[[object], T], default: D) -> T | D:
        """A value as a conversion has it; the default where there is none, or where it is a fault."""
        try:
            return default if value is None else to(value)
        except (ValueError, OverflowError) as error:
            self.faults.append(Fault(self.where + where, to_single_line(value), str(error), FIX))
            return default

    @property
    def trainer(self) -> str:
        """The option of the group trainer."""
        return str(self.choices["trainer"])

    @property
    def form(self) -> str | None:
        """The form of rows that the trainer takes, where the table says."""
        return self.table.sections["forms"].get(self.trainer)

    @property
    def config(self) -> Signature:
        """The signature of the trainer's config class."""
        return _read_config(self.trainer)

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The node of each dataset."""
        return list(self.values["dataset"].get("parts", {"": self.values["dataset"]}).values())

    @property
    def has_held_out(self) -> bool:
        """True where a dataset has rows for evaluation."""
        return any("eval" in part.get("split", {}) for part in self.parts)

    def get(self, path: str) -> Any:
        """The value at a dotted path, or None."""
        value: Any = self.values
        for name in path.split("."):
            value = (value or {}).get(name)
        return value

    def put(self, path: str, value: object) -> None:
        """Write a value at a dotted path of the experiment; what concerns rows, for each part of a mixture."""
        *outer, last = path.split(".")
        is_of_rows = outer[:1] == ["dataset"]
        for node in self.parts if is_of_rows else [self.values]:
            for name in outer[1:] if is_of_rows else outer:
                node = node.setdefault(name, {})
            node[last] = copy.deepcopy(value)

    def note(self, kind: str, key: str, target: str = "", why: str = "") -> None:
        """Say what became of a key."""
        self.taken.add(key)
        self.notes.append(Note(kind, key, self.keys.get(key), target, why, key in self.implied))

    def no_equivalent(self, key: str, why: str, nearest: str = "") -> None:
        """Say that a key has no equivalent, why, and what comes nearest."""
        self.note(NO_EQUIVALENT, key, nearest, why)

    def write(self, key: str, path: str, value: object, why: str = "") -> bool:
        """Write a value that comes from a key where the trainer or the adapter takes it, and say so.

        A default of TRL is not written. False where it has no equivalent.
        """
        group, _, name = path.partition(".")
        if group in ("peft", "quant") and group not in self.choices:
            self.note(SAME, key, why="no adapter" if group == "peft" else "no quantisation")
        elif path.startswith("trainer.args.") and (kind := self._note_known(key, name[len("args.") :], value, why)):
            return kind == SAME
        elif is_unset(value):
            # A reference to nothing: no run starts with it, where ??? would mean the default.
            reference = f"${{shell.{re.findall(r'[A-Za-z_]+', str(value))[0]}}}"
            self.put(path, "???" if path == "model.path" else reference)
            self.unset.add(key)
            self.no_equivalent(key, f"{value} is set by the shell, and not in this file", f"{path}=<value>")
        else:
            self.put(path, value)
            self.note(MAPPED, key, f"{path}: {to_single_line(value)}", why)
        return True

    def _note_known(self, key: str, name: str, value: object, why: str) -> str:
        """Note a value that is not for the trainer's config, as no field of it, its default, or of another type."""
        known, is_new = self.config.parameters.get(name.partition(".")[0]), self.get(f"trainer.args.{name}") is None
        if known is None and value in (False, None):
            self.note(SAME, key, why="off")
        elif known is None:
            trainer = self.config.name.removesuffix("Config")
            self.no_equivalent(key, f"{trainer} has no {name}" + (f"; {why}" if why else ""))
        elif "." in name or is_unset(value):
            return ""
        elif is_new and known.default == value and isinstance(known.default, bool) == isinstance(value, bool):
            self.note(SAME, key, why=why or f"{name} is {to_single_line(value)}")
        elif not known.type.accepts(value):
            self.no_equivalent(key, f"{name} takes {known.type}", why)
        else:
            return ""
        return self.notes[-1].kind


@functools.cache
def _read_config(trainer: str) -> Signature:
    node = yaml.safe_load((MENU / "trainer" / f"{trainer}.yaml").read_text(encoding="utf-8"))
    target = node["trainer"]["args"]["_target_"]
    return read_signature(target) or Signature(target, target)


def _without_secrets(key: str, value: object) -> Any:
    """The same value, every secret in it replaced by dots, however deep it is."""
    if isinstance(value, Mapping):
        return {name: _without_secrets(str(name), entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_secrets(key, entry) for entry in value]
    if not isinstance(value, str) or not value:
        return value
    is_token = key.lower().endswith("token") and re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[\w.-]{16,}", value)
    is_named = SECRET_KEY.search(key.lower()) or LOGIN_KEY.search(key.lower())
    return HIDDEN if is_token or is_named or form_of(value) else value


def is_unset(value: object) -> bool:
    """True for a text with a variable or a command of the shell in it whose value is not in the file."""
    return isinstance(value, str) and bool(re.search(r"\$(\(|\{?[A-Za-z_])", value))


def to_single_line(value: object) -> str:
    """A value on one line, a text as it is, anything else as the experiment has it; with blanks, because lines wrap."""
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).strip()
    return text.removesuffix("\n...").strip()
