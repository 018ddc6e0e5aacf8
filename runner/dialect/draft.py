"""An experiment as it grows out of somebody else's configuration, with a note on what became of each key.

Our side is read from the menu and from the signatures of TRL, so that a value that is TRL's default is not written.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from runner.errors import ConfigError, Fault
from runner.files import MENU
from runner.secret import LOGIN_KEY, SECRET_KEY, looks_secret
from runner.signature import Signature, read_signature

MAPPED, SAME, NOTHING, MACHINE = "mapped", "same by default", "no equivalent", "ignored (machine, not experiment)"
HIDDEN = "..."  # in the place of a secret
KINDS = (MAPPED, SAME, NOTHING, MACHINE)


@dataclass(frozen=True)
class Note:
    """What became of one of their keys: ``ours`` is where it went, ``why`` what there is to say of it."""

    kind: str
    key: str
    value: Any
    ours: str = ""
    why: str = ""
    implied: bool = False  # not in their file: their default


@dataclass
class Draft:
    """The experiment: an option for some groups, values, and the notes; ``words`` still have to be typed."""

    name: str
    keys: dict[str, Any]
    implied: frozenset[str] = frozenset()
    choices: dict[str, str | None] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)  # keys whose value the user has to say before it runs

    # --- Their side -------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        """Whether their file gives this key a value, or they have a default for it."""
        return self.keys.get(key) is not None

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is dealt with by this."""
        self.taken.add(key)
        value = self.keys.get(key)
        return default if value is None else value

    def left(self) -> Iterator[tuple[str, Any]]:
        """The keys that nobody has dealt with, in their order; the reader may deal with more of them meanwhile."""
        for key, value in list(self.keys.items()):
            if key not in self.taken:
                yield key, self.take(key) if value is not None else None

    # --- Our side ---------------------------------------------------------------------------------

    @property
    def config(self) -> Signature:
        """The signature of the trainer's config class."""
        return read_signature(self.option("trainer")["trainer"]["args"]["_target_"])

    def option(self, group: str) -> dict[str, Any]:
        """The YAML of the option that was chosen for a group."""
        return _read_option(group, str(self.choices[group]))

    def choose(self, group: str, option: str | None) -> None:
        """Take an option of a group; None takes none, and the values are all there is."""
        self.choices[group] = option

    def put(self, path: str, value: Any) -> None:
        """Write a value at a dotted path of the experiment."""
        *nodes, last = path.split(".")
        inner = self.values
        for node in nodes:
            inner = inner.setdefault(node, {})
        inner[last] = value

    # --- Both -------------------------------------------------------------------------------------

    def note(self, kind: str, key: str, ours: str = "", why: str = "") -> None:
        """Say what became of a key; no secret is ever repeated."""
        value = HIDDEN if is_secret(key, self.keys.get(key)) else self.keys.get(key)
        self.taken.add(key)
        self.notes.append(Note(kind, key, value, ours, why, key in self.implied))

    def map(self, key: str, path: str, value: Any, why: str = "") -> None:
        """Write a value that comes from a key, and say so."""
        if is_secret(key, value):
            self.secret(key)
            return
        if is_unset(value):
            self.put(path, "???" if path == "model.path" else reference(value))
            self.open(key, f"{value} is set by the shell, and not in this file", f"{path}=<value>")
            return
        self.put(path, value)
        self.note(MAPPED, key, f"{path}: {shown(value)}", why)

    def real(self, key: str, value: Any) -> Any:
        """A number, or what the shell puts in its place; ConfigError with any other value of a key."""
        if is_unset(value):
            return value
        try:
            return float(value)
        except (TypeError, ValueError):
            cure = "mend it in their file, or leave the key out there"
            raise ConfigError(Fault(key, shown(value), "a number", cure)) from None

    def pick(self, key: str, group: str, option: str, why: str = "") -> None:
        """Choose an option because of a key, and say so."""
        self.choose(group, option)
        self.note(MAPPED, key, f"{group}={option}", why)

    def same(self, key: str, why: str = "") -> None:
        self.note(SAME, key, why=why)

    def nothing(self, key: str, why: str, nearest: str = "") -> None:
        """Say that a key has no equivalent, why, and what comes nearest."""
        self.note(NOTHING, key, nearest, why)

    def open(self, key: str, why: str, nearest: str) -> None:
        """Say that a key has no equivalent until the user says one, without which nothing runs."""
        self.opened.add(key)
        self.nothing(key, why, nearest)

    def machine(self, key: str, why: str = "") -> None:
        self.note(MACHINE, key, why=why)

    def secret(self, key: str) -> None:
        self.machine(key, "a secret, which no file of ours holds: export it in the environment")

    def arg(self, key: str, name: str, value: Any, why: str = "") -> None:
        """A field of the trainer's config object, where it has one; TRL's default is not written."""
        known = self.config.parameters.get(name)
        if known is None and value in (False, None):
            self.same(key, "off")
        elif known is None:
            trainer = self.config.name.removesuffix("Config")
            self.nothing(key, f"{trainer} has no {name}" + (f"; {why}" if why else ""))
        elif is_secret(key, value):
            self.secret(key)
        elif _equal(known.default, value):
            self.same(key, why or f"{name} is {shown(value)}")
        elif is_unset(value):
            self.map(key, f"trainer.args.{name}", value)
        elif not known.type.accepts(value):
            self.nothing(key, f"{name} takes {known.type}", why)
        else:
            self.map(key, f"trainer.args.{name}", value, why)

    def to_yaml(self, head: str) -> str:
        """The experiment as a file of the menu, under a header."""
        defaults = [{f"override /{group}": option} for group, option in self.choices.items()]
        first = {key: self.values[key] for key in ("seed", "learning_rate", "kl_coef") if key in self.values}
        whole = {"defaults": [*defaults, "_self_"], "name": self.name} | first | self.values
        text = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=80, default_flow_style=False)
        text = re.sub(r"\n(?=name:)", "\n\n", text, count=1)
        return f"# @package _global_\n{head}{text}"


