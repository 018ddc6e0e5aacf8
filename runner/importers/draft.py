"""An experiment as it grows out of another tool's configuration: keys, followed by their rows, and a note on each.

Our side is read from the menu and from the signatures of TRL, so that a value that is TRL's default
is not written. The form of a row is explained in ``config.dialect``; datasets are read in
``readers``.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.config import dialect
from runner.config.conversion import COMPUTED, CONVERSIONS, to_list
from runner.config.dialect import OFF, Rule, Table, is_wanted, to_single_line
from runner.config.menu import read_options
from runner.dataset.conversation import SPEAKERS
from runner.errors import Fault
from runner.importers.read import ForeignConfig
from runner.io.secrets import LOGIN_KEY, SECRET_KEY, form_of
from runner.schema.read import Signature, read_signature
from runner.schema.text import nearest, select

MAPPED, SAME, NO_EQUIVALENT = "mapped", "same by default", "no equivalent"
IGNORED = "ignored (machine, not experiment)"
KINDS = (MAPPED, SAME, NO_EQUIVALENT, IGNORED)
HIDDEN = "..."  # in the place of a secret
FIX = "mend it in their file, or leave the key out there"
SECRET = Rule(
    kind="ignored", reason="a secret, which no file of ours holds: export it in the environment"
)


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
    # keys that are not in their file, but have a default
    implied: set[str] = field(default_factory=set)
    choices: dict[str, str | None] = field(
        default_factory=lambda: {"trainer": "sft", "model": "hub"}
    )
    values: dict[str, Any] = field(
        default_factory=lambda: {"model": {"path": "???"}, "dataset": {"path": "???"}}
    )
    notes: list[Note] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    # what is typed as well where there are GPUs to spread over
    spread: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    # keys whose value the user has to say before it runs
    unset: set[str] = field(default_factory=set)
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
                self.convert(key, value, "mapping", {})
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

    def meets(self, rule: Rule, value: object = None) -> bool:
        """True where every condition of a rule is met by a key's value and the draft."""
        facts: dict[str, list[object]] = {
            name: [self.choices.get(name)] for name in ("trainer", "peft", "optimizer")
        }
        facts |= {
            "value": [value],
            "command": [self.reading.command],
            "held_out": [self.has_held_out],
        }
        facts |= {
            "form": [part.get("form") for part in self.parts],
            "script": [self.reading.script],
        }
        return dialect.holds(rule, facts, self.keys)

    def take(self, key: str, to: str, default: Any) -> Any:
        """The converted value of a key, which is dealt with by this; the default where there is none, or false."""
        self.taken.add(key)
        return default if self.keys.get(key) is False else self.read(key, to, default)

    def read(self, key: str, to: str, default: Any) -> Any:
        """The converted value of a key; the default where there is none, or where it is a fault."""
        return self.convert(key, self.keys.get(key), to, default)

    def convert(self, where: str, value: object, to: str, default: Any) -> Any:
        """A value as a conversion of that name has it; the default where there is none, or where it is a fault."""
        try:
            return default if value is None else CONVERSIONS[to](value)
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
        return self.table.sections.get("forms", {}).get(self.trainer)

    @property
    def config(self) -> Signature:
        """The signature of the trainer's config class."""
        target = read_options("trainer")[self.trainer]["trainer"]["args"]["_target_"]
        return read_signature(target) or Signature(target, target)

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The node of each dataset."""
        return list(self.values["dataset"].get("parts", {"": self.values["dataset"]}).values())

    @property
    def has_held_out(self) -> bool:
        """True where a dataset has rows for evaluation."""
        return any("eval" in part.get("split", {}) for part in self.parts)

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
        """Write a value that comes from a key where the trainer or the adapter takes it, and say so."""
        group, _, name = path.partition(".")
        if group in ("peft", "quant") and group not in self.choices:
            self.note(SAME, key, why="no adapter" if group == "peft" else "no quantisation")
        elif path.startswith("trainer.args.") and (
            kind := self._note_known(key, name[len("args.") :], value, why)
        ):
            return kind == SAME
        elif is_unset(value):
            # A reference to nothing: no run starts with it, where ??? would mean the default.
            tail = str(value).partition("$")[2]
            name = next(
                iter(re.findall(r"[A-Za-z_]\w*", tail)),
                "argument_" + "".join(re.findall("[0-9]", tail)),
            )
            reference = f"${{shell.{name}}}"
            self.put(path, "???" if path == "model.path" else reference)
            self.unset.add(key)
            whence = "not said" if value == "???" else f"{value} is set by the shell, and not"
            self.no_equivalent(key, f"{whence} in this file", f"{path}=<value>")
        else:
            self.put(path, value)
            self.note(MAPPED, key, f"{path}: {to_single_line(value)}", why)
        return True

    def _note_known(self, key: str, name: str, value: object, why: str) -> str:
        known = self.config.parameters.get(name.partition(".")[0])
        is_new = select(self.values, f"trainer.args.{name}") is None
        if known is None and value in (False, None):
            self.note(SAME, key, why="off")
        elif known is None:
            trainer = self.config.name.removesuffix("Config")
            self.no_equivalent(key, f"{trainer} has no {name}" + (f"; {why}" if why else ""))
        elif "." in name or is_unset(value):
            return ""
        elif (
            is_new
            and known.default == value
            and isinstance(known.default, bool) == isinstance(value, bool)
        ):
            self.note(SAME, key, why=why or f"{name} is {to_single_line(value)}")
        elif not known.type.accepts(value):
            self.no_equivalent(key, f"{name} takes {known.type}", why)
        else:
            return ""
        return self.notes[-1].kind


def _without_secrets(key: str, value: object) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_secrets(str(name), entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_secrets(key, entry) for entry in value]
    if not isinstance(value, str) or not value:
        return value
    is_token = key.lower().endswith("token") and re.fullmatch(
        r"(?=.*\d)(?=.*[A-Za-z])[\w.-]{16,}", value
    )
    is_named = SECRET_KEY.search(key.lower()) or LOGIN_KEY.search(key.lower())
    return HIDDEN if is_token or is_named or form_of(value) else value


def is_unset(value: object) -> bool:
    """True for a text with a variable or a command of the shell in it whose value is not in the file."""
    return isinstance(value, str) and bool(
        re.search(r"\$(\(|\{?[A-Za-z_])|^\$\{?\d+\}?$|^\?{3}$", value)
    )


# --- Rows of a table ------------------------------------------------------------------------------


def follow(draft: Draft, *keys: str) -> None:
    """Deal with these keys, in this order, by the first rule of their row that holds."""
    for key in keys:
        if (value := draft.keys.get(key)) is None or key in draft.taken:
            continue
        rules = [SECRET] if value == HIDDEN else draft.find_rules(key)
        if rule := next((rule for rule in rules if draft.meets(rule, value)), None):
            draft.taken.add(key)
            draft.imply(rule.give)
            for path, constant in (
                rule.also.items() if _apply(draft, rule, key, value, rules) else ()
            ):
                if select(draft.values, path) is None:
                    draft.put(path, _filled(draft, key, constant))


def follow_rest(draft: Draft) -> None:
    """Deal with every key that is left: by its row, else by the trainer's own fields."""
    for key, value in list(draft.keys.items()):
        follow(draft, key)
        if value is None or key in draft.taken:
            continue
        is_known = bool(draft.find_rules(key))
        if key in draft.config.parameters and not is_known:
            draft.write(key, f"trainer.args.{key}", value)
        elif value in OFF and key not in draft.implied:
            draft.note(SAME, key, why="off")
        elif key not in draft.implied:
            near = nearest(key, draft.config.parameters, 0.85)
            why = (
                "it goes with another adapter or trainer"
                if is_known
                else "not a key that is known here"
            )
            draft.no_equivalent(key, why, f"trainer.args.{near[0]}" if near else "")


