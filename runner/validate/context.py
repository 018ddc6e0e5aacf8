"""The surroundings of one configuration: the keys that the runner reads itself, the menu, and what was typed."""

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.config.groups import GROUPS
from runner.config.menu import read_options
from runner.config.override import HELD, find_place
from runner.metric import ask as metric
from runner.run.alarms import ALARMS
from runner.schema.literal import to_text
from runner.schema.read import Parameter, Signature, read_signature
from runner.schema.source import find_module, public_names
from runner.schema.text import Config, Node, nodes, select
from runner.schema.type import expression
from runner.schema.upstream.constructor import FROM_GROUP, FROM_TOP

ARGS = "trainer.args."
CONFIGS = ("trl", "transformers.training_args")  # where the fields of TRL's trainers are
EXPERIMENT = "runner.config.experiment"


def read_keys(kind: str) -> dict[str, Parameter]:
    """The keys of ours that a class of ``config.experiment`` declares."""
    signature = read_signature(f"{EXPERIMENT}.{kind}")
    return dict(signature.parameters) if signature else {}


def read_alarm_keys() -> dict[str, Parameter]:
    """The keys of ``tolerate`` that switch an alarm off, or say for how many steps in a row it may ring."""
    kind = expression("bool | Annotated[int, Range(low=1)]")
    return {name: Parameter(name, annotation=kind) for name in ALARMS}


def read_top_keys() -> dict[str, Parameter]:
    """The keys of the top level that are no group."""
    tolerate = Parameter("tolerate", annotation=expression("dict | None"))
    return read_keys("Experiment") | {"tolerate": tolerate}


TOP = read_top_keys()
# Groups that are read as they are, without anything to build.
PLAIN_GROUPS = {
    "tracker": read_keys("Tracking"),
    "tolerate": read_alarm_keys() | read_keys("Tolerate"),
}
# Keys beside the arguments of a target: of every node, and of the nodes of a group.
SPECIAL = {
    "_target_": Parameter("_target_", annotation=expression("str")),
    "_partial_": Parameter("_partial_", annotation=expression("bool")),
}
OWN = {
    "trainer": read_keys("TrainerPart"),
    "model": read_keys("ModelPart"),
    "reward": read_keys("RewardPart"),
    "metric": read_keys("MetricPart"),
    "peft": read_keys("AdapterPart"),
    "optimizer": read_keys("OptimizerPart"),
    "launcher": read_keys("LauncherPart"),
}
# Groups of several parts, whose keys of ours are one level deeper.
NAMED_PARTS = ("reward", "metric")
# Arguments by which rewards and metrics say what they judge; the other arguments may be columns of
# the rows.
JUDGED = (*metric.SAMPLED, *metric.READ)


