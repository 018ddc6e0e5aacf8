"""The keys that the runner reads itself, and all that is known around one configuration."""

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.config import GROUPS
from runner.signature import Parameter, Signature, public_names, read_signature, walk
from runner.signature.type import expression

Node = Mapping[str, Any]
Menu = Mapping[str, list[str]]

TOP = {
    "name": "str | None",
    "seed": "int",
    "learning_rate": "float | None",
    "kl_coef": "float | None",
    "allow": "list[str] | None",
    "output_root": "str",
    "objective": "str | None",
    "resume": "str | None",
    "tolerate": "dict | None",
    "on_sick": "Literal['stop', 'rollback']",
    "on_memory": "Literal['halve', 'stop']",
    "attempts": "int",
}
# The names of the alarms in ``health``, which would import torch.
ALARMS = (
    "not_finite",
    "zero_gradient",
    "frozen",
    "exploded",
    "diverged",
    "kl",
    "preferences_inverted",
    "constant_reward",
)
ALARMS += ("first_margin", "gradient_ascent")
# Keys beside the arguments of a target: of every node, and of one group's.
SPECIAL = {"_target_": "str", "_partial_": "bool"}
OWN = {
    "trainer": {
        "form": "str",
        "head": "Literal['lm', 'score']",
        "evaluates": "bool",
    },
    "model": {"tokenizer": "dict"},
    "reward": {"weight": "float", "timeout": "float | None"},
    "metric": {
        "on": "list[str] | None",
        "limit": "int | None",
        "answers": "Literal['right', 'all']",
        "better": "Literal['higher', 'lower']",
        "preprocess": "dict | None",
    },
    "peft": {"full": "list[str] | None"},
    "optimizer": {"groups": "dict | None", "scheduler": "dict | None"},
    "launcher": {"jobs": "int", "timeout_seconds": "float | None", "devices": "list[int | str] | None"},
}
# Arguments by which rewards and metrics say what they judge; the other arguments may be columns of the rows.
JUDGED = ("completions", "completion_ids", "scores", "log_probs", "labels", "logits")
# Arguments of a trainer that are filled from a group rather than from the trainer's own keys.
FROM_GROUP = {
    "model": "model",
    "processing_class": "model",
    "train_dataset": "dataset",
    "eval_dataset": "dataset",
    "quantization_config": "quant",
    "peft_config": "peft",
    "reward_funcs": "reward",
    "data_collator": "collator",
    "callbacks": "callback",
    "compute_loss_func": "loss",
    "optimizers": "optimizer",
    "optimizer_cls_and_kwargs": "optimizer",
}
# Fields of a trainer that a key of the top level sets.
FROM_TOP = {
    "learning_rate": "learning_rate",
    "seed": "seed",
    "beta": "kl_coef",
    "kl_coef": "kl_coef",
}


@dataclass(frozen=True)
class Asked:
    """A configuration with what is known around it: the menu, and what was typed and allowed."""

    cfg: Node
    menu: Menu = field(default_factory=dict)
    allow: Collection[str] = ()
    typed: Collection[str] = ()
    trainers: Mapping[str, str] | None = None
    signatures: dict[str, Signature | None] = field(default_factory=dict)

    def signature(self, node: Any) -> Signature | None:
        """What the target of a node takes, if it is a node and its target exists."""
        target = node.get("_target_") if isinstance(node, dict) else None
        if not isinstance(target, str):
            return None
        if target not in self.signatures:
            self.signatures[target] = read_signature(target)
        return self.signatures[target]

    @property
    def groups(self) -> list[str]:
        """The groups that a configuration may have: of ours, those on the menu if there is one."""
        return [group for group in GROUPS if not self.menu or group in self.menu]

    def options(self, group: str) -> list[str]:
        """The options of a group that choose something."""
        return [name for name in self.menu.get(group, ()) if name != "none"]

    def origin(self, path: str, value: Any) -> str:
        """The key to change for a value: that of the top level where the value comes from there."""
        top = FROM_TOP.get(path.removeprefix("trainer.args."), "")
        given = self.cfg.get(top)
        if not path.startswith("trainer.args.") or path in self.typed or given is None:
            return path
        return top if repr(given) in (repr(value), repr(value).strip("[]")) else path

    @functools.cached_property
    def places(self) -> dict[str, list[str]]:
        """Each key that is right somewhere in this configuration, with where."""
        places: dict[str, list[str]] = {key: [key] for key in TOP}
        for path, node in nodes(self.cfg):
            signature = self.signature(node)
            for key in keys_of(path, signature) if signature else ():
                if not (path == "trainer" and key in FROM_GROUP):
                    places.setdefault(key, []).append(f"{path}.{key}")
        return places

    @functools.cached_property
    def others(self) -> dict[str, Signature]:
        """The config of every trainer by its short name: those given, or all that TRL has."""
        named = self.trainers if self.trainers is not None else dict(_trl_configs())
        found = {name: read_signature(target) for name, target in named.items()}
        return {name: signature for name, signature in found.items() if signature}


def keys_of(path: str, signature: Signature) -> dict[str, Parameter]:
    """The keys that a node may have beside ``_target_``: its target's arguments and our own."""
    return dict(signature.parameters) | _own(path)


def judges(path: str, signature: Signature) -> bool:
    """Whether a node is a function that is called later, with the columns of the rows that it names."""
    return path.split(".")[0] in ("reward", "metric") and bool(set(JUDGED) & set(signature.parameters))


def special_keys() -> dict[str, Parameter]:
    """The keys that any node may have."""
    return {key: Parameter(key, annotation=expression(kind)) for key, kind in SPECIAL.items()}


def _own(path: str) -> dict[str, Parameter]:
    group, *rest = path.split(".")
    if len(rest) > (1 if group in ("reward", "metric") else 0):
        return {}
    kinds = OWN.get(group, {})
    return {key: Parameter(key, annotation=expression(kind)) for key, kind in kinds.items()}


def nodes(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping that has a ``_target_``, wherever it is, with its path; outer ones first."""
    every = walk(value, path) if path else (("", value), *walk(value))
    return ((key, entry) for key, entry in every if isinstance(entry, dict) and "_target_" in entry)


def scalars(cfg: Any) -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping and no list, with its dotted key, in order."""
    return ((key, entry) for key, entry in walk(cfg) if not isinstance(entry, dict | list))


def is_number(value: Any) -> bool:
    """Whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def experimental_names() -> Iterator[list[str]]:
    """The full names in each of TRL's experimental packages."""
    for package in public_names("trl.experimental"):
        full = f"trl.experimental.{package}"
        yield [f"{full}.{name}" for name in public_names(full)]


def _trl_configs() -> Iterator[tuple[str, str]]:
    """The config of each of TRL's trainers, experimental ones too, by the trainer's short name."""
    for names in ([f"trl.{name}" for name in public_names("trl")], *experimental_names()):
        for full in names:
            if full.endswith("Config") and f"{full.removesuffix('Config')}Trainer" in names:
                yield full.rpartition(".")[2].removesuffix("Config"), full