def _apply(draft: Draft, rule: Rule, key: str, value: object, rules: list[Rule]) -> bool:
    """Do what a rule says with a key; False where there was something to write, and it was not."""
    reason, nearest, why = (
        _filled(draft, key, text) for text in (rule.reason, rule.typed or rule.nearest, rule.why)
    )
    if rule.choose:
        group, _, option = rule.choose.partition("=")
        draft.choices[group] = None if option == "null" else option
    if rule.by:
        FUNCTIONS[rule.by](draft, key)
    elif rule.to:
        path, count = rule.to.replace("*", key.partition(".")[2]), len(draft.faults)
        if rule.write is not None:
            value = _filled(draft, key, rule.write)
        elif rule.convert and (rule.convert in COMPUTED or not is_unset(value)):
            if rule.rest and (more := draft.convert(key, value, "words", [])[1:]):
                draft.no_equivalent(key, f"{', '.join(more)}: {rule.rest}", rule.nearest)
            value = draft.convert(key, value, rule.convert, None)
        return len(draft.faults) == count and draft.write(key, path, value, why)
    elif rule.kind == "refused":
        methods = [
            method for each in rules if each.choose for method in to_list(each.when["value"])
        ]
        expected = why or f"one of {', '.join(map(to_single_line, methods))}"
        draft.faults.append(Fault(key, reason, expected, "python -m runner options trainer"))
    elif rule.kind in ("no_equivalent", "asked"):
        draft.unset |= {key} if rule.kind == "asked" else set()
        draft.overrides += nearest.split() if rule.typed else []
        draft.no_equivalent(key, reason, nearest)
    elif rule.choose:
        draft.note(MAPPED, key, rule.choose, why)
    else:
        draft.note(IGNORED if rule.kind == "ignored" else SAME, key, why=reason)
    return True


