"""An experiment of ours as it grows out of another tool's configuration.

``Draft`` holds the keys of theirs, what the experiment says so far, and a note on what became of
each key. How the table of a dialect is followed is in ``follow``.

Our side is read from the menu and from the signatures of TRL, so that a value that is TRL's default
is not written.
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runner.config import dialect
from runner.config.conversion import to_mapping
from runner.config.dialect import Rule, Table, is_wanted, to_single_line
from runner.config.menu import read_options
from runner.errors import ConfigError, Fault
from runner.importers.foreign_config import ForeignConfig, Keys
from runner.io.secrets import LOGIN_KEY, SECRET_KEY, form_of
from runner.schema.read import Signature, read_signature
from runner.schema.text import select

# What becomes of a key.
MAPPED = "mapped"
SAME = "same by default"
NO_EQUIVALENT = "no equivalent"
IGNORED = "ignored (machine, not experiment)"
KINDS = (MAPPED, SAME, NO_EQUIVALENT, IGNORED)

HIDDEN = "..."  # takes the place of a secret
FIX = "mend it in their file, or leave the key out there"
# A token by its look: at least 16 letters, with a digit and a letter among them.
TOKEN = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.-]{16,}")
# A command or a variable of the shell, an argument of the script, or a value that is to be said.
UNSET = re.compile(r"\$(\(|\{?[A-Za-z_])|^\$\{?\d+\}?$|^\?{3}$")

Part = dict[str, Any]  # a part of the experiment that is being written
Converted = TypeVar("Converted")
Default = TypeVar("Default")


# The value of a part whose name says all.
PART: tuple[object, ...] = ()


@dataclass(frozen=True)
class Note:
    """A key and what became of it."""

    kind: str  # one of KINDS
    key: str
    value: object
    target: str = ""  # where it went, or what comes nearest
    why: str = ""  # a remark
    implied: bool = False  # it is not in their file, but a default of the tool


@dataclass
class Draft:
    """The experiment: an option for some groups, values, and the notes."""

    name: str
    table: Table
    reading: ForeignConfig
    keys: Keys = field(default_factory=dict)
    # Keys that are not in their file, but have a default.
    implied: set[str] = field(default_factory=set)
    choices: dict[str, str | list[str] | None] = field(
        default_factory=lambda: {"trainer": "sft", "model": "hub"}
    )
    values: Part = field(
        default_factory=lambda: {"model": {"path": "???"}, "dataset": {"path": "???"}}
    )
    notes: list[Note] = field(default_factory=list)
    # Words that still have to be typed, and those to type where there are GPUs to spread over.
    overrides: list[str] = field(default_factory=list)
    spread: list[str] = field(default_factory=list)
    # Keys that have been dealt with.
    handled: set[str] = field(default_factory=set)
    # Keys whose value the user has to say before it runs.
    unset: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    # The entry of their file that the keys stand in, as faults begin.
    where: str = ""

    # --- Their side ---

    def add(self, keys: Mapping[str, object]) -> None:
        """Add keys of theirs without their secrets.

        Nested ones that have rows of their own in the table become ``outer.inner``.
        """
        outer_keys = {key.partition(".")[0] for key in self.table.keys if "." in key}
        for key, raw in keys.items():
            value = _without_secrets(key, raw)
            if key in outer_keys and isinstance(value, Mapping):
                for inner_key, inner_value in value.items():
                    self.keys[f"{key}.{inner_key}"] = inner_value
            elif key in outer_keys and key not in self.table.keys and is_wanted(value, "enabled"):
                self.convert(key, value, to_mapping, {})  # it is none, which is a fault
            else:
                self.keys[key] = value

    def imply(self, defaults: Mapping[str, object]) -> None:
        """Add the values that their tool has where their file is silent.

        A value that is code is no silence: it is listed, or asked for.
        """
        for key, value in defaults.items():
            if self.keys.get(key) is None and key not in self.reading.remarks:
                self.keys[key] = value
                self.implied.add(key)

    def find_rules(self, key: str) -> list[Rule]:
        """The rules of a key in the table, in their order; else those of the nearest outer key."""
        rules = self.table.keys
        if key in rules:
            return rules[key]
        outer_key = key
        while "." in outer_key:
            outer_key = outer_key.rpartition(".")[0]
            if f"{outer_key}.*" in rules:
                return rules[f"{outer_key}.*"]
        return []

    def meets(self, rule: Rule, value: object = None) -> bool:
        """True where the value of a key, and the draft, meet every condition of a rule."""
        facts: dict[str, list[object]] = {
            "trainer": [self.choices.get("trainer")],
            "peft": [self.choices.get("peft")],
            "optimizer": [self.choices.get("optimizer")],
            "value": [value],
            "command": [self.reading.command],
            "held_out": [self.has_held_out],
            "form": [part.get("form") for part in self.parts],
            "script": [self.reading.script],
        }
        return dialect.holds(rule, facts, self.keys)

    def take(
        self, key: str, conversion: Callable[[object], Converted], default: Default
    ) -> Converted | Default:
        """The converted value of a key, which is dealt with by this.

        The default where there is none, or where it is false.
        """
        self.handled.add(key)
        if self.keys.get(key) is False:
            return default
        return self.read(key, conversion, default)

    def read(
        self, key: str, conversion: Callable[[object], Converted], default: Default
    ) -> Converted | Default:
        """The converted value of a key; the default where there is none, or where it is a fault."""
        return self.convert(key, self.keys.get(key), conversion, default)

    def convert(
        self,
        where: str,
        value: object,
        conversion: Callable[[object], Converted],
        default: Default,
    ) -> Converted | Default:
        """A value that was converted; the default for None.

        A value that cannot be taken is noted as a fault, and gives the default as well.
        """
        if value is None:
            return default
        try:
            return conversion(value)
        except (ValueError, OverflowError) as error:
            fault = Fault(
                where=self.where + where,
                found=to_single_line(value),
                expected=str(error),
                fix=FIX,
            )
            self.faults.append(fault)
            return default

    def refuse_faults(self) -> None:
        """Raise ConfigError with every value that could not be taken, if there is one."""
        ConfigError.refuse(self.faults)

    # --- Our side ---

    @property
    def trainer(self) -> str:
        """The option of the group trainer."""
        return str(self.choices["trainer"])

    @property
    def form(self) -> str | None:
        """The form of rows that the trainer takes, where the table says."""
        forms: dict[str, str] = self.table.sections.get("forms", {})
        return forms.get(self.trainer)

    @property
    def config(self) -> Signature:
        """The signature of the trainer's config class."""
        target = read_options("trainer")[self.trainer]["trainer"]["args"]["_target_"]
        return read_signature(target) or Signature(target, target)

    @property
    def parts(self) -> list[Part]:
        """The node of each dataset."""
        dataset = self.values["dataset"]
        return list(dataset.get("parts", {"": dataset}).values())

    @property
    def has_held_out(self) -> bool:
        """True where a dataset has rows for evaluation."""
        return any("eval" in part.get("split", {}) for part in self.parts)

    def put(self, path: str, value: object) -> None:
        """Write a value at a dotted path; one that concerns rows, into each part of a mixture."""
        *outer, last = path.split(".")
        nodes = [self.values]
        if outer[:1] == ["dataset"]:
            nodes = self.parts
            del outer[0]
        for node in nodes:
            inner = node
            for name in outer:
                inner = inner.setdefault(name, {})
            inner[last] = copy.deepcopy(value)

    def write(self, key: str, path: str, value: object, why: str = "") -> bool:
        """Write the value of a key where the trainer or the adapter takes it, and note that.

        False where the trainer has no such field, or does not take this value.
        """
        group, _, name = path.partition(".")
        if group in ("peft", "quant") and group not in self.choices:
            self.note(SAME, key, why="no adapter" if group == "peft" else "no quantisation")
            return True
        if path.startswith("trainer.args."):
            kind = self._note_unwritten(key, name.removeprefix("args."), value, why)
            if kind:
                return kind == SAME
        if is_unset(value):
            self._ask_for(key, path, str(value))
        else:
            self.put(path, value)
            self.note(MAPPED, key, f"{path}: {to_single_line(value)}", why)
        return True

    def _note_unwritten(self, key: str, field_name: str, value: object, why: str) -> str:
        """The kind of the note on a value that no field of the trainer's config gets.

        Empty, without a note, where it is to be written.
        """
        parameter = self.config.parameters.get(field_name.partition(".")[0])
        if parameter is None and value in (False, None):
            self.note(SAME, key, why="off")
            return SAME
        if parameter is None:
            trainer = self.config.name.removesuffix("Config")
            reason = f"{trainer} has no {field_name}"
            if why:
                reason += f"; {why}"
            self.no_equivalent(key, reason)
            return NO_EQUIVALENT
        if "." in field_name or is_unset(value):
            return ""
        # True equals 1, and is another value.
        is_default = parameter.default == value and isinstance(
            parameter.default, bool
        ) == isinstance(value, bool)
        if is_default and select(self.values, f"trainer.args.{field_name}") is None:
            default = f"{field_name} is {to_single_line(value)}"
            self.note(SAME, key, why=why or default)
            return SAME
        if not parameter.type.accepts(value):
            self.no_equivalent(key, f"{field_name} takes {parameter.type}", why)
            return NO_EQUIVALENT
        return ""

    def ask_for_code(self, key: str) -> None:
        """Leave open an argument of the trainer that is code, so that its value is typed."""
        rules = self.find_rules(key)
        path = f"trainer.args.{key}" if key in self.config.parameters else ""
        if rules:
            path = rules[0].to if not rules[0].when and not rules[0].beside else ""
        if not path.startswith(("trainer.args.", "learning_rate")) or key in self.keys:
            return
        remark = self.reading.remarks.pop(key)
        self.keys[key] = remark.value
        self.put(path, f"${{code.{key}}}")
        self.unset.add(key)
        self.no_equivalent(key, remark.why, f"{path}=<value>")
        del self.keys[key]  # no other rule may take it for a value

    def _ask_for(self, key: str, path: str, text: str) -> None:
        """Leave open a value that their file does not say, and note that it has to be typed."""
        # A reference to nothing: no run starts with it, where ??? would mean the default.
        reference = "???"
        if path != "model.path":
            reference = _shell_reference(text)
        self.put(path, reference)
        self.unset.add(key)
        reason = "not said" if text == "???" else f"{text} is set by the shell, and not"
        self.no_equivalent(key, f"{reason} in this file", f"{path}=<value>")

    # --- Notes ---

    def note(self, kind: str, key: str, target: str = "", why: str = "") -> None:
        """Note what became of a key, which is dealt with by this."""
        self.handled.add(key)
        note = Note(
            kind=kind,
            key=key,
            value=self.keys.get(key),
            target=target,
            why=why,
            implied=key in self.implied,
        )
        self.notes.append(note)

    def no_equivalent(self, key: str, why: str, nearest: str = "") -> None:
        """Note that a key has no equivalent, why, and what comes nearest."""
        self.note(NO_EQUIVALENT, key, nearest, why)

    def lose_part(
        self, key: str, part: str, why: str, nearest: str = "", value: object = PART
    ) -> None:
        """Note that a part of a key's value has no equivalent, where the key itself is mapped.

        ``part`` names it behind the key: ``[0].type`` in a list of mappings, ``: name`` in a
        list of names.
        """
        self.notes.append(Note(NO_EQUIVALENT, f"{key}{part}", value, nearest, why))

    def note_same(self, keys: Iterable[str], why: str) -> None:
        """Note each of these keys that is there, and not dealt with, as the same by default."""
        for key in keys:
            if self.keys.get(key) is not None and key not in self.handled:
                self.note(SAME, key, why=why)

    def replace_note(self, key: str, why: str, nearest: str = "") -> None:
        """Note that a key has no equivalent after all, in the place of what was noted of it."""
        self.notes = [note for note in self.notes if note.key != key]
        self.no_equivalent(key, why, nearest)


def is_unset(value: object) -> bool:
    """True for a text with something in it that only the shell, or the user, can say."""
    return isinstance(value, str) and bool(UNSET.search(value))


def _shell_reference(text: str) -> str:
    """A reference to nothing, named after the variable or the argument of the shell in a text."""
    tail = text.partition("$")[2]
    variable = re.search(r"[A-Za-z_]\w*", tail)
    if variable:
        return f"${{shell.{variable[0]}}}"
    number = re.sub("[^0-9]", "", tail)
    return f"${{shell.argument_{number}}}"


def _without_secrets(key: str, value: object) -> object:
    """The value of a key, in which HIDDEN takes the place of each secret."""
    if isinstance(value, Mapping):
        public = {}
        for name, inner in value.items():
            public[name] = _without_secrets(str(name), inner)
        return public
    if isinstance(value, list):
        return [_without_secrets(key, element) for element in value]
    if not isinstance(value, str) or not value:
        return value
    name = key.lower()
    is_token = name.endswith("token") and TOKEN.fullmatch(value)
    is_named = SECRET_KEY.search(name) or LOGIN_KEY.search(name)
    return HIDDEN if is_token or is_named or form_of(value) else value
