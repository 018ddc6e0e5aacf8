"""Datasets of other tools: one or a mixture, and what of their rows is held out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.importers.convert import to_size, to_weights
from runner.importers.draft import HIDDEN, MAPPED, NO_EQUIVALENT, Draft, is_unset, to_single_line
from runner.importers.follow import follow

FILE_TYPES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".gz")
ORDER = ("path", "config", "revision", "form", "split", "columns", "limit")


def read_entry(draft: Draft, key: str, where: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The node of one dataset, from an entry of theirs below a key, by the section ``rows`` of the table."""
    inner = Draft(
        "", replace(draft.table, keys=draft.table.rows), draft.reading, choices=draft.choices, where=f"{where}."
    )
    inner.add(entry)
    names, inner.keys = list(inner.keys), draft.keys | inner.keys
    follow(inner, *(name for name in inner.table.keys if name in names), *names)
    for note in inner.notes:
        if note.kind == NO_EQUIVALENT:
            said = f"{note.key}: {to_single_line(note.value)}"
            draft.no_equivalent(key, f"{said}; {note.why}" if note.why else said, note.target)
    for name in names:
        if name not in inner.taken and inner.keys[name] not in (None, False):
            draft.no_equivalent(key, f"{name}: {to_single_line(inner.keys[name])}")
    draft.faults += inner.faults
    return inner.values["dataset"]


def write_rows(draft: Draft, nodes: Sequence[dict[str, Any]]) -> None:
    """Write one dataset, or a mixture of several, by the section ``datasets`` of the table."""
    section = draft.table.sections["datasets"]
    key = next((key for key in section["keys"] if draft.keys.get(key) is not None), section["keys"][0])
    nodes = nodes or [{"path": "???"}]
    _hold_out(draft, section["held_out"], nodes)
    weights = draft.take(section["weights"], to_weights, []) or [node["weight"] for node in nodes if "weight" in node]
    forms = {node.get("form") for node in nodes}
    nodes = [_to_shortest(node) for node in nodes]
    if len(nodes) == 1:
        path = nodes[0]["path"]
        draft.choices["dataset"], draft.values["dataset"] = "local" if is_local(path) else "hub", nodes[0]
        draft.note(MAPPED, key, f"dataset={draft.choices['dataset']} dataset.path: {path}")
        return
    # Demonstrations of several kinds, or of kinds that nobody knows, become conversations before they are mixed.
    if draft.trainer == "sft" and forms not in ({"messages"}, {"prompt_completion"}, {"text"}):
        if "text" in forms:
            draft.no_equivalent(key, "text and other rows, which do not mix", "two runs, the second from the first")
        else:
            draft.put("trainer.form", "messages")
    parts: dict[str, Any] = {}
    for node in nodes:
        stem = re.sub(r"\.(jsonl?|csv|tsv|parquet)(\.gz)?$", "", node["path"].rstrip("/").rpartition("/")[2])
        name = re.sub(r"\W+", "_", stem).strip("_").lower() or "rows"
        while name in parts:
            name += "_"
        parts[name] = {"_target_": "runner.dataset.load.load_rows", "_partial_": True} | node
    mixture: dict[str, Any] = {"_target_": "runner.dataset.mix.mix_rows", "parts": parts}
    if len(weights) == len(nodes) and all(weights):
        mixture["weights"] = dict(zip(parts, weights, strict=True))
    draft.choices["dataset"], draft.values["dataset"] = None, mixture
    why = "drawn by weight" if "weights" in mixture else "each row once, shuffled"
    draft.note(MAPPED, key, f"dataset.parts: {', '.join(parts)}", why)
    if draft.keys.get(section["weights"]) is not None:
        draft.note(MAPPED, section["weights"], "dataset.weights")


def _to_shortest(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node without what is so anyway, its keys in our order."""
    columns = {role: column for role, column in node.get("columns", {}).items() if role != column}
    split = {"train": "train"} | node.get("split", {})
    path = "???" if is_unset(node["path"]) or node["path"] in ("", HIDDEN) else node["path"]
    whole = {**node, "path": path, "columns": columns, "split": split if split != {"train": "train"} else {}}
    return {key: whole[key] for key in ORDER if whole.get(key)}


def is_local(path: str) -> bool:
    """True for a path of this machine, as against a name on the hub."""
    return path.endswith(FILE_TYPES) or path.startswith((".", "/", "~")) or "*" in path


def _hold_out(draft: Draft, key: str, nodes: Sequence[dict[str, Any]]) -> None:
    """Hold out a share, or a number, of the rows of every dataset.

    Theirs are drawn at random, ours are the last ones: a slice can be said again, and by others.
    """
    follow(draft, key)
    size = 0.0 if key in draft.taken else draft.take(key, to_size, 0.0)
    remarks = [_cut_off(node, size) for node in nodes] if size else []
    if size and all(remarks):
        draft.note(MAPPED, key, f"dataset.split.eval: {nodes[0]['split']['eval']}", remarks[0])
    elif size:
        draft.no_equivalent(key, "the split is a slice already", "dataset.split.eval=<slice>")


def _cut_off(node: dict[str, Any], size: float) -> str:
    """Cut the last rows off, ``size`` of them or that share, and say what is different; empty where it cannot be."""
    found = re.fullmatch(r"(\w+)(?:\[:(\d+)(%?)\])?", node.get("split", {}).get("train", "train"))
    name, end, percent = found.groups(default="") if found else ("", "0", "%")
    remark = "theirs are drawn at random, these are the last ones"
    if size >= 1:
        unit, cut = "", int(end or 0) - int(size)
    else:
        unit, whole = "" if end and not percent else "%", int(end or 100)
        cut = round(whole * (1 - size))
        if cut == whole:
            cut, remark = cut - 1, f"{remark}; a slice counts whole per cents"
    if (size >= 1 and percent) or cut == 0 or (cut < 0 and (end or size < 1)):
        return ""
    node["split"] = {"train": f"{name}[:{cut}{unit}]", "eval": f"{name}[{cut}{unit}:{end + percent}]"}
    return remark
