"""The surroundings of one configuration: the runner's own keys, the menu, and what was typed."""

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.config.groups import GROUPS
from runner.config.menu import option_of
from runner.config.override import HELD, find_place
from runner.metric import ask as metric
from runner.schema.literal import to_text
from runner.schema.read import Parameter, Signature, read_signature
from runner.schema.source import find_module, names_by_subpackage, public_names
from runner.schema.text import Config, Node, last_key, nodes, select
from runner.schema.type import expression
from runner.schema.upstream.constructor import FROM_GROUP, FROM_TOP

ARGS = "trainer.args."
CONFIGS = ("trl", "transformers.training_args")  # where the fields of TRL's trainers are
EXPERIMENT = "runner.config.experiment"


def read_keys(class_name: str) -> dict[str, Parameter]:
    """The keys of ours that a class of ``config.experiment`` declares."""
    signature = read_signature(f"{EXPERIMENT}.{class_name}")
    return dict(signature.parameters) if signature else {}


def read_alarm_keys() -> dict[str, Parameter]:
    """The keys of ``tolerate`` that allow an alarm: always, or for some steps in a row."""
    # Few configurations tolerate any, so that most need not wait for them.
    from runner.run.alarms import ALARMS

    annotation = expression("bool | Annotated[int, Range(low=1)]")
    return {name: Parameter(name, annotation=annotation) for name in ALARMS}


def read_top_keys() -> dict[str, Parameter]:
    """The keys of the top level that are no group."""
    tolerate = Parameter("tolerate", annotation=expression("dict | None"))
    return read_keys("Experiment") | {"tolerate": tolerate}


@functools.cache
def plain_keys(group: str) -> dict[str, Parameter]:
    """The keys of a group that is read as it is; none for any other."""
    if group == "tracker":
        return read_keys("Tracking")
    if group == "tolerate":
        return read_alarm_keys() | read_keys("Tolerate")
    return {}


TOP = read_top_keys()
# Groups that are read as they are, without anything to build.
PLAIN_GROUPS = ("tracker", "tolerate")
# Keys beside the arguments of a target: those of every node, which Hydra reads, ...
SPECIAL = {
    "_target_": Parameter("_target_", annotation=expression("str")),
    "_partial_": Parameter("_partial_", annotation=expression("bool")),
}
# ... and those of the nodes of a group, which the runner reads.
PART_CLASSES = {
    "trainer": "TrainerPart",
    "model": "ModelPart",
    "environment": "EnvironmentPart",
    "reward": "RewardPart",
    "metric": "MetricPart",
    "peft": "AdapterPart",
    "optimizer": "OptimizerPart",
    "loss": "LossPart",
    "launcher": "LauncherPart",
    "tracker": "Tracking",
}
RUNNER_KEYS = {group: read_keys(class_name) for group, class_name in PART_CLASSES.items()}
# Groups that may hold several parts by name, whose keys of ours are then one level deeper.
NAMED_PARTS = ("reward", "metric")
# Arguments by which rewards and metrics say what they judge; the other arguments may be columns of
# the rows.
JUDGED = (*metric.SAMPLED, *metric.READ, *metric.LIVE)