@dataclass(frozen=True)
class ValidationContext:
    """A configuration with what is known around it."""

    cfg: Config
    menu: Mapping[str, list[str]] = field(default_factory=dict)  # the options of each group
    allow: Collection[str] = ()  # the packages that the command line opened
    typed: Collection[str] = ()  # the dotted keys of it
    signatures: dict[str, Signature | None] = field(default_factory=dict)

    def signature(self, node: object) -> Signature | None:
        """The signature of a node's target; None where it is no node, or its target does not exist."""
        target = node.get("_target_") if isinstance(node, dict) else None
        if not isinstance(target, str):
            return None
        if target not in self.signatures:
            self.signatures[target] = read_signature(target)
        return self.signatures[target]

    def mapping(self, path: str) -> Node:
        """The mapping at a dotted key; an empty one where there is none."""
        found = select(self.cfg, path)
        return found if isinstance(found, dict) else {}

    @property
    def trainer(self) -> Signature | None:
        """The signature of the trainer's constructor."""
        return self.signature(self.cfg.get("trainer"))

    @property
    def args(self) -> Node:
        """The fields of the trainer's config that are given."""
        return self.mapping("trainer.args")

    def field(self, name: str) -> Any:
        """A field of the trainer's config: what was given, or else its default; None where it has no such field."""
        signature = self.signature(self.args)
        known = signature.parameters.get(name) if signature else None
        return self.args.get(name, known.default) if known else None

    def has_field(self, name: str) -> bool:
        """True for a field that the trainer's config has, given or not."""
        signature = self.signature(self.args)
        return signature is not None and name in signature.parameters

    def changes_model(self, node: object) -> bool:
        """True for a part that changes the model itself, so that no trainer needs to know of it."""
        signature = self.signature(node)
        return signature is not None and "model" in signature.parameters

    def entries(self, group: str) -> dict[str, object]:
        """The parts of a group by their dotted keys, whether it holds one or several with names; null ones too."""
        node = self.cfg.get(group)
        if isinstance(node, dict) and "_target_" not in node:
            return {f"{group}.{name}": part for name, part in node.items()}
        return {group: node}

    @property
    def groups(self) -> list[str]:
        """The groups that a configuration may have: those on the menu if there is one."""
        return [group for group in GROUPS if not self.menu or group in self.menu]

    def options(self, group: str) -> list[str]:
        """The options of a group that choose something."""
        return [name for name in self.menu.get(group, ()) if name != "none"]

    def origin(self, path: str, value: object) -> str:
        """The key to change for a value: that of the top level where the value comes from there."""
        top = FROM_TOP.get(path.removeprefix(ARGS), "")
        given = self.cfg.get(top)
        if not path.startswith(ARGS) or path in self.typed or given is None:
            return path
        return top if repr(given) in (repr(value), repr(value).strip("[]")) else path

    @functools.cached_property
    def option(self) -> str:
        """The option of our menu that the trainer is; empty for one of the user's own."""
        target, options = self.mapping("trainer").get("_target_"), read_options("trainer")
        return next(
            (name for name in options if options[name]["trainer"]["_target_"] == target), ""
        )

    def completed(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """Words for keys of a group, with the option that they need where none is chosen; of a path it is the place."""
        groups, needed = {word.partition(".")[0] for word in words}, {}
        if groups & {"peft", "quant"} and not self.mapping("peft").get("_target_"):
            needed["peft"] = "lora"
        for group in (group for group in HELD if f"{group}.path" in words and groups == {group}):
            name = words[f"{group}.path"]
            if name in self.menu.get(group, ()) or find_place(group, to_text(name), self.menu)[0]:
                return {group: name}
            needed[group] = "local" if isinstance(name, list) else "hub"
        return {
            group: option for group, option in needed.items() if group not in self.typed
        } | dict(words)

    def takes(self, path: str, words: Collection[str]) -> bool:
        """True for a key that this configuration takes, or would with the options that these words choose."""
        names = path.split(".")
        if (
            (names[1:] and names[0] in words)
            or path in self.groups
            or names[0] in ("tracker", "launcher")
        ):
            return True
        if path in TOP:
            return path not in ("learning_rate", "kl_coef") or self.cfg.get(path) is not None
        for depth in range(len(names) - 1, 0, -1):
            node = ".".join(names[:depth])
            if signature := self.signature(self.mapping(node)):
                return names[depth] in keys_of(node, signature)
        return False

    @functools.cached_property
    def places(self) -> dict[str, list[str]]:
        """Each key that is right somewhere in this configuration, with where."""
        places = {key: [key] for key in TOP}
        for path, node in nodes(self.cfg):
            signature = self.signature(node)
            for key in keys_of(path, signature) if signature else ():
                if not (path == "trainer" and key in FROM_GROUP):
                    places.setdefault(key, []).append(f"{path}.{key}")
        return places

    @functools.cached_property
    def others(self) -> dict[str, Signature]:
        """The config of each of TRL's trainers, experimental ones too, by the trainer's short name."""
        found = {}
        for names in ([f"trl.{name}" for name in public_names("trl")], *experimental_names()):
            for full in names:
                short = full.removesuffix("Config")
                if (
                    full != short
                    and f"{short}Trainer" in names
                    and (signature := read_signature(full))
                ):
                    found[short.rpartition(".")[2]] = signature
        return found

    def owners(self, key: str) -> list[str]:
        """Those of them that have a field; of a word that no source of a config holds, no config needs to be read."""
        known = [module for name in CONFIGS if (module := find_module(name))]
        files = (
            file
            for module in known
            for folder in module.folders
            for file in Path(folder).rglob("*config.py")
        )
        texts = (
            *(module.text for module in known),
            *(file.read_text(encoding="utf-8") for file in files),
        )
        is_there = any(key in text for text in texts)
        return (
            [name for name, other in self.others.items() if key in other.parameters]
            if is_there
            else []
        )


def keys_of(path: str, signature: Signature) -> dict[str, Parameter]:
    """The keys that a node may have beside ``_target_``: its target's arguments and our own."""
    group, *rest = path.split(".")
    deepest = 1 if group in NAMED_PARTS else 0
    if len(rest) > deepest:
        return dict(signature.parameters)
    return {**signature.parameters, **OWN.get(group, {})}


def is_given(node: object) -> bool:
    """True for a part, or for a group with a part that is not null."""
    if isinstance(node, dict):
        return any(value is not None for value in node.values())
    return bool(node)


def is_called_later(path: str, signature: Signature) -> bool:
    """True for a reward or metric that is a function, called with the columns of the rows that it names."""
    return path.split(".")[0] in ("reward", "metric") and bool(
        set(JUDGED) & set(signature.parameters)
    )


def experimental_names() -> Iterator[list[str]]:
    """The full names in each of TRL's experimental packages."""
    for package in public_names("trl.experimental"):
        full = f"trl.experimental.{package}"
        yield [f"{full}.{name}" for name in public_names(full)]
