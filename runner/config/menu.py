"""The menu of configs: the groups of a configuration, and the options that each of them offers."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from runner.io.files import MENU
from runner.schema.text import LOADER

GROUPS: tuple[str, ...] = ("trainer", "model", "dataset", "peft", "quant", "collator", "reward", "loss", "weight")
GROUPS += ("metric", "optimizer", "callback", "tracker", "launcher")
OPTIONAL = ("loss", "weight", "optimizer")  # which a configuration without them does not name, nor its key
SEVERAL = ("reward", "metric", "callback")  # whose options are parts with names, so that several go together
LISTED = (*SEVERAL, "tracker")  # and one whose options are composed into one part
Options = dict[str, list[str]]  # each group with the names of its options


def read_menu(folders: Sequence[Path] = ()) -> Options:
    """Every group with the names of its options, the user's own folders included."""
    options: dict[str, set[str]] = {}
    for file in filter(Path.is_file, (file for root in (*folders, MENU) for file in root.glob("*/*.yaml"))):
        options.setdefault(file.parent.name, set()).add(file.stem)
    return {group: sorted(names) for group, names in sorted(options.items())}


@cache
def read_options(group: str) -> dict[str, Any]:
    """The content of each option of a group of the menu, by its name."""
    return {file.stem: yaml.load(file.read_bytes(), LOADER) or {} for file in sorted(MENU.glob(f"{group}/*.yaml"))}


def takes_one(group: str) -> bool:
    """True for a group of the menu of which one option can be chosen."""
    return group not in LISTED and (MENU / group).is_dir()
