"""The keys in which the runs of one name differ, each told once and under the name that people sweep it by.

What the choice of a trainer, model or dataset brings with it is no axis of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.run import VOLATILE
from runner.run.read import is_finite
from runner.schema import flatten

TOP = ("learning_rate", "kl_coef", "seed")
SKIPPED = (VOLATILE - {*TOP, "launcher"}) | {"stages", "objective"}
MISSING = "—"


@dataclass(frozen=True)
class Axis:
    """A key with its value in each run, None where the run's config could not be read.

    ``also`` names the keys that go with it: they say the same, or follow from its choice.
    """

    key: str
    name: str
    column: tuple[Any, ...]
    also: tuple[str, ...] = ()

    @property
    def levels(self) -> list[Any]:
        """Its different values, numbers in rising order and before words."""
        found = dict.fromkeys(entry for entry in self.column if entry is not UNREAD)
        return sorted(found, key=lambda entry: (not is_finite(entry), entry if is_finite(entry) else 0, str(entry)))


class _Unread:
    """In place of a value where the config could not be read."""

    def __str__(self) -> str:
        return "?"


UNREAD = _Unread()


def axes_of(configs: Sequence[Mapping[str, Any]], typed: Sequence[Mapping[str, str]] | None = None) -> list[Axis]:
    """The axes of some frozen configs; ``typed`` has the options of groups that each command line chose.

    >>> [(axis.name, axis.also) for axis in axes_of([{"kl_coef": k, "trainer": {"args": {"beta": k}}} for k in (1, 2)])]
    [('kl_coef', ('trainer.args.beta',))]
    """
    read = [index for index, cfg in enumerate(configs) if cfg]
    whole = [configs[index] for index in read]
    words = [(typed or [{}] * len(configs))[index] for index in read]
    found: dict[str, tuple[Hashable, ...]] = {}
    also: dict[str, list[str]] = {}
    choices = _choices(whole, words)
    for key, column in _columns(whole, choices):
        if len(set(column)) > 1:
            holder = next((other for other in found if _tells(found[other], column, other in choices)), None)
            also.setdefault(holder or key, []).extend([key] if holder else [])
            found |= {} if holder else {key: column}
    shorts = _short_names(list(found))
    order = sorted(found, key=lambda key: key == "seed")
    columns = {key: dict(zip(read, column, strict=True)) for key, column in found.items()}
    values = {key: tuple(columns[key].get(index, UNREAD) for index in range(len(configs))) for key in order}
    return [Axis(key, shorts[key], values[key], tuple(also[key])) for key in order]


def lasting_keys(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration by which runs are told apart."""
    return {key: node for key, node in cfg.items() if key not in SKIPPED}


def is_of_launch(key: str) -> bool:
    """True for a key that says how a run is started, but for the one that changes its batch."""
    return key.startswith("launcher.") and key != "launcher.num_processes"


def _columns(
    configs: Sequence[Mapping[str, Any]], choices: Mapping[str, tuple[Hashable, ...]]
) -> Iterator[tuple[str, tuple[Hashable, ...]]]:
    """Each key with its values over the runs: choices of groups first, then the keys of the top, then all others."""
    flat = [flatten(lasting_keys(cfg)) for cfg in configs]
    keys = {key: None for leaf in flat for key in leaf if not is_of_launch(key)}
    yield from choices.items()
    for key in [*(key for key in TOP if key in keys), *(key for key in keys if key not in (*TOP, *choices))]:
        yield key, tuple(_hashable(leaf.get(key, MISSING)) for leaf in flat)


def _choices(
    configs: Sequence[Mapping[str, Any]], typed: Sequence[Mapping[str, str]]
) -> dict[str, tuple[Hashable, ...]]:
    """The choice from each group, and where no word tells it, the path of its model or dataset."""
    groups = {key: None for cfg in configs for key, node in cfg.items() if isinstance(node, Mapping)}
    found = {}
    for group in (group for group in groups if group not in SKIPPED and group != "launcher"):
        nodes = [cfg.get(group) for cfg in configs]
        labels = tuple(_labels(nodes, [words.get(group) for words in typed]))
        paths = tuple(node.get("path") if isinstance(node, Mapping) else None for node in nodes)
        if len(set(labels)) > 1:
            found[group] = labels
        elif len(set(map(_hashable, paths))) > 1:
            found[f"{group}.path"] = tuple(map(_hashable, paths))
    return found


def _labels(nodes: Sequence[Any], typed: Sequence[str | None]) -> Iterator[str]:
    """A word for the choice in each run: as typed, or as typed elsewhere for the same target, or the target's name."""
    words: dict[str, set[str]] = {}
    for node, word in zip(nodes, typed, strict=True):
        words.setdefault(short_target(node), set()).update([word] if word else [])
    for node, word in zip(nodes, typed, strict=True):
        known = words[short_target(node)]
        yield word or (next(iter(known)) if len(known) == 1 else short_target(node))


def short_target(node: Any) -> str:
    """A group's node in one word: its class without the usual ending, or the names of its entries.

    >>> short_target({"_target_": "trl.DPOTrainer"}), short_target({"exact": {}, "words": {}}), short_target(None)
    ('DPO', 'exact+words', 'none')
    """
    if not isinstance(node, Mapping):
        return "none" if node is None else str(node)
    if "_target_" in node:
        return re.sub(r"(?<=.)(Trainer|Config)$", "", str(node["_target_"]).rpartition(".")[2])
    return "+".join(map(str, node))


def _tells(holder: tuple[Hashable, ...], column: tuple[Hashable, ...], choice: bool) -> bool:
    """True where a column has nothing to add: equal values, or each choice of a group has one value of it."""
    return holder == column or (choice and len(set(zip(holder, column, strict=True))) == len(set(holder)))


def _hashable(entry: Any) -> Hashable:
    return json.dumps(entry, ensure_ascii=False) if isinstance(entry, list | Mapping) else entry


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """The shortest ending of each dotted key that says enough and is nobody else's.

    >>> _short_names(["trainer.args.max_steps", "dataset.path", "peft.r"])
    {'trainer.args.max_steps': 'max_steps', 'dataset.path': 'dataset.path', 'peft.r': 'peft.r'}
    """
    found = {}
    for key in keys:
        parts = key.split(".")
        endings = [".".join(parts[cut:]) for cut in range(len(parts) - 1, -1, -1)]
        clear = [end for end in endings if len(end) > 5 or end == key]
        alone = [end for end in clear if not any(other != key and f".{other}".endswith(f".{end}") for other in keys)]
        found[key] = (alone or [key])[0]
    return found
