"""A dataset's keys but its path and form: splits, slices, limits, a mixture's weights; without the datasets library."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from runner.dataset.detect import misnamed
from runner.dataset.disk import Files
from runner.errors import DataError, Fault, fault
from runner.schema.text import short_text

Use = Literal["train", "eval"]
BAD_ROWS = ("refuse", "drop")
END = r"(?:-?\d{1,18}(?:_\d{3}){0,5}%?)?"
SLICE = re.compile(rf"\w[\w.-]*(?:\[{END}:{END}\])?(?:\(\w+\))?")


def split_words(split: str = "train", share: int = 90, group: str = "dataset", held_out: str = "") -> str:
    """The words that hold out the end of a split from the training."""
    held_out = held_out or f"{group}.split.eval"
    return f"{group}.split.train='{split}[:{share}%]' {held_out}='{split}[{share}%:]'"


def named_sets(evals: Any) -> Mapping[str, Any]:
    """The held-out sets of ``split.eval`` by name, each a slice or a source of its own; a single one is called ""."""
    return evals if isinstance(evals, Mapping) and "_target_" not in evals else {"": evals}


def read_cuts(split: Mapping[Use, Any] | None) -> tuple[str | None, dict[str, Any]]:
    """The slice to train on, and the held-out sets by name, as ``named_sets`` has them."""
    split = {"train": "train"} if split is None else split
    if odd := [name for name in split if name not in ("train", "eval")]:
        raise DataError(misnamed("dataset.split", odd[0], ("train", "eval"), f"dataset.split.{{}}={split[odd[0]]}"))
    evals = named_sets(split.get("eval"))
    for name, cut in [("train", split.get("train")), *(("eval", cut) for cut in evals.values())]:
        is_known = cut is None or isinstance(cut, str) or callable(cut) or (isinstance(cut, dict) and "_target_" in cut)
        if not is_known:  # a share or a number of rows, as other tools have it
            fix = split_words(share=round(100 * (1 - cut)) if isinstance(cut, float) and 0 < cut < 1 else 90)
            raise DataError(fault("dataset.share_for_slice", use=name, cut=short_text(cut), fix=fix))
    return split.get("train"), {name: cut for name, cut in evals.items() if cut}


def read_limits(limit: Mapping[Use, int | None] | None) -> dict[Use, int | None]:
    """The most rows of ``train`` and of ``eval``, None where all are wanted."""
    limits: dict[Use, int | None] = {"train": None, "eval": None, **(limit or {})}
    given = {f"dataset.limit.{name}": count for name, count in limits.items() if count is not None}
    bad = {key: count for key, count in given.items() if not isinstance(count, int) or count < 1}
    DataError.refuse(fault("dataset.no_limit", key=key, count=count) for key, count in bad.items())
    return limits


def check_words(files: Files | None, bad_rows: str, **hub_only: str | None) -> None:
    """Raise DataError for what only datasets of the hub have, and for an unknown way to treat bad rows."""
    given = {f"dataset.{name}": value for name, value in hub_only.items() if value and files}
    faults = [fault("dataset.only_of_the_hub", key=key, value=value) for key, value in given.items()]
    if bad_rows not in BAD_ROWS:
        faults.append(misnamed("dataset.bad_rows", bad_rows, BAD_ROWS, "dataset.bad_rows={}"))
    DataError.refuse(faults)


def check_cut(where: str, cut: str, splits: Iterable[str], path: str, *, streaming: bool = False) -> None:
    """Refuse splits that are not there, slices that are none, and slices where rows only flow past."""
    splits, group = sorted(splits, key="train".__ne__), where.partition(".split.")[0]
    for part in cut.split("+"):
        name, bracket, _ = part.strip().partition("[")
        if name.partition("(")[0] not in splits:
            # Held-out rows of the only split would be trained on, too.
            both = f"{where}.path={cut}" if "." in cut else split_words(splits[0], group=group, held_out=where)
            other = misnamed(where, name, splits, where + "={}", f"{where}={splits[0]}" if "train" in where else both)
            raise DataError(replace(other, found=f"{name!r} in {path}"))
        if not SLICE.fullmatch(part.strip()):
            raise DataError(fault("dataset.no_slice", where=where, cut=cut, split=name))
        ends = [int(end) for end in re.findall(r"(-?[\d_]+)%", bracket and part.partition("[")[2])]
        if any(abs(end) > 100 for end in ends):
            raise DataError(fault("dataset.large_share", where=where, cut=cut, split=name))
        if re.search(r"\[(\d*%?):0+%?\]", part):
            raise DataError(no_row(where.rpartition(".")[2], cut, f"{path} {cut}"))
        if streaming and (bracket or part != cut):
            limit = where.replace(".split.", ".limit.")
            raise DataError(fault("dataset.slice_of_stream", where=where, cut=cut, limit=limit))


def slice_length(cut: str, rows: int) -> int | None:
    """The number of rows that a slice takes of so many, None of several slices and another way to round."""
    if "+" in cut or "(" in cut:
        return None
    inside = re.search(r"\[(.*):(.*)\]", cut)
    ends = [end or None for end in (inside.groups() if inside else ("", ""))]
    # A share is rounded to the nearest row, as datasets does it.
    numbers = [end and (round(int(end[:-1]) * rows / 100) if "%" in end else int(end)) for end in ends]
    return len(range(rows)[slice(*numbers)])


def split_of(cut: str) -> str:
    """The name of the split that a slice, or the first of several, is of."""
    return re.split(r"[\[+(]", cut)[0].strip()


def no_row(use: str, cut: str, label: str) -> Fault:
    """The fault of a slice that takes no row."""
    name = split_of(cut)
    held_out = f"dataset.split.train='{name}[:-1]' dataset.split.eval='{name}[-1:]', or dataset.split.eval=null"
    fix = held_out if use == "eval" else f"dataset.split.{use}='{name}[:90%]', or another dataset"
    return fault("dataset.slice_without_rows", use=use, label=label, fix=fix)


def check_weights(parts: Mapping[str, object], weights: Mapping[str, float] | None) -> None:
    """Raise DataError for each weight of a mixture that is missing, of no part, or no number, and for odd parts."""
    faults = [] if parts else [fault("dataset.no_parts")]
    odd = [name for name, part in parts.items() if isinstance(part, Mapping) and "_target_" not in part]
    faults += [fault("dataset.part_of_no_function", part=name) for name in odd]
    for name, weight in (weights or {}).items():
        if name not in parts:
            faults.append(misnamed("dataset.weights", name, parts, "dataset.weights.{}=" + str(weight)))
        elif not isinstance(weight, int | float) or not weight > 0:
            faults.append(fault("dataset.no_weight", part=name, weight=weight))
    faults += [fault("dataset.part_without_weight", part=name) for name in parts if weights and name not in weights]
    DataError.refuse(faults)
