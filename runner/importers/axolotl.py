"""Axolotl: datasets, each with a type of its own, and rewards, which are the user's functions."""

from collections.abc import Sequence

from runner.config.conversion import to_entries
from runner.config.override import is_local
from runner.importers.dataset_entries import hold_out, read_entry, write_rows
from runner.importers.draft import MAPPED, Draft, Part
from runner.importers.reward_entries import read_rewards, type_rewards


def read_axolotl(draft: Draft) -> None:
    """Write the datasets and the rewards."""
    key = "datasets"
    if draft.keys.get(key) is None:
        key = "pretraining_dataset"
    entries = draft.take(key, to_entries, [])
    nodes = []
    _choose_style(draft, key, entries)
    for index, entry in enumerate(entries):
        if draft.trainer == "sft" and entry.get("type") is None:
            entry["type"] = "chat_template"
        node = read_entry(draft, f"{key}[{index}]", entry)
        if draft.trainer != "grpo" and not isinstance(entry.get("type"), str):
            node["form"] = draft.form or "prompt_completion"
        nodes.append(node)
    if not nodes:
        draft.no_equivalent("datasets", "none", "dataset=hub dataset.path=<org/name>")
    tests = _read_tests(draft)
    hold_out(draft, nodes, "test_datasets", tests)
    write_rows(draft, nodes)
    rewards = read_rewards(draft, "trl.reward_funcs")
    type_rewards(draft, "trl.reward_funcs", rewards)


def _choose_style(draft: Draft, key: str, entries: Sequence[Part]) -> None:
    """Choose the prompt style of all datasets, where it is one that is here as well.

    It is that of the rows, whatever template is kept with the tokenizer.
    """
    our_styles: dict[str, str] = draft.table.sections["styles"]
    styles = set()
    for entry in entries:
        name = str(entry.get("type"))
        styles.add(our_styles.get(name, name))
    if draft.trainer != "sft" or len(styles) != 1 or not styles <= set(our_styles.values()):
        return
    style = styles.pop()
    for other_key in ("chat_template", "chat_template_jinja"):
        if draft.keys.get(other_key):
            draft.notes = [note for note in draft.notes if note.key != other_key]
            why = f"rows of the type {style} are written in that style, and theirs is only kept"
            draft.no_equivalent(other_key, why)
    draft.values["model"].get("tokenizer", {}).pop("chat_template", None)
    draft.choices["template"] = style
    draft.keys["style"] = style
    draft.handled.add("style")
    draft.note(MAPPED, key, f"template={style}", "the words around a row")


def _read_tests(draft: Draft) -> list[Part]:
    """The nodes of the datasets that are held out."""
    key = "test_datasets"
    default_type = "chat_template" if draft.trainer == "sft" else None
    entries = draft.read(key, _to_tests, [])
    tests = []
    for index, entry in enumerate(entries):
        path = str(entry.get("path"))
        is_file = is_local(path) or "data_files" in entry
        default_split = "train" if is_file else "test"  # a file has no other split
        entry.setdefault("split", default_split)
        entry.setdefault("type", default_type)
        tests.append(read_entry(draft, f"{key}[{index}]", entry))
    return tests


def _to_tests(value: object) -> list[Part]:
    """A list of datasets, empty for a value that says there are none."""
    return to_entries(value) if value else []
