"""The menu of configs: the groups of a configuration, and the options that each of them offers."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from runner.io.files import MENU
from runner.schema.text import LOADER

GROUPS: tuple[str, ...] = (
    "trainer",
    "model",
    "dataset",
    "peft",
    "quant",
    "collator",
    "reward",
    "loss",
    "weight",
    "metric",
    "optimizer",
    "callback",
    "tracker",
    "launcher",
)
# Groups that a configuration without them does not name, and whose key it does not have.
OPTIONAL = ("loss", "weight", "optimizer")
# Groups whose options are parts with names, so that several go together.
SEVERAL = ("reward", "metric", "callback")
# Those, and one whose options are composed into a single part.
LISTED = (*SEVERAL, "tracker")

Options = dict[str, list[str]]  # the names of the options of each group


def read_menu(folders: Sequence[Path] = ()) -> Options:
    """Every group with the names of its options, those of the user's own folders included."""
    options: dict[str, set[str]] = {}
    for root in (*folders, MENU):
        for file in root.glob("*/*.yaml"):
            if file.is_file():
                options.setdefault(file.parent.name, set()).add(file.stem)
    return {group: sorted(names) for group, names in sorted(options.items())}


@cache
def read_options(group: str) -> dict[str, Any]:
    """The content of each option of a group of the menu, by its name."""
    options = {}
    for file in sorted(MENU.glob(f"{group}/*.yaml")):
        options[file.stem] = yaml.load(file.read_bytes(), LOADER) or {}
    return options


def takes_one(group: str) -> bool:
    """True for a group of the menu of which one option can be chosen."""
    return group not in LISTED and (MENU / group).is_dir()
