"""The name that runs have unless one is typed: their trainer, their model and their dataset.

A model or a dataset of the menu is called by its option, and one that lies in a folder, in a file
or on the hub by the last part of its path. Earlier versions called such a one ``hub`` or
``local``; the runs that they named are still found.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from runner.io.filetype import ROW_ENDINGS
from runner.schema.text import Config, select

if TYPE_CHECKING:
    from omegaconf import DictConfig

# The options that say where a part lies, and not which one it is.
PLACES = {"model": ("hub",), "dataset": ("local", "hub")}
# The option of a dataset whose rows another group makes, and by whose option it is called.
ENVIRONMENT = "environment"
MAX_LETTERS = 60  # of a part of the name


def register_short_name() -> None:
    """Let configurations say ``${short_name:model}``, as the name in ``conf/config.yaml`` does."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("short_name", _short_name, replace=True)


def _short_name(group: str, *, _root_: "DictConfig") -> str:
    """The option of a group, or the last part of the path that it has in its place.

    Rows that an environment makes are called by the option of that.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    choices = HydraConfig.get().runtime.choices
    option = str(choices[group])
    if option == ENVIRONMENT and str(choices.get(ENVIRONMENT)) != "none":
        option = str(choices[ENVIRONMENT])
    if option not in PLACES[group]:
        return option
    return name_of_path(OmegaConf.select(_root_, f"{group}.path")) or option


def name_of_path(path: object) -> str:
    """The last part of a path that has letters, without what no folder is called.

    A path into a run is called by the name of the run. Empty for what is no path.

    >>> name_of_path("Qwen/Qwen2.5-0.5B"), name_of_path("data/rows.jsonl.gz")
    ('qwen2.5-0.5b', 'rows')
    >>> name_of_path("data/*.jsonl"), name_of_path(None)
    ('data', '')
    >>> name_of_path(f"{'a' * 300}/rows.jsonl")
    'rows'
    """
    if not isinstance(path, str):
        return ""
    for folder in Path(path).parents:
        if os.path.isfile(folder / "status.json"):  # False for a path that is too long, too
            return folder_name(os.path.abspath(folder.parent))
    return folder_name(path)


def folder_name(path: str) -> str:
    """The last part of a path that has letters or digits, as people type the name of a folder."""
    for part in reversed(path.lower().split("/")):
        for ending in reversed(ROW_ENDINGS):
            part = part.removesuffix(ending)
        name = re.sub(r"[^a-z0-9._-]+", "-", part)[:MAX_LETTERS].strip("-._")
        if name:
            return name
    return ""


def former_names(cfg: Config) -> list[str]:
    """The names that a run with this default name may have had before; none for any other name."""
    names = [str(cfg["name"])]
    for group, options in PLACES.items():
        path = select(cfg, f"{group}.path")
        part = f"-{name_of_path(path)}"
        for name in list(names):
            # The dataset comes last.
            pieces = name.rpartition(part) if group == "dataset" else name.partition(part)
            head, found, tail = pieces
            if part != "-" and found and tail[:1] in ("", "-"):
                names += [f"{head}-{option}{tail}" for option in options]
    return names[1:]