@functools.cache
def _read_option(group: str, option: str) -> dict[str, Any]:
    return yaml.safe_load((MENU / group / f"{option}.yaml").read_text(encoding="utf-8"))


def is_secret(key: str, value: Any) -> bool:
    """Whether a value is, or is called, something that no file may hold."""
    if not isinstance(value, str) or not value:
        return False
    if value == HIDDEN or looks_secret(value) or SECRET_KEY.search(key.lower()) or LOGIN_KEY.search(key.lower()):
        return True
    return key.lower().endswith("token") and bool(re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[\w.-]{16,}", value))


def is_unset(value: Any) -> bool:
    """Whether a value has a variable or a command of the shell in it whose value is not in the file."""
    return isinstance(value, str) and bool(re.search(r"\$(\(|\{?[A-Za-z_])", value))


def reference(value: str) -> str:
    """A reference to nothing in the place of such a value: no run starts with it, where ??? would mean the default."""
    return f"${{shell.{re.search(r'[A-Za-z_]+', value)[0]}}}"


def shown(value: Any) -> str:
    """A value on one line, as YAML writes it."""
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).strip()
    return text.removesuffix("\n...").strip()


def _equal(default: Any, value: Any) -> bool:
    """Whether two values mean the same; true is not 1, although Python says so."""
    if isinstance(default, bool) != isinstance(value, bool):
        return False
    return default == value


def without_secrets(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The same keys, every secret in them replaced by dots, however deep it is."""

    def clean(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: clean(str(name), entry) for name, entry in value.items()}
        if isinstance(value, list):
            return [clean(key, entry) for entry in value]
        return HIDDEN if is_secret(key, value) else value

    return {key: clean(key, value) for key, value in keys.items()}
