"""Datasets of another tool -> the node of one dataset of ours, or of a mixture.

The reader of each tool makes a node of each of its datasets; ``write_rows`` writes them all into
the draft, with the rows that are held out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.config.conversion import to_number, to_weights, to_words
from runner.config.dialect import to_single_line
from runner.config.override import is_local
from runner.dataset import LOADER
from runner.dataset.request import split_of
from runner.errors import Fault
from runner.importers.draft import (
    FIX,
    HIDDEN,
    MAPPED,
    NO_EQUIVALENT,
    SAME,
    Draft,
    Part,
    is_unset,
)
from runner.importers.follow import follow
from runner.schema.text import Node

# The keys of a dataset, in the order in which they are written. Others are left out.
ORDER = (
    "path",
    "config",
    "revision",
    "form",
    "split",
    "columns",
    "context_separator",
    "limit",
    "image_folder",
    "map",
    "streaming",
)
# The ending of a file of rows, and a slice such as train[:90%].
FILE_ENDING = re.compile(r"\.(jsonl?|csv|tsv|parquet)(\.gz)?$")
SLICE = re.compile(r"([\w.-]+)(?:\[:(\d+)(%?)\])?")
MAX_HELD_OUT = 1e12  # rows, more than there are
# Forms of demonstrations that mix with rows of the same form.
MIXABLE_FORMS: tuple[set[object], ...] = ({"messages"}, {"prompt_completion"}, {"text"})


def read_entry(draft: Draft, where: str, entry: Node) -> Part:
    """The node of one dataset, from an entry of theirs.

    The section ``rows`` of the table says what becomes of its keys. ``where`` is the place of the
    entry in their file, for notes and faults.
    """
    table = replace(draft.table, keys=draft.table.rows)
    inner = Draft("", table, draft.reading, choices=draft.choices, where=f"{where}.")
    inner.add(entry)
    names = list(inner.keys)
    inner.keys = draft.keys | inner.keys
    in_order_of_table = [name for name in table.keys if name in names]
    follow(inner, *in_order_of_table, *names)
    for note in inner.notes:
        if note.kind == NO_EQUIVALENT:
            draft.lose_part(where, f".{note.key}", note.why, note.target, note.value)
    for name in names:
        value = inner.keys[name]
        if name not in inner.handled and value not in (None, False):
            draft.lose_part(where, f".{name}", "not a key that is known here", "", value)
    draft.faults += inner.faults
    dataset: Part = inner.values["dataset"]
    return dataset


def write_rows(draft: Draft, nodes: Sequence[Part]) -> None:
    """Write one dataset, or a mixture of several, and what its section ``then`` says after it.

    The section ``datasets`` of the table names the keys of theirs. Without any node the path is
    asked for.
    """
    section = draft.table.sections["datasets"]
    key = section["keys"][0]
    for name in section["keys"]:
        if draft.keys.get(name) is not None:
            key = name
            break
    nodes = nodes or [{"path": "???"}]
    _hold_out_last_rows(draft, section["held_out"], nodes)
    weights = draft.take(section["weights"], to_weights, [])
    if not weights:
        weights = [node["weight"] for node in nodes if "weight" in node]
    shortest_nodes = [_to_shortest(node) for node in nodes]
    if len(nodes) == 1:
        node = shortest_nodes[0]
        path = node["path"]
        option = "local" if is_local(path) else "hub"
        draft.choices["dataset"] = option
        draft.values["dataset"] = node
        draft.note(MAPPED, key, f"dataset={option} dataset.path: {path}")
        if draft.keys.get(section["weights"]) is not None:
            draft.note(SAME, section["weights"], why="one dataset")
    else:
        forms = {node.get("form") for node in nodes}
        _make_mixable(draft, key, forms)
        _write_mixture(draft, key, shortest_nodes, weights)
        if draft.keys.get(section["weights"]) is not None:
            draft.note(MAPPED, section["weights"], "dataset.weights")
    follow(draft, *draft.table.sections["then"])


def _make_mixable(draft: Draft, key: str, forms: set[object]) -> None:
    """Have demonstrations of several or unknown forms become conversations, which mix."""
    if draft.trainer != "sft" or forms in MIXABLE_FORMS:
        return
    if "text" in forms:
        why = "they do not mix"
        nearest = "two runs, the second from the first"
        draft.lose_part(key, " of text and of other rows", why, nearest)
    else:
        draft.put("trainer.form", "messages")


def _write_mixture(
    draft: Draft, key: str, nodes: Sequence[Part], weights: Sequence[object]
) -> None:
    """Write a mixture of datasets; the weights are used only if each of them has one above 0."""
    parts: dict[str, Part] = {}
    for name, node in zip(_part_names(nodes), nodes, strict=True):
        parts[name] = {"_target_": LOADER, "_partial_": True, **node}
    mixture: Part = {"_target_": "runner.dataset.mix.mix_rows", "parts": parts}
    why = "each row once, shuffled"
    if len(weights) == len(nodes) and all(weights):
        mixture["weights"] = dict(zip(parts, weights, strict=True))
        why = "drawn by weight"
    draft.choices["dataset"] = None
    draft.values["dataset"] = mixture
    draft.note(MAPPED, key, f"dataset.parts: {', '.join(parts)}", why)


def _part_names(nodes: Sequence[Part]) -> list[str]:
    """A name for each dataset that no other has: the last word of its path.

    Of several with this word, their configuration and their split are added, where they differ.
    """
    names = [_to_name(node["path"]) for node in nodes]
    configs = [str(node.get("config") or "") for node in nodes]
    splits = [split_of(node.get("split", {}).get("train", "train")) for node in nodes]
    for words in (configs, splits):
        shorter_names = list(names)
        for index, name in enumerate(shorter_names):
            same = {word for word, other in zip(words, shorter_names, strict=True) if other == name}
            if len(same) > 1 and words[index]:
                names[index] = f"{name}_{_to_word(words[index])}"
    return _numbered(names)


def _numbered(names: Sequence[str]) -> list[str]:
    """The names, those that come again with a number."""
    numbered: list[str] = []
    for name in names:
        number = 1
        unique = name
        while unique in numbered:
            number += 1
            unique = f"{name}_{number}"
        numbered.append(unique)
    return numbered


def _to_name(path: str) -> str:
    """The last word of a path, as a name."""
    return _to_word(FILE_ENDING.sub("", path.rstrip("/").rpartition("/")[2])) or "rows"


def _to_word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_").lower()


def _to_shortest(node: Part) -> Part:
    """A node without values that it would have anyway; ??? takes the place of an unknown path."""
    path = node["path"]
    if is_unset(path) or path in ("", HIDDEN):
        path = "???"
    columns = node.get("columns", {})
    split = {"train": "train"} | node.get("split", {})
    shortest = dict(node)
    shortest["path"] = path
    shortest["columns"] = {role: name for role, name in columns.items() if role != name}
    shortest["split"] = split
    if split == {"train": "train"}:
        shortest["split"] = {}
    return {key: shortest[key] for key in ORDER if shortest.get(key)}


# --- A share of the rows --------------------------------------------------------------------------


def keep_share(draft: Draft, key: str, node: Part, share: float, theirs: str = "") -> bool:
    """Keep the first rows of a dataset: the share that theirs keeps. False where no row is left.

    ``theirs`` says which rows theirs keeps, where these are others.
    """
    path = node["path"]
    if not 0 <= share <= 1:
        fault = Fault(
            where=f"{draft.where}{key}: {path}",
            found=f"{share:g}",
            expected="the share of the rows that is kept, at most 1",
            fix=FIX,
        )
        draft.faults.append(fault)
    elif share == 0:
        draft.note(SAME, key, why=f"{path}: 0, so none of its rows")
        return False
    elif share < 1:
        _cut_to_share(draft, key, node, share, theirs)
    return True


def _cut_to_share(draft: Draft, key: str, node: Part, share: float, theirs: str) -> None:
    """Train on the beginning of a split; a slice of rows is cut to a number of them."""
    split = node.get("split", {})
    match = SLICE.fullmatch(split.get("train", "train"))
    if match is None:
        why = f"{node['path']}: {share:g} of a slice"
        draft.no_equivalent(key, why, "dataset.split.train=<slice>")
        return
    name, end, percent = match.groups(default="")
    remark = f"{share:g} of it"
    if theirs:
        remark += f"; theirs are {theirs}, these are its first rows"
    if end and not percent:
        cut = f"{name}[:{int(int(end) * share)}]"
    else:
        exact = int(end or 100) * share
        whole = max(1, round(exact))
        if abs(whole - exact) > 1e-9:
            remark += "; a slice counts whole per cents"
        cut = f"{name}[:{whole}%]"
    node["split"] = {**split, "train": cut}
    draft.note(MAPPED, key, f"{node['path']}: {cut}", remark)


# --- Held-out rows --------------------------------------------------------------------------------


def hold_out(draft: Draft, nodes: Sequence[Part], key: str, tests: Sequence[Part]) -> None:
    """Hold out the rows of other sources, or another split of the first dataset itself."""
    if not nodes or not tests:
        return
    first = nodes[0]
    sets: dict[str, object] = {}
    for name, test in zip(_part_names(tests), tests, strict=True):
        source = _to_shortest(test)
        split = source.pop("split", {}).get("train", "train")
        is_same_path = source["path"] == first["path"]
        if is_same_path and source.get("config") == first.get("config"):
            sets[name] = split
        else:
            sets[name] = {**source, "split": split}
    held_out: object = sets
    shown = ", ".join(sets)
    if len(sets) == 1:
        held_out = next(iter(sets.values()))
        if isinstance(held_out, str):
            shown = held_out
    split = {"train": "train"} | first.get("split", {})
    first["split"] = {**split, "eval": held_out}
    draft.note(MAPPED, key, f"dataset.split.eval: {shown}")


def find_nodes(draft: Draft, key: str) -> list[Part]:
    """A node for each file, or dataset of the hub, that a key names."""
    nodes: list[Part] = []
    for path in draft.take(key, to_words, []):
        nodes.append({"path": path, "form": draft.form})
    return nodes


def hold_out_files(draft: Draft, nodes: Sequence[Part], key: str) -> None:
    """Hold out the rows of the files that a key names, but for those that the shell says."""
    tests = find_nodes(draft, key)
    readable = [test for test in tests if not is_unset(test["path"])]
    if len(readable) < len(tests):
        why = "a file that is set by the shell, and not in this file"
        draft.no_equivalent(key, why, "dataset.split.eval.path=<file>")
    elif readable:
        hold_out(draft, nodes, key, readable)
    elif draft.keys.get(key) is not None:
        draft.note(SAME, key, why="no file")


def _hold_out_last_rows(draft: Draft, key: str, nodes: Sequence[Part]) -> None:
    """Hold out of each dataset the share or number of rows that a key gives.

    Theirs are drawn at random. Ours are the last ones: others can repeat a slice.
    """
    follow(draft, key)
    if key in draft.handled:
        return
    size = draft.take(key, to_number, 0.0)
    if not 0 <= size < MAX_HELD_OUT:
        fault = Fault(
            where=key,
            found=to_single_line(size),
            expected="a share or a number of rows",
            fix=FIX,
        )
        draft.faults.append(fault)
        return
    if not size:
        return
    cuts = []
    for node in nodes:
        cut = _cut_off(node, size)
        if cut is None:
            draft.no_equivalent(key, "the split is a slice already", "dataset.split.eval=<slice>")
            return
        cuts.append(cut)
    for node, cut in zip(nodes, cuts, strict=True):
        node["split"] = {"train": cut.train, "eval": cut.held_out}
    draft.note(MAPPED, key, f"dataset.split.eval: {cuts[0].held_out}", cuts[0].remark)


@dataclass(frozen=True)
class _Cut:
    """The slices of a split whose last rows are held out."""

    train: str
    held_out: str
    remark: str


def _cut_off(node: Node, size: float) -> _Cut | None:
    """The slices of a dataset whose last rows are cut off: ``size`` of them, or below 1 that share.

    None where no slice says it, or where no row would be left.
    """
    split = node.get("split", {})
    match = SLICE.fullmatch(split.get("train", "train"))
    if match is None:
        return None
    name, end, percent = match.groups(default="")
    remark = "theirs are drawn at random, these are the last ones"
    unit = ""
    if size >= 1:
        if percent:
            return None
        cut = int(end or 0) - int(size)  # negative numbers count from the end
    else:
        if percent or not end:
            unit = "%"
        whole = int(end or 100)
        cut = round(whole * (1 - size))
        if cut == whole:
            cut -= 1
            remark += "; a slice counts whole per cents"
    if cut == 0 or (cut < 0 and (end or size < 1)):
        return None
    train = f"{name}[:{cut}{unit}]"
    held_out = f"{name}[{cut}{unit}:{end}{percent}]"
    return _Cut(train, held_out, remark)


def read_paths(draft: Draft) -> None:
    """Write the datasets of a dialect that has a table only: paths, or names on the hub."""
    key = draft.table.sections["datasets"]["keys"][0]
    paths = draft.take(key, to_words, [])
    nodes = [{"path": path, "form": draft.form} for path in paths]
    write_rows(draft, nodes)
