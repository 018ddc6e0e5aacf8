"""Axolotl: datasets, each with a type of its own, and rewards, which are the user's functions."""

from runner.config.conversion import to_entries
from runner.config.override import is_local
from runner.importers.dataset_entries import hold_out, read_entry, write_rows
from runner.importers.draft import Draft, Part
from runner.importers.reward_entries import read_rewards, type_rewards


def read_axolotl(draft: Draft) -> None:
    """Write the datasets and the rewards."""
    key = "datasets" if draft.keys.get("datasets") is not None else "pretraining_dataset"
    nodes = []
    for index, entry in enumerate(draft.take(key, to_entries, [])):
        if draft.trainer == "sft" and entry.get("type") is None:
            entry["type"] = "chat_template"
        node = read_entry(draft, key, f"{key}[{index}]", entry)
        if draft.trainer != "grpo" and not isinstance(entry.get("type"), str):
            node["form"] = draft.form or "prompt_completion"
        nodes.append(node)
    if not nodes:
        draft.no_equivalent("datasets", "none", "dataset=hub dataset.path=<org/name>")
    hold_out(draft, nodes, "test_datasets", _read_tests(draft))
    write_rows(draft, nodes)
    type_rewards(draft, "trl.reward_funcs", read_rewards(draft, "trl.reward_funcs"))


def _read_tests(draft: Draft) -> list[Part]:
    """The nodes of the datasets that are held out."""
    key = "test_datasets"
    tests = []
    for index, entry in enumerate(draft.read(key, _to_tests, [])):
        is_file = is_local(str(entry.get("path"))) or "data_files" in entry
        entry.setdefault("split", "train" if is_file else "test")  # a file has no other split
        entry.setdefault("type", "chat_template" if draft.trainer == "sft" else None)
        tests.append(read_entry(draft, key, f"{key}[{index}]", entry))
    return tests


def _to_tests(value: object) -> list[Part]:
    """A list of datasets, empty for a value that says there are none."""
    return to_entries(value) if value else []
