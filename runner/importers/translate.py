"""A configuration that was read -> the draft of an experiment, by the table of its dialect.

The reader of each tool does what no table can say: datasets, rewards, and the little that follows
from several keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from runner.config.dialect import find_lineage, read_table
from runner.importers.axolotl import read_axolotl
from runner.importers.dataset_entries import read_paths
from runner.importers.device_strategy import read_strategy
from runner.importers.draft import SAME, Draft
from runner.importers.follow import follow, follow_rest
from runner.importers.foreign_config import ForeignConfig
from runner.importers.llama_factory import read_llama_factory, read_llama_factory_v1
from runner.importers.open_instruct import read_open_instruct
from runner.importers.openrlhf import read_openrlhf
from runner.importers.swift import read_swift
from runner.importers.torchtune import read_torchtune
from runner.importers.trl import read_trl
from runner.importers.verl import read_verl
from runner.importers.verl_sft import read_verl_sft

VALUE_NONE = ("scale_rewards", "report_to")  # keys of which none is a value
# Those of the dialects that have one; a table below another one shares its reader.
READERS: Mapping[str, Callable[[Draft], None]] = {
    "axolotl": read_axolotl,
    "llama_factory": read_llama_factory,
    "llama_factory_v1": read_llama_factory_v1,
    "open_instruct": read_open_instruct,
    "openrlhf": read_openrlhf,
    "swift": read_swift,
    "torchtune": read_torchtune,
    "trl": read_trl,
    "verl": read_verl,
    "verl_sft": read_verl_sft,
}


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
    _read_rest(draft)
    for key in reading.unknown:
        draft.ask_for_code(key)
    follow_rest(draft)
    noted_keys = {note.key for note in draft.notes}
    for key in sorted(none_keys - noted_keys):
        draft.note(SAME, key, why="as where it is left out")
    for key, remark in reading.overridden.items():
        draft.keys[key] = remark.value
        draft.note(SAME, key, why=remark.why)
    for key, remark in reading.remarks.items():
        draft.keys[key] = remark.value
        draft.no_equivalent(key, remark.why)
    draft.refuse_faults()
    return draft


def _read_rest(draft: Draft) -> None:
    """Have the reader of the dialect, or of the one below it, say what no row of a table can."""
    for name in find_lineage(draft.reading.dialect):
        if name in READERS:
            READERS[name](draft)
            return
    read_paths(draft)
