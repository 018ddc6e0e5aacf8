"""The keys in which the runs of a name differ, each under the short name that people know it by.

A key whose value follows from the choice of a trainer, a model or a dataset is no axis of its own.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from runner.config.machines import processes_of
from runner.report.number import format_typed
from runner.run.history import is_finite
from runner.run.key import VOLATILE, drop_factor
from runner.schema.text import Config, flatten, select, short_key

# Keys at the top of a config from which keys of its groups take their values.
TOP_KEYS = ("learning_rate", "kl_coef", "seed")
SKIPPED = (VOLATILE - {*TOP_KEYS}) | {"launcher", "stages", "objective"}
MISSING = "—"
UNREAD = "?"  # the value of a run whose config could not be read

Leaves = dict[str, Hashable]  # the values of a config by their dotted keys
Columns = dict[str, tuple[Hashable, ...]]  # the values of each key, one for each config


@dataclass(frozen=True)
class Axis:
    """A key in which runs differ."""

    key: str
    name: str  # the shortest ending of the key that says enough
    column: tuple[Hashable, ...]  # the value of each run, MISSING or UNREAD where it has none
    also: tuple[str, ...] = ()  # keys with the same values, or whose values follow from this one
    typed: Mapping[Hashable, str] = field(default_factory=dict)  # numbers as they were typed

    @cached_property
    def usual(self) -> Hashable:
        """The value that most runs have."""
        read_values = [value for value in self.column if value != UNREAD]
        counts = Counter(read_values)
        return counts.most_common(1)[0][0]

    @cached_property
    def odd(self) -> dict[int, Hashable]:
        """The values of a few exceptional runs by their index, such as one that was trained longer.

        Empty unless the exceptions are at most a quarter of the runs and all differ.
        """
        exceptions = {}
        for index, value in enumerate(self.column):
            if value not in (self.usual, UNREAD):
                exceptions[index] = value
        are_few = len(exceptions) <= max(1, len(self.column) // 4)
        are_distinct = len(exceptions) == len(set(exceptions.values()))
        return exceptions if are_few and are_distinct else {}

    def text_of(self, value: Hashable) -> str:
        """A value of this key as it is shown."""
        return format_typed(value, self.typed.get(value))

    @cached_property
    def levels(self) -> list[Hashable]:
        """The different values: numbers in ascending order, then texts."""
        read_values = [value for value in self.column if value != UNREAD]
        return sorted(dict.fromkeys(read_values), key=_numbers_first)


def _numbers_first(value: Hashable) -> tuple[bool, float, str]:
    """A key to sort by: numbers in ascending order, then texts."""
    if is_finite(value):
        return False, value, str(value)
    return True, 0.0, str(value)


def axes_of(
    configs: Sequence[Config], typed: Sequence[Mapping[str, str]] | None = None
) -> list[Axis]:
    """The axes of some composed configs, the seed last.

    ``typed`` holds, for each config, the options of groups that its command line chose. An empty
    config is one that could not be read.
    """
    if typed is None:
        typed = [{}] * len(configs)
    readable = [index for index, cfg in enumerate(configs) if cfg]
    readable_configs = [configs[index] for index in readable]
    readable_typed = [typed[index] for index in readable]
    choices = _choice_columns(readable_configs, readable_typed)
    columns = choices | _key_columns(readable_configs, skip=choices)

    axis_columns: Columns = {}
    followers: dict[str, list[str]] = {}
    for key, column in columns.items():
        leader = _find_leader(column, axis_columns, choices)
        if leader:
            followers[leader].append(key)
        else:
            axis_columns[key] = column
            followers[key] = []

    keys = [key for key in axis_columns if key != "seed"]
    if "seed" in axis_columns:
        keys.append("seed")
    axes = []
    for key in keys:
        values: list[Hashable] = [UNREAD] * len(configs)
        for index, value in zip(readable, axis_columns[key], strict=True):
            values[index] = value
        name = short_key(key, list(axis_columns))
        also = tuple(followers[key])
        axes.append(Axis(key, name, tuple(values), also))
    return axes


def comparable_part(cfg: Config) -> Config:
    """The part of a config by which runs are compared.

    It has only the number of processes of the launcher, because that changes the batch.
    """
    part = {key: node for key, node in cfg.items() if key not in SKIPPED}
    drop_factor(part)
    if cfg.get("launcher"):
        part["launcher"] = {"num_processes": processes_of(cfg)}
    return part


def _choice_columns(configs: Sequence[Config], typed: Sequence[Mapping[str, str]]) -> Columns:
    """The options of each group in which the configs differ, or its paths if only these differ."""
    groups: dict[str, None] = {}
    for cfg in configs:
        for key, node in cfg.items():
            if isinstance(node, Mapping) and key not in SKIPPED:
                groups[key] = None
    columns: Columns = {}
    for group in groups:
        nodes = [cfg.get(group) for cfg in configs]
        words = [options.get(group) for options in typed]
        labels = _option_labels(nodes, words)
        if len(set(labels)) > 1:
            columns[group] = labels
            continue
        paths = []
        for node in nodes:
            path = select(node, "path")
            paths.append(_hashable(path))
        if len(set(paths)) > 1:
            columns[f"{group}.path"] = tuple(paths)
    return columns


def _option_labels(nodes: Sequence[object], typed: Sequence[str | None]) -> tuple[str, ...]:
    """A word for the option of each run.

    It is the word that was typed for the run, or else the one word that other runs typed for the
    same target, or else the name of the target.
    """
    targets = [short_target(node) for node in nodes]
    words: dict[str, set[str]] = defaultdict(set)
    for target, word in zip(targets, typed, strict=True):
        if word:
            words[target].add(word)
    labels = []
    for target, word in zip(targets, typed, strict=True):
        if word:
            labels.append(word)
        elif len(words[target]) == 1:
            labels.extend(words[target])
        else:
            labels.append(target)
    return tuple(labels)


def _key_columns(configs: Sequence[Config], skip: Collection[str]) -> Columns:
    """The values of each dotted key in which the configs differ, first those of TOP_KEYS."""
    first = _leaves_of(configs[0]) if configs else {}
    # Of each config only what differs from the first is kept, since there may be thousands.
    changes = []
    varied: dict[str, None] = {}
    for cfg in configs:
        leaves = _leaves_of(cfg)
        change: Leaves = {}
        for key in {**first, **leaves}:
            value = leaves.get(key, MISSING)
            if value != first.get(key, MISSING):
                change[key] = value
                varied[key] = None
        changes.append(change)
    ordered = dict.fromkeys([*TOP_KEYS, *first, *varied])
    columns = {}
    for key in ordered:
        if key not in varied or key in skip:
            continue
        usual = first.get(key, MISSING)
        values = [change.get(key, usual) for change in changes]
        columns[key] = tuple(values)
    return columns


def _leaves_of(cfg: Config) -> Leaves:
    """The values by which a config is compared with others."""
    leaves = flatten(comparable_part(cfg))
    return {key: _hashable(value) for key, value in leaves.items()}


def _find_leader(
    column: tuple[Hashable, ...], columns: Columns, choices: Collection[str]
) -> str | None:
    """The key that a column follows: it has the same values, or is a choice that decides them.

    So a sweep over two trainers is one axis, and not one for each argument that they do not share.
    """
    for key, leading in columns.items():
        if column == leading:
            return key
        if key in choices:
            # It decides the column if each of its options goes with one value.
            options = set(leading)
            pairs = set(zip(leading, column, strict=True))
            if len(pairs) == len(options):
                return key
    return None


def short_target(node: object) -> str:
    """A group in one word: its class without Trainer or Config, or the names of its parts."""
    if node is None:
        return "none"
    if not isinstance(node, Mapping):
        return str(node)
    if "_target_" in node:
        target = str(node["_target_"])
        _, _, class_name = target.rpartition(".")
        return re.sub(r"(?<=.)(Trainer|Config)$", "", class_name)
    return "+".join(map(str, node))


def _hashable(value: object) -> Hashable:
    """A value that can be counted: a list or a node as its JSON."""
    if isinstance(value, list | Mapping):
        return json.dumps(value, ensure_ascii=False)
    return value
