"""The keys in which the runs of one name differ, each listed once and under the name that people sweep it by.

What the choice of a trainer, model or dataset brings with it is no axis of its own.
"""

import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from runner.config.machines import processes_of
from runner.run.key import VOLATILE
from runner.run.read import is_finite
from runner.schema.text import Config, flatten

TOP = ("learning_rate", "kl_coef", "seed")
SKIPPED = (VOLATILE - {*TOP}) | {"launcher", "stages", "objective"}
MISSING = "—"
UNREAD = "?"  # in place of a value where the run's config could not be read


@dataclass(frozen=True)
class Axis:
    """A key with its value in each run, UNREAD where the run's config could not be read."""

    key: str
    name: str
    column: tuple[Hashable, ...]
    also: tuple[str, ...] = ()  # keys that go with it: they say the same, or follow from its choice

    @cached_property
    def usual(self) -> Hashable:
        """The value that most runs have."""
        return Counter(entry for entry in self.column if entry is not UNREAD).most_common(1)[0][0]

    @cached_property
    def odd(self) -> dict[int, Hashable]:
        """The values of a few runs, by their places, where each has its own and all others share one: a longer run."""
        odd = {place: entry for place, entry in enumerate(self.column) if entry not in (self.usual, UNREAD)}
        return odd if len(odd) == len(set(odd.values())) <= max(1, len(self.column) // 4) else {}

    @cached_property
    def levels(self) -> list[Hashable]:
        """Its different values, numbers in rising order and before words."""
        found = dict.fromkeys(entry for entry in self.column if entry is not UNREAD)
        return sorted(found, key=lambda entry: (not is_finite(entry), entry if is_finite(entry) else 0, str(entry)))


def axes_of(configs: Sequence[Config], typed: Sequence[Mapping[str, str]] | None = None) -> list[Axis]:
    """The axes of some frozen configs; ``typed`` has the options of groups that each command line chose."""
    read = [index for index, cfg in enumerate(configs) if cfg]
    choices = _choices([configs[index] for index in read], [typed[index] if typed else {} for index in read])
    found: dict[str, tuple[Hashable, ...]] = {}
    also: dict[str, list[str]] = {}
    first: dict[str, Hashable] = {}
    others = []  # of each config only the values that are not those of the first one, because there may be many
    for index in read:
        leaves = {key: _hashable(leaf) for key, leaf in flatten(lasting_keys(configs[index])).items()}
        first = first or leaves
        pairs = ((key, leaves.get(key, MISSING)) for key in {**first, **leaves})
        others.append({key: leaf for key, leaf in pairs if leaf != first.get(key, MISSING)})
    varied = {key for leaves in others for key in leaves if key not in choices}
    keys = [key for key in dict.fromkeys([*first, *(key for leaves in others for key in leaves)]) if key in varied]
    order = sorted(keys, key=lambda key: TOP.index(key) if key in TOP else len(TOP))
    columns = choices | {key: tuple(leaves.get(key, first.get(key, MISSING)) for leaves in others) for key in order}
    for key, column in columns.items():
        # A column adds nothing where it equals another one, or has one value for each choice of a group.
        for other, known in found.items():
            if known == column or (other in choices and len(set(zip(known, column, strict=True))) == len(set(known))):
                also[other].append(key)
                break
        else:
            found[key], also[key] = column, []
    axes = []
    for key in sorted(found, key=lambda key: key == "seed"):
        values = dict(zip(read, found[key], strict=True))
        column = tuple(values.get(index, UNREAD) for index in range(len(configs)))
        axes.append(Axis(key, _short_name(key, list(found)), column, tuple(also[key])))
    return axes


def lasting_keys(cfg: Config) -> Config:
    """The part of a configuration by which runs are distinguished: of how they start only what changes the batch."""
    lasting = {key: node for key, node in cfg.items() if key not in SKIPPED}
    return lasting | ({"launcher": {"num_processes": processes_of(cfg)}} if cfg.get("launcher") else {})


def _choices(configs: Sequence[Config], typed: Sequence[Mapping[str, str]]) -> dict[str, tuple[Hashable, ...]]:
    groups = {key: None for cfg in configs for key, node in cfg.items() if isinstance(node, Mapping)}
    found: dict[str, tuple[Hashable, ...]] = {}
    for group in (group for group in groups if group not in SKIPPED):
        nodes = [cfg.get(group) for cfg in configs]
        labels = _labels(nodes, [words.get(group) for words in typed])
        paths = tuple(_hashable(node.get("path")) if isinstance(node, Mapping) else None for node in nodes)
        if len(set(labels)) > 1:
            found[group] = labels
        elif len(set(paths)) > 1:
            found[f"{group}.path"] = paths
    return found


def _labels(nodes: Sequence[object], typed: Sequence[str | None]) -> tuple[str, ...]:
    """A word for the choice in each run: as typed, or as typed elsewhere for the same target, or the target's name."""
    pairs = [(short_target(node), word) for node, word in zip(nodes, typed, strict=True)]
    words = {target: {word for other, word in pairs if word and other == target} for target in dict(pairs)}
    labels = {target: next(iter(known)) if len(known) == 1 else target for target, known in words.items()}
    return tuple(word or labels[target] for target, word in pairs)


def short_target(node: object) -> str:
    """A group's node in one word: its class without the usual ending, or the names of its entries."""
    if not isinstance(node, Mapping):
        return "none" if node is None else str(node)
    if "_target_" in node:
        return re.sub(r"(?<=.)(Trainer|Config)$", "", str(node["_target_"]).rpartition(".")[2])
    return "+".join(map(str, node))


def _hashable(entry: object) -> Hashable:
    return json.dumps(entry, ensure_ascii=False) if isinstance(entry, list | Mapping) else entry


def _short_name(key: str, keys: Sequence[str]) -> str:
    """The shortest ending of a dotted key that says enough and belongs to no other of the keys.

    >>> keys = ["trainer.args.max_steps", "dataset.path", "peft.r"]
    >>> [_short_name(key, keys) for key in keys]
    ['max_steps', 'dataset.path', 'peft.r']
    """
    parts, others = key.split("."), [f".{other}" for other in keys if other != key]
    ends = (".".join(parts[cut:]) for cut in range(len(parts) - 1, 0, -1))
    return next((end for end in ends if len(end) > 5 and not any(o.endswith(f".{end}") for o in others)), key)
