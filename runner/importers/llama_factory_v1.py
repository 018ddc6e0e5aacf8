"""LLaMA-Factory, its new format v1: datasets in a file that lists them with their converters."""

from runner.config.conversion import to_mapping, to_plain_text
from runner.importers.dataset_entries import read_entry, write_rows
from runner.importers.draft import Draft
from runner.importers.follow import follow
from runner.importers.foreign_config import Keys, read_named

# An entry of the list that says no more than its name.
BARE_ENTRY = {"path": "???", "converter": "none"}


def read_llama_factory_v1(draft: Draft) -> None:
    """Write the datasets and the method: that of the command, or else the one for such rows."""
    name = draft.take("train_dataset", to_plain_text, "???")
    entries: Keys = {"train_dataset": {"path": name}}
    if name.endswith((".yaml", ".yml")):
        listed_entries = read_named(draft.reading.path, name)
        entries = {name: {"path": "???"}} if listed_entries is None else listed_entries
    rows = {}
    for entry_name, entry in entries.items():
        rows[entry_name] = draft.convert(entry_name, entry, to_mapping, {})

    has_pairs = all(entry.get("converter") == "pair" for entry in rows.values())
    method = draft.reading.command
    if method in ("", "train"):
        method = "dpo" if has_pairs else "sft"
    draft.keys.setdefault("stage", method)
    draft.implied.add("stage")
    follow(draft, "stage")

    nodes = []
    for entry_name, entry in rows.items():
        nodes.append(read_entry(draft, entry_name, BARE_ENTRY | entry))
    write_rows(draft, nodes)
