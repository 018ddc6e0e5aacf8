"""The reader of each dialect: datasets, rewards, and what else no row of a table can say."""

from collections.abc import Callable, Mapping

from runner.config.conversion import to_words
from runner.config.dialect import find_lineage
from runner.importers.axolotl import read_axolotl
from runner.importers.dataset_entries import write_rows
from runner.importers.draft import Draft
from runner.importers.llama_factory import read_llama_factory
from runner.importers.llama_factory_v1 import read_llama_factory_v1
from runner.importers.open_instruct import read_open_instruct
from runner.importers.openrlhf import read_openrlhf
from runner.importers.swift import read_swift
from runner.importers.torchtune import read_torchtune
from runner.importers.trl import read_trl
from runner.importers.verl import read_verl
from runner.importers.verl_sft import read_verl_sft

Reader = Callable[[Draft], None]

# Those of the dialects that have one; a table below another one shares its reader.
READERS: Mapping[str, Reader] = {
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


def find_reader(dialect: str) -> Reader:
    """The reader of a dialect or of the one below it, else that of paths."""
    for name in find_lineage(dialect):
        if name in READERS:
            return READERS[name]
    return read_paths


def read_paths(draft: Draft) -> None:
    """Write the datasets of a dialect that has a table only: paths, or names on the hub."""
    key = draft.table.sections["datasets"]["keys"][0]
    paths = draft.take(key, to_words, [])
    nodes = [{"path": path, "form": draft.form} for path in paths]
    write_rows(draft, nodes)
