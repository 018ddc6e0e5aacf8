"""The name that runs have unless one is typed: their trainer, their model and their dataset.

A model or a dataset of the menu is called by its option, and one that lies in a folder, in a file
or on the hub by the last part of its path. Earlier versions called such a one ``hub`` or
``local``, and knew no letters beyond ASCII; the runs that they named are still found.
"""

import functools
import os
import re
import unicodedata
from collections.abc import Callable
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
MAX_BYTES = 60  # of a part of the name


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


# The jobs of a sweep have most words in common.
@functools.lru_cache(maxsize=4096)
def spelt(text: str) -> str:
    """A text with a dash for what people do not type in names; its letters stay in any script.

    >>> spelt("Modèle v1.0 (数据)"), spelt("cafe\u0301")
    ('Modèle-v1.0-数据-', 'café')
    """
    signs = []
    for sign in unicodedata.normalize("NFC", text):
        # Letters, the marks that belong to them, and numbers.
        category = unicodedata.category(sign)
        is_kept = sign in "._-" or category[0] in "LMN"
        signs.append(sign if is_kept else " ")
    spaced = "".join(signs)
    return re.sub(" +", "-", spaced)


def ascii_spelt(text: str) -> str:
    """The same, with a dash for letters beyond ASCII, too, as earlier versions named runs."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


def shortened_to(text: str, size: int) -> str:
    """The first letters of a text that take at most ``size`` bytes in the name of a file."""
    return text.encode()[:size].decode(errors="ignore")


def name_of_path(path: object, spell: Callable[[str], str] = spelt) -> str:
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
            return folder_name(os.path.abspath(folder.parent), spell)
    return folder_name(path, spell)


def folder_name(path: str, spell: Callable[[str], str] = spelt) -> str:
    """The last part of a path that has letters or digits, as people type the name of a folder."""
    for part in reversed(path.lower().split("/")):
        for ending in reversed(ROW_ENDINGS):
            part = part.removesuffix(ending)
        name = shortened_to(spell(part), MAX_BYTES).strip("-._")
        if name:
            return name
    return ""


def former_names(cfg: Config) -> list[str]:
    """The names that a run with this default name may have had before; none for any other name."""
    names = [str(cfg["name"])]
    for group, options in PLACES.items():
        path = select(cfg, f"{group}.path")
        part = name_of_path(path)
        words = list(options)
        ascii_part = name_of_path(path, ascii_spelt)
        if ascii_part not in ("", part):
            words.append(ascii_part)
        for name in list(names):
            sign = f"-{part}"
            if group == "dataset":  # which comes last
                head, found, tail = name.rpartition(sign)
            else:
                head, found, tail = name.partition(sign)
            if part and found and tail[:1] in ("", "-"):
                names += [f"{head}-{word}{tail}" for word in words]
    return names[1:]
