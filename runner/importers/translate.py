"""A configuration that was read -> the draft of an experiment, by the table of its dialect.

The reader of each tool, in a module of its name, does what no table can say: datasets, rewards, and
the little that follows from several keys.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.config.conversion import to_words
from runner.config.dialect import find_lineage, read_table
from runner.errors import ConfigError
from runner.importers.axolotl import read_axolotl
from runner.importers.dataset_entries import write_rows
from runner.importers.device_strategy import read_strategy
from runner.importers.draft import SAME, Draft
from runner.importers.follow import follow, follow_rest
from runner.importers.foreign_config import ForeignConfig
from runner.importers.llama_factory import read_llama_factory
from runner.importers.llama_factory_v1 import read_llama_factory_v1
from runner.importers.swift import read_swift
from runner.importers.trl import read_trl

MAX_NAME_LETTERS = 95  # with .yaml it is a file
FIRST_KEYS = ("seed", "learning_rate", "kl_coef")
VALUE_NONE = ("scale_rewards", "report_to")  # keys of which none is a value


def name_of(path: Path) -> str:
    """A name for the experiment of a file: that of the file, in letters that need no quotes."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", path.stem).strip("_").lower()
    if name.isdigit():  # no option of a menu is a number
        name = f"imported_{name}"
    return name[:MAX_NAME_LETTERS] or "imported"


def content_of(draft: Draft) -> dict[str, Any]:
    """The experiment of a draft, as its file in ``conf/experiment/`` says it."""
    defaults: list[Any] = [{f"override /{group}": name} for group, name in draft.choices.items()]
    content: dict[str, Any] = {"defaults": [*defaults, "_self_"], "name": draft.name}
    for key in FIRST_KEYS:
        if key in draft.values:
            content[key] = draft.values[key]
    for key, node in draft.values.items():
        if node not in ({}, {"args": {}}):
            content[key] = node
    return content


def translate(reading: ForeignConfig, name: str, trainer: str | None = None) -> Draft:
    """The draft of an experiment; ConfigError with every value that cannot be taken.

    ``trainer`` takes the place of the subcommand in the file.
    """
    table = read_table(reading.dialect)
    draft = Draft(name, table, replace(reading, command=trainer or reading.command))
    draft.add(reading.keys)
    draft.keys |= reading.facts
    draft.handled |= reading.facts.keys()
    none_keys = set()
    for key, value in draft.keys.items():
        if value == "none" and key.split(".")[-1] not in VALUE_NONE:
            none_keys.add(key)
            draft.keys[key] = None
    for default in table.defaults:
        if draft.meets(default):
            draft.imply(default.give)
    follow(draft, *table.sections["first"])
    read_strategy(draft)
    readers = [READERS[name] for name in find_lineage(reading.dialect) if name in READERS]
    read = readers[0] if readers else read_paths
    read(draft)
    for key in reading.unknown:
        draft.ask_for_code(key)
    follow_rest(draft)
    noted_keys = {note.key for note in draft.notes}
    for key in sorted(none_keys - noted_keys):
        draft.note(SAME, key, why="as where it is left out")
    for key, remark in reading.remarks.items():
        draft.keys[key] = remark.value
        draft.no_equivalent(key, remark.why)
    ConfigError.refuse(draft.faults)
    return draft


def read_paths(draft: Draft) -> None:
    """Write the datasets of a dialect that has a table only: paths, or names on the hub."""
    key = draft.table.sections["datasets"]["keys"][0]
    paths = draft.take(key, to_words, [])
    nodes = [{"path": path, "form": draft.form} for path in paths]
    write_rows(draft, nodes)


# The reader of each dialect; one that has a table below it shares the reader of that.
READERS: Mapping[str, Callable[[Draft], None]] = {
    "axolotl": read_axolotl,
    "llama_factory": read_llama_factory,
    "llama_factory_v1": read_llama_factory_v1,
    "swift": read_swift,
    "trl": read_trl,
}
