"""The menu of configs: the options that each group of a configuration offers."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from runner.config.groups import LISTED
from runner.io.files import MENU

FOLDER_FLAGS = ("--config-dir", "-cd")

Options = dict[str, list[str]]  # the names of the options of each group


def read_menu(folders: Sequence[Path] = ()) -> Options:
    """Every group with the names of its options, those of the user's own folders included."""
    options: dict[str, set[str]] = {}
    for root in (*folders, MENU):
        if not root.is_dir():
            continue
        for group in os.listdir(root):
            for file in _list_files(os.path.join(root, group)):
                name, ending = os.path.splitext(file)
                if ending == ".yaml":
                    options.setdefault(group, set()).add(name)
    sorted_options = {}
    for group in sorted(options):
        sorted_options[group] = sorted(options[group])
    return sorted_options


def _list_files(folder: str) -> list[str]:
    """The names of the files of a folder; none where it is no folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file()]
    except OSError:
        return []


@cache
def read_options(group: str) -> dict[str, Any]:
    """The content of each option of a group of the menu, by its name."""
    # The names of options are known without a reader of YAML.
    import yaml

    from runner.io.fast_yaml import LOADER

    options = {}
    for file in sorted(MENU.glob(f"{group}/*.yaml")):
        options[file.stem] = yaml.load(file.read_bytes(), LOADER) or {}
    return options


def option_of(group: str, target: object) -> str:
    """The option of the menu whose node has this ``_target_``; empty for no such one."""
    for name, content in read_options(group).items():
        node = content.get(group, content)
        if target and isinstance(node, Mapping) and node.get("_target_") == target:
            return name
    return ""


def takes_one(group: str) -> bool:
    """True for a group of the menu of which one option can be chosen."""
    return group not in LISTED and (MENU / group).is_dir()