@dataclass(frozen=True)
class ValidationContext:
    """A configuration with what is known around it."""

    cfg: Config
    menu: Mapping[str, list[str]] = field(default_factory=dict)  # the options of each group
    allow: Collection[str] = ()  # the packages that the command line opened
    typed: Collection[str] = ()  # the dotted keys on the command line
    # Signatures by target, as far as they were asked for: several checks ask for the same ones.
    signatures: dict[str, Signature | None] = field(default_factory=dict)

    def signature(self, node: object) -> Signature | None:
        """The signature of a node's target; None where there is no node or no such target."""
        target = node.get("_target_") if isinstance(node, dict) else None
        if not isinstance(target, str):
            return None
        if target not in self.signatures:
            self.signatures[target] = read_signature(target)
        return self.signatures[target]

    def mapping(self, path: str) -> Node:
        """The mapping at a dotted key; an empty one where there is none."""
        value = select(self.cfg, path)
        return value if isinstance(value, dict) else {}

    @property
    def trainer(self) -> Signature | None:
        """The signature of the trainer's constructor."""
        return self.signature(self.cfg.get("trainer"))

    @property
    def args(self) -> Node:
        """The fields of the trainer's config that are given."""
        return self.mapping("trainer.args")

    def field(self, name: str) -> Any:
        """A field of the trainer's config: its value, else its default; None where it is none."""
        signature = self.signature(self.args)
        parameter = signature.parameters.get(name) if signature else None
        if parameter is None:
            return None
        return self.args.get(name, parameter.default)

    def has_field(self, name: str) -> bool:
        """True for a field that the trainer's config has, given or not."""
        signature = self.signature(self.args)
        return signature is not None and name in signature.parameters

    def changes_model(self, node: object) -> bool:
        """True for a part that changes the model itself, so that no trainer needs to know of it."""
        signature = self.signature(node)
        return signature is not None and "model" in signature.parameters

    def entries(self, group: str) -> dict[str, object]:
        """The parts of a group, one or several, by their dotted keys; null ones too."""
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
        if not path.startswith(ARGS) or path in self.typed:
            return path
        top_key = FROM_TOP.get(path.removeprefix(ARGS), "")
        top_value = self.cfg.get(top_key)
        if top_value is None:
            return path
        # A trainer's file may put the value into a list, as that of online DPO does. Where the
        # field differs from the top level, it was set for itself.
        text = repr(value)
        if repr(top_value) in (text, text.strip("[]")):
            return top_key
        return path

    @functools.cached_property
    def option(self) -> str:
        """The option of our menu that the trainer is; empty for one of the user's own."""
        return option_of("trainer", self.mapping("trainer").get("_target_"))

    def completed(self, words: Mapping[str, Any]) -> Node:
        """Words for keys of a group, with the options that must be chosen for the keys to exist.

        A path alone becomes the option itself where the menu or the name of a file tells it.
        """
        groups = {word.partition(".")[0] for word in words}
        options: dict[str, Any] = {}
        if groups & {"peft", "quant"} and not self.mapping("peft").get("_target_"):
            options["peft"] = "lora"
        for group in HELD:
            path_key = f"{group}.path"
            if path_key not in words or groups != {group}:
                continue
            name = words[path_key]
            is_option = name in self.menu.get(group, ())
            if is_option or find_place(group, to_text(name), self.menu)[0]:
                return {group: name}
            options[group] = "local" if isinstance(name, list) else "hub"
        for group in self.typed:
            options.pop(group, None)  # the user has chosen another option
        return options | dict(words)

    def takes(self, path: str, words: Collection[str]) -> bool:
        """True for a key that this configuration takes, or would with the options in ``words``."""
        group, *inner = path.split(".")
        # The keys of an option that is not chosen yet are unknown; those of these groups are open.
        if (inner and group in words) or group in ("tracker", "launcher"):
            return True
        if path in self.groups:
            return True
        if path in TOP:
            # These two are null unless the option of the trainer has a use for them.
            return path not in ("learning_rate", "kl_coef") or self.cfg.get(path) is not None
        # The innermost node with a signature decides.
        owner = path
        while "." in owner:
            owner, _, key = owner.rpartition(".")
            signature = self.signature(self.mapping(owner))
            if signature:
                return key in keys_of(owner, signature)
        return False

    @functools.cached_property
    def places(self) -> dict[str, list[str]]:
        """Each key that is right somewhere in this configuration, with its dotted keys there."""
        places = {key: [key] for key in TOP}
        for path, node in nodes(self.cfg):
            signature = self.signature(node)
            keys = keys_of(path, signature) if signature else {}
            for key in keys:
                # Such an argument of a trainer is a group of its own at the top level.
                is_group = path == "trainer" and key in FROM_GROUP
                if not is_group:
                    places.setdefault(key, []).append(f"{path}.{key}")
        return places

    @functools.cached_property
    def trainer_configs(self) -> dict[str, Signature]:
        """The config of each trainer of TRL, experimental ones too, by the trainer's short name."""
        configs: dict[str, Signature] = {}
        stable_names = [f"trl.{name}" for name in public_names("trl")]
        for names in (stable_names, *names_by_subpackage("trl.experimental")):
            for name in names:
                stem = name.removesuffix("Config")
                if stem == name or f"{stem}Trainer" not in names:
                    continue
                signature = read_signature(name)
                if signature:
                    configs[last_key(stem)] = signature
        return configs

    def owners(self, key: str) -> list[str]:
        """The short names of TRL's trainers whose config has a field."""
        # To read every config takes long, and most words that are asked for are in none of them.
        if not any(key in text for text in _config_sources()):
            return []
        return [name for name, config in self.trainer_configs.items() if key in config.parameters]


def _config_sources() -> Iterator[str]:
    """The source texts that may declare a field of one of TRL's configs."""
    modules = list(filter(None, map(find_module, CONFIGS)))
    for module in modules:
        yield module.text
    for module in modules:
        for folder in module.folders:
            for file in Path(folder).rglob("*config.py"):
                yield file.read_text(encoding="utf-8")


def keys_of(path: str, signature: Signature) -> dict[str, Parameter]:
    """The keys that a node may have beside ``_target_``: its target's arguments and our own."""
    group, *rest = path.split(".")
    deepest = 1 if group in NAMED_PARTS else 0
    if len(rest) > deepest:
        return dict(signature.parameters)
    return {**signature.parameters, **RUNNER_KEYS.get(group, {})}


def is_given(node: object) -> bool:
    """True for a part, or for a group with a part that is not null."""
    if isinstance(node, dict):
        return any(value is not None for value in node.values())
    return bool(node)


def is_called_later(path: str, signature: Signature) -> bool:
    """True for a reward or metric that is a function, which gets the columns that it names."""
    group = path.partition(".")[0]
    return group in NAMED_PARTS and any(name in signature.parameters for name in JUDGED)