def _filled(draft: Draft, key: str, text: object) -> Any:
    return dialect.filled(
        text, {**draft.keys, "key": key, "value": draft.keys[key], "trainer": draft.trainer}
    )


def divide_batch(draft: Draft, key: str) -> None:
    """Take the whole batch by the small one as the number of accumulated steps."""
    micro = draft.read("micro_batch_size", "whole_number", 1)
    steps = max(1, draft.take(key, "whole_number", 1) // max(1, micro))
    draft.write(
        key, "trainer.args.gradient_accumulation_steps", steps, "the whole batch by the small one"
    )


def pair_rows(draft: Draft, key: str) -> None:
    """Write micro-batches of two rows, and half as many of them in a step."""
    count = "gradient_accumulation_steps"
    steps = max(1, draft.take(count, "whole_number", 1) // 2)
    # where it stands first in their file
    draft.notes = [note for note in draft.notes if note.key != count]
    why = "rows of a micro-batch are compared with each other"
    draft.write(key, "trainer.args.per_device_train_batch_size", 2, why)
    draft.write(count, f"trainer.args.{count}", steps, "of two rows")


def divide_epoch(draft: Draft, key: str) -> None:
    """Write so many times in an epoch as a share of all steps."""
    path = f"trainer.args.{'eval' if key.startswith('evals') else 'save'}"
    epochs = draft.read("num_epochs", "number", 1.0)
    times = draft.take(key, "number", 1.0) * epochs
    share = round(1 / times, 6) if times else 1
    draft.put(f"{path}_strategy", "epoch" if share >= 1 else "steps")
    if share >= 1:
        draft.note(MAPPED, key, f"{path}_strategy: epoch")
    else:
        draft.write(
            key,
            f"{path}_steps",
            share,
            f"a share of all steps: {draft.keys[key]} in each of {epochs:g}",
        )


def pair_betas(draft: Draft, key: str) -> None:
    """Write both betas of Adam as one argument of an optimizer of ours."""
    usual = {"adam_beta1": 0.9, "adam_beta2": 0.999}
    draft.write(
        key,
        "optimizer.betas",
        [draft.read(name, "number", default) for name, default in usual.items()],
    )


def compare_speakers(draft: Draft, key: str) -> None:
    """Note a role of a dataset whose speakers are not those that ours reads in this role."""
    if any(
        SPEAKERS.get(name.lower()) != key.rpartition(".")[2]
        for name in draft.take(key, "words", [])
    ):
        draft.no_equivalent(key, "", "dataset.map._target_=<function of a row>")


BY = (divide_batch, pair_rows, divide_epoch, pair_betas, compare_speakers)
FUNCTIONS = {each.__name__: each for each in BY}
