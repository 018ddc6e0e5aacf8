"""LLaMA-Factory: datasets are names in a list of theirs, ``dataset_info.json``, or of the hub.

In its new format v1 they stand in a file that lists them with their converters.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from runner.config.conversion import to_mapping, to_plain_text, to_whole_number, to_words
from runner.config.dialect import is_wanted
from runner.config.limits import check_size
from runner.errors import ConfigError, Fault
from runner.importers.dataset_entries import hold_out, read_entry, write_rows
from runner.importers.draft import FIX, MAPPED, Draft, Part
from runner.importers.follow import follow
from runner.importers.foreign_config import Keys, read_named
from runner.schema.text import Node

LIST = "dataset_info.json"
IMAGE_PIXELS = 768 * 768  # the most that an image has by default
# Keys by which the answers in the history of a demonstration are not trained, or more than those.
HISTORY_KEYS = ("mask_history", "train_on_prompt")
# An entry of the list that says no more than its name.
BARE_ENTRY = {"path": "???", "converter": "none"}


def read_llama_factory(draft: Draft) -> None:
    """Write the datasets, and what follows from their columns."""
    folder = draft.read("dataset_dir", to_plain_text, "data").rstrip("/")
    folder = folder.replace("REMOTE:", "hf://datasets/")
    entries = _read_list(folder, draft.reading.path.parent)
    names = draft.take("dataset", to_words, [])
    nodes = [_to_node(draft, name, folder, entries) for name in names]
    test_names = draft.read("eval_dataset", to_words, [])
    tests = [_to_node(draft, name, folder, entries) for name in test_names]
    hold_out(draft, nodes, "eval_dataset", tests)
    if _has_images(nodes):
        draft.imply({"image_max_pixels": IMAGE_PIXELS})
    if is_wanted(draft.keys.get("finetuning_type"), "lora"):
        draft.imply({"lora_alpha": 2 * draft.read("lora_rank", to_whole_number, 0)})
    write_rows(draft, nodes)
    if any(_has_history(entries.get(name)) for name in names):
        _train_history(draft)


def _read_list(folder: str, beside: Path) -> Node:
    """The entries of the list of datasets by their names; none where there is no such list.

    The list is looked for in the folder as it is typed, and ``beside`` their file.
    """
    for place in (Path(folder), beside / folder, beside, beside / Path(folder).name):
        file = place / LIST
        if not file.is_file():
            continue
        check_size(file)
        try:
            return to_mapping(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                Fault(
                    where=str(file),
                    found=str(error),
                    expected="a list of datasets, by name",
                    fix=FIX,
                )
            ) from None
    return {}


def _to_node(draft: Draft, name: str, folder: str, entries: Node) -> Part:
    """The node of a dataset by its name; one that is in no list is a file, or of the hub."""
    form = "text" if draft.keys.get("stage") == "pt" else draft.form
    where = f"{LIST}: {name}"
    entry = draft.convert(where, entries.get(name) or {}, to_mapping, {})
    if not entry:
        path = name
        if "/" not in name:
            path = f"{folder}/{name}.json"
            why = f"in no {LIST} here"
            draft.lose_part("dataset", f": {name}", why, f"dataset.path: {path}, a guess")
        # Columns show a prompt with its completion by themselves.
        return {"path": path} if form == "prompt_completion" else {"path": path, "form": form}
    if "file_name" in entry:
        entry["file_name"] = f"{folder}/{entry['file_name']}"
    columns = entry.get("columns", {})
    if entry.get("formatting") in ("sharegpt", "openai") and isinstance(columns, dict):
        entry["columns"] = {"messages": "conversations", **columns}
    node = {"form": form, **read_entry(draft, where, entry)}
    if "messages" not in entry.get("columns", {}):
        node["context_separator"] = "\n"
    if node["path"] == "???":
        why = "neither a file nor of the hub"
        draft.lose_part("dataset", f": {name}", why, "dataset.path=<folder>")
    return node


def _has_images(nodes: Sequence[Node]) -> bool:
    return any("images" in node.get("columns", {}) for node in nodes)


def _has_history(entry: object) -> bool:
    """True for an entry of the list whose rows have turns before the last question."""
    columns = entry.get("columns") if isinstance(entry, dict) else None
    return isinstance(columns, dict) and bool(columns.get("history"))


def _train_history(draft: Draft) -> None:
    """Train the answers in the history of a demonstration, which is a part of our prompt."""
    is_left_out = any(is_wanted(draft.keys.get(key), "enabled") for key in HISTORY_KEYS)
    if draft.keys.get("stage") != "sft" or is_left_out:
        return
    if _has_images(draft.parts):
        draft.no_equivalent("dataset", "the answers in the history are not trained beside images")
        return
    draft.put("trainer.form", "messages")
    draft.choices["weight"] = "answers"
    why = "the answers in the history are trained"
    draft.note(MAPPED, "dataset", "trainer.form: messages, weight=answers", why)


# --- Format v1 ------------------------------------------------------------------------------------


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
