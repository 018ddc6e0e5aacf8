"""A Python script or a notebook that trains -> the keys that it gives TRL, peft and Unsloth.

It begins at the first call of a trainer, and goes back from there: to the object with the
arguments, to the calls that have loaded and adapted the model, and to those that have loaded and
changed the rows.
What stands elsewhere in a script, such as a model that is loaded again to try it, does not count.

The sections ``classes`` and ``calls`` of the tables say which calls train, and what their arguments
are called as keys. An argument that is no constant is a remark with its line, and never a guess.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.dialect import find_dialects
from runner.errors import ConfigError, Fault
from runner.importers.foreign_config import ForeignConfig, Keys, Remark
from runner.importers.python_file import parse_python
from runner.importers.python_rows import read_script_rows
from runner.importers.python_scope import Script
from runner.importers.python_script import read_script_tree
from runner.importers.python_values import (
    CallValue,
    Code,
    Function,
    NameValue,
    Value,
    is_constant,
    shown_value,
)

SCRIPT_DIALECT = "trl_script"
PYTHON = "python"  # the name of the script, by which rules of a table know one
ROWS = ("train_dataset", "eval_dataset")
REWARDS = "reward_funcs"
ARGUMENTS = "args"
# Where functions of a script must go to, so that they can be imported without running it.
REWARD_MODULE = "rewards"


@dataclass(frozen=True)
class CallEntry:
    """The row of a call in a table; ``trl_script.yaml`` explains the fields."""

    order: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    inner: Sequence[str] = ()
    gives: Keys = field(default_factory=dict)
    facts: Keys = field(default_factory=dict)
    dialect: str = ""


@dataclass(frozen=True)
class CallTable:
    """The calls that the tables of all dialects know."""

    # The trainer of ours of each class that trains, and why other classes do not.
    classes: Mapping[str, str]
    idle: Mapping[str, str]
    # By the name of a function, or of a class and its method.
    calls: Mapping[str, CallEntry]
    # Keys whose value is read as code.
    expressions: Collection[str]
    opaque: Collection[str]
    # Calls that count wherever they stand, and those that count by their names alone.
    anywhere: Collection[str]
    afterwards: Collection[str]

    def is_training(self, call: CallValue) -> bool:
        """True for the call of a class that trains."""
        return call.last in self.classes

    def find(self, call: CallValue) -> CallEntry | None:
        """The entry of a call; that of a method has the name of its class in front."""
        words = call.name.split(".")
        method = ".".join(words[-2:])
        if method in self.calls:
            return self.calls[method]
        return self.calls.get(call.last)


def read_call_table() -> CallTable:
    """The calls that the tables of all dialects know."""
    classes: dict[str, str] = {}
    idle: dict[str, str] = {}
    calls: dict[str, CallEntry] = {}
    expressions: list[str] = []
    opaque: list[str] = []
    anywhere: list[str] = []
    afterwards: list[str] = []
    for table in find_dialects().values():
        classes |= table.get("classes", {})
        idle |= table.get("idle_classes", {})
        for name, entry in table.get("calls", {}).items():
            calls[name] = CallEntry(**entry)
        expressions += table.get("expressions", ())
        opaque += table.get("opaque", ())
        anywhere += table.get("anywhere", ())
        afterwards += table.get("afterwards", ())
    return CallTable(
        classes=classes,
        idle=idle,
        calls=calls,
        expressions=expressions,
        opaque=opaque,
        anywhere=anywhere,
        afterwards=afterwards,
    )


def read_python(path: Path, text: str) -> ForeignConfig:
    """The keys of the first training of a script or a notebook, and its dialect.

    Raises ConfigError where nothing is trained, or where the text is not Python.
    """
    vocabulary = read_call_table()
    tree = parse_python(path, text)
    try:
        script = read_script_tree(tree, vocabulary.is_training)
    except RecursionError:
        fault = _no_training(path, "expressions that are nested too deep")
        raise ConfigError(fault) from None
    trainings = []
    for call in script.calls:
        if vocabulary.is_training(call):
            trainings.append(call)
    if not trainings:
        reason = _idle_reason(script, vocabulary)
        raise ConfigError(_no_training(path, reason))
    training = trainings[0]
    collected = _Collected(vocabulary)
    collected.add_training(training)
    for call in script.calls:
        if call.last in vocabulary.anywhere or call.name in vocabulary.anywhere:
            collected.add_call(call)
        elif call.last in vocabulary.afterwards:
            collected.keys.setdefault(call.last, True)
    collected.add_doubts(script)
    further_trainings = len(trainings) - 1
    if further_trainings:
        why = "further trainings; each is imported from a file of its own"
        collected.remarks["trainers"] = Remark(further_trainings, why)
    return ForeignConfig(
        path=path,
        keys=collected.keys,
        dialect=collected.dialect,
        why=f"line {training.line} calls {training.last}",
        command=vocabulary.classes[training.last],
        script=PYTHON,
        facts=collected.facts,
        unknown=collected.unknown,
        remarks=collected.remarks,
    )


def _idle_reason(script: Script, vocabulary: CallTable) -> str:
    """The reason why none of the calls of a script is a training that is read here."""
    for call in script.calls:
        if call.last in vocabulary.idle:
            return f"line {call.line}, {call.last}: {vocabulary.idle[call.last]}"
    return "no call of a trainer"


def _no_training(path: Path, found: str) -> Fault:
    """The fault of a script in which nothing is trained that is read here."""
    return Fault(
        where=str(path),
        found=found,
        expected="a call of one of TRL's trainers, such as SFTTrainer(...)",
        fix="python -m runner import <another file>",
    )


# The calls lead to each other by their arguments: a trainer holds its model, which is the result of
# get_peft_model, which holds the model that from_pretrained has loaded. So one walk along arguments
# finds all that belongs to a training, in the order of what overrides what.
@dataclass
class _Collected:
    """The keys of a training, and remarks on what is no key, as calls are read."""

    vocabulary: CallTable
    # What is said first counts: the trainer's own arguments come before those of its config.
    keys: Keys = field(default_factory=dict)
    # By a key, or by a call and its line where it is no key.
    remarks: dict[str, Remark] = field(default_factory=dict)
    # What is no key of theirs, but what rules ask for.
    facts: Keys = field(default_factory=dict)
    # Keys of arguments whose value is code.
    unknown: list[str] = field(default_factory=list)
    dialect: str = SCRIPT_DIALECT
    # A model and its tokenizer may come from one call, which is read once.
    calls_read: list[CallValue] = field(default_factory=list)

    def add_training(self, training: CallValue) -> None:
        """Read a trainer, and all that is made for it: its model, its arguments and its rows."""
        self.add_call(training)
        train = read_script_rows(training.argument(ROWS[0]))
        held_out = read_script_rows(training.argument(ROWS[1]))
        for key, value in train.to_keys().items():
            self.keys.setdefault(key, value)
        self.keys |= train.held_out_keys(held_out)
        for remark in [*train.remarks, *held_out.remarks]:
            self.remarks[remark.name] = Remark(remark.value, remark.why)
        if train.rendered_by:
            self.keys["rows_rendered"] = train.rendered_by
        if train.is_text or isinstance(self.keys.get("dataset_text_field"), str):
            self.facts["writes_text"] = True

    def add_doubts(self, script: Script) -> None:
        """Note each condition on which something of the training depends."""
        names: set[str] = set()
        for call in self.calls_read:
            names |= call.names
        for doubt in script.doubts:
            if doubt.names & names:
                self.remarks[doubt.text] = doubt.remark

    def add_call(self, call: CallValue) -> None:
        """Read the arguments of a call that the tables know, and of those that they hold."""
        entry = self.vocabulary.find(call)
        if entry is None:
            self._add_inner(call)
            return
        for other in self.calls_read:
            if call.line == other.line and call.text == other.text:
                return
        self.calls_read.append(call)
        self.dialect = entry.dialect or self.dialect
        self.facts |= entry.facts
        for key, value in entry.gives.items():
            self._put(key, value, call)
        for name, value in _arguments(call, entry.order):
            if name in entry.left_out or name in ROWS:
                continue
            if name in entry.inner:
                self._add_inner(value)
            elif name == REWARDS:
                self._add_rewards(value, call)
            elif name == ARGUMENTS and isinstance(value, CallValue):
                self._add_arguments(value)
            else:
                key = entry.names.get(name, name)
                self._add_argument(key, value, call)

    def _add_arguments(self, call: CallValue) -> None:
        """Read the object that holds the arguments of a trainer."""
        self.facts["arguments_of"] = call.last
        self.calls_read.append(call)
        for name, value in call.keywords.items():
            self._add_argument(name, value, call)

    def _add_argument(self, key: str, value: Value, call: CallValue) -> None:
        """Note the value of an argument: a constant, or what another call makes."""
        # A reference model is made like the model itself, and its keys are not those of the model.
        is_opaque = key in self.vocabulary.opaque
        if isinstance(value, CallValue) and not is_opaque and self._leads_on(value):
            self.add_call(value)
            return
        if isinstance(value, NameValue) and value.path.startswith("torch."):
            value = value.last
        if is_constant(value):
            self._put(key, value, call)
        elif is_opaque or key in self.vocabulary.expressions:
            self._put(key, shown_value(value), call)
        else:
            line = getattr(value, "line", call.line)
            why = f"line {line}: no constant, so its value is not known here"
            self.remarks[key] = Remark(shown_value(value), why)
            self.unknown.append(key)

    def _leads_on(self, value: Value) -> bool:
        """True for a call that the tables know, or that is made on the result of one."""
        while isinstance(value, CallValue):
            if self.vocabulary.find(value):
                return True
            value = value.receiver
        return False

    def _add_inner(self, value: Value) -> None:
        """Read the call that a value is made from, where the tables know one."""
        while isinstance(value, CallValue):
            if self.vocabulary.find(value):
                self.add_call(value)
                return
            value = value.receiver

    def _put(self, key: str, value: Value, call: CallValue) -> None:
        """Note a key; what is said first counts, and another value is a remark."""
        if value is None:
            return
        if key not in self.keys:
            self.keys[key] = value
        elif self.keys[key] != value:
            why = (
                f"line {call.line}: another place says {shown_value(self.keys[key])}, which counts"
            )
            self.remarks[f"{key}, {call.last}"] = Remark(value, why)

    def _add_rewards(self, value: Value, call: CallValue) -> None:
        """Note the rewards by name; functions of the script go to a module of their own."""
        rewards = value if isinstance(value, list) else [value]
        names = []
        functions = []
        for reward in rewards:
            name = _name_of_reward(reward)
            if not name:
                why = f"line {call.line}: no constant, so its value is not known here"
                self.remarks[REWARDS] = Remark(shown_value(value), why)
                continue
            if isinstance(reward, Function):
                functions.append(name)
                name = f"{REWARD_MODULE}.{name}"
            names.append(name)
        if names:
            self.keys[REWARDS] = names
        if functions:
            shown_names = ", ".join(functions)
            why = f"to be copied into {REWARD_MODULE}.py, as the script trains when it is imported"
            self.remarks["functions"] = Remark(shown_names, why)


def _name_of_reward(reward: Value) -> str:
    """The name of a reward, with its module where it has one; empty for code."""
    if isinstance(reward, str):
        return reward
    if isinstance(reward, Function):
        return reward.text
    if isinstance(reward, CallValue):
        return reward.last
    if isinstance(reward, NameValue):
        is_of_trl = reward.path.startswith("trl.")
        return reward.last if is_of_trl else reward.path
    return ""


def _arguments(call: CallValue, order: Sequence[str]) -> Iterator[tuple[str, Value]]:
    """The arguments of a call by name, those without one by their order."""
    for index, value in enumerate(call.positional):
        name = order[index] if index < len(order) else f"{call.last}[{index}]"
        if not isinstance(value, Code) or index < len(order):
            yield name, value
    yield from call.keywords.items()
