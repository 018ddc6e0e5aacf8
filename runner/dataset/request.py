"""The keys of a dataset but its path and form: splits, slices, limits, the weights of a mixture.

Nothing here needs the datasets library, so that a mistake is refused before it is imported.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from runner.dataset import LOADER
from runner.dataset.faults import misnamed
from runner.dataset.source_files import Files
from runner.errors import DataError, Fault
from runner.io.files import JsonObject
from runner.schema.text import short_text

Use = Literal["train", "eval"]
Held = TypeVar("Held")  # a held-out set, or what names it
USES: tuple[Use, ...] = ("train", "eval")
BAD_ROWS = ("refuse", "drop")
# One end of a slice: a number of rows or a percentage, as datasets writes it.
END = r"(?:-?\d{1,18}(?:_\d{3}){0,5}%?)?"
SLICE = re.compile(rf"\w[\w.-]*(?:\[{END}:{END}\])?(?:\(\w+\))?")
SLICES_EXPECTED = "train[:90%], train[500:] or train+extra"


def split_words(
    split: str = "train", share: int = 90, group: str = "dataset", held_out: str = ""
) -> str:
    """The words to type that hold out the rows behind the first ``share`` percent of a split."""
    held_out = held_out or f"{group}.split.eval"
    beginning = f"{split}[:{share}%]"
    rest = f"{split}[{share}%:]"
    return f"{group}.split.train='{beginning}' {held_out}='{rest}'"


def named_sets(evals: object) -> Mapping[str, Any]:
    """The held-out sets of ``split.eval`` by name; a single one has the name ""."""
    if isinstance(evals, Mapping) and "_target_" not in evals:
        return evals
    return {"": evals}


def unnamed_sets(sets: dict[str, Held]) -> Held | dict[str, Held] | None:
    """Held-out sets as ``named_sets`` takes them: the only one with the name "" without a name."""
    if set(sets) <= {""}:
        return sets.get("")
    return sets


def read_cuts(split: Mapping[Use, Any] | None) -> tuple[str | None, JsonObject]:
    """The slice to train on, and the held-out sets by name, as ``named_sets`` has them."""
    if split is None:
        split = {"train": "train"}
    for key, cut in split.items():
        if key not in USES:
            raise DataError(misnamed("dataset.split", key, USES, f"dataset.split.{{}}={cut}"))
    train = split.get("train")
    evals = named_sets(split.get("eval"))
    _check_kind_of_cut("train", train)
    for cut in evals.values():
        _check_kind_of_cut("eval", cut)
    return train, {name: cut for name, cut in evals.items() if cut}


def _check_kind_of_cut(use: Use, cut: object) -> None:
    """Raise DataError for a slice that is neither a text nor a source of its own.

    Other tools take a share or a number of rows here; a share is translated in the fix.
    """
    if cut is None or isinstance(cut, str) or callable(cut):
        return
    if isinstance(cut, dict) and "_target_" in cut:
        return
    share = 90
    if isinstance(cut, float) and 0 < cut < 1:
        share = round(100 * (1 - cut))
    fault = Fault(
        where=f"dataset.split.{use}",
        found=short_text(cut),
        expected=SLICES_EXPECTED,
        fix=split_words(share=share),
    )
    raise DataError(fault)


def read_limits(limit: Mapping[Use, int | None] | None) -> dict[Use, int | None]:
    """The most rows of ``train`` and of ``eval``, None where all are wanted."""
    limits: dict[Use, int | None] = {"train": None, "eval": None, **(limit or {})}
    faults = []
    for use, count in limits.items():
        if count is None or (isinstance(count, int) and count >= 1):
            continue
        fault = Fault(
            where=f"dataset.limit.{use}",
            found=str(count),
            expected="a whole number above 0, or null",
            fix="=null",
        )
        faults.append(fault)
    DataError.refuse(faults)
    return limits


def check_words(files: Files | None, bad_rows: str, **hub_only: str | None) -> None:
    """Raise DataError for keys that files do not have, and for an unknown way to treat bad rows."""
    faults = []
    for name, value in hub_only.items():
        if not value or not files:
            continue
        fault = Fault(
            where=f"dataset.{name}",
            found=repr(value),
            expected="null, because only the hub has them",
            fix="=null",
        )
        faults.append(fault)
    if bad_rows not in BAD_ROWS:
        faults.append(misnamed("dataset.bad_rows", bad_rows, BAD_ROWS, "dataset.bad_rows={}"))
    DataError.refuse(faults)


def check_cut(
    where: str, cut: str, splits: Iterable[str], path: str, *, streaming: bool = False
) -> None:
    """Raise DataError for a slice that ``path`` cannot give.

    Its split is missing, it is not written as a slice, it takes no row, or the rows are a stream,
    of which only whole splits can be read.
    """
    splits = sorted(splits, key="train".__ne__)  # train first, because messages list them
    for part in cut.split("+"):
        name, bracket, ends = part.strip().partition("[")
        if name.partition("(")[0] not in splits:
            raise DataError(_missing_split(where, cut, name, splits, path))
        fault = None
        if not SLICE.fullmatch(part.strip()):
            fault = Fault(
                where=where,
                found=f"{cut!r}, which is not a slice",
                expected=SLICES_EXPECTED,
                fix=f"='{name}[:90%]'",
            )
        elif any(abs(int(share)) > 100 for share in re.findall(r"(-?[\d_]+)%", ends)):
            fault = Fault(
                where=where,
                found=cut,
                expected="shares of at most 100%",
                fix=f"='{name}[:90%]'",
            )
        elif re.search(r"\[(\d*%?):0+%?\]", part):
            fault = no_row(where.rpartition(".")[2], cut, f"{path} {cut}")
        elif streaming and (bracket or part != cut):
            limit = where.replace(".split.", ".limit.")
            fault = Fault(
                where=where,
                found=cut,
                expected="a whole split of a stream",
                fix=f"{limit}=<rows>, or dataset.streaming=false",
            )
        if fault:
            raise DataError(fault)


def _missing_split(where: str, cut: str, name: str, splits: list[str], path: str) -> Fault:
    """The fault of a split that is not there.

    Where no name is like it, training may take the first split. Held-out rows may not, because
    they would be trained on too: that split is divided. A slice with a dot is meant as a file.
    """
    group = where.partition(".split.")[0]
    if "train" in where:
        otherwise = f"{where}={splits[0]}"
    elif "." in cut:
        otherwise = f"{where}.path={cut}"
    else:
        otherwise = split_words(splits[0], group=group, held_out=where)
    fault = misnamed(where, name, splits, f"{where}={{}}", otherwise)
    return replace(fault, found=f"{name!r} in {path}")


def slice_length(cut: str, rows: int) -> int | None:
    """The number of rows that a slice takes of so many.

    None where several slices are joined, or where the slice says how to round.
    """
    if "+" in cut or "(" in cut:
        return None
    ends = re.search(r"\[(.*):(.*)\]", cut)
    if not ends:
        return rows
    first = _row_number(ends[1], rows)
    last = _row_number(ends[2], rows)
    return len(range(rows)[first:last])


def _row_number(end: str, rows: int) -> int | None:
    """The row at one end of a slice; a share is rounded to the nearest row, as datasets does it."""
    if not end:
        return None
    if "%" in end:
        return round(int(end[:-1]) * rows / 100)
    return int(end)


def split_of(cut: str) -> str:
    """The split of a slice, or of the first of several slices."""
    return re.split(r"[\[+(]", cut)[0].strip()


def no_row(use: str, cut: str, label: str) -> Fault:
    """The fault of a slice that takes no row."""
    name = split_of(cut)
    fix = f"dataset.split.{use}='{name}[:90%]', or another dataset"
    if use == "eval":
        fix = (
            f"dataset.split.train='{name}[:-1]' dataset.split.eval='{name}[-1:]', "
            "or dataset.split.eval=null"
        )
    return Fault(
        where=f"dataset.split.{use}",
        found=f"no row: {label}",
        expected="at least one row",
        fix=fix,
    )


def check_weights(parts: Mapping[str, object], weights: Mapping[str, float] | None) -> None:
    """Raise DataError for a mixture without parts, or with parts or weights that cannot be.

    Either each part has a weight, a number above 0, or none has.
    """
    weights = weights or {}
    faults = []
    if not parts:
        fault = Fault(
            where="dataset.parts",
            found="no parts",
            expected="at least one",
            fix=f"dataset.parts.<name>._target_={LOADER}",
        )
        faults.append(fault)
    for name, part in parts.items():
        if not isinstance(part, Mapping) or "_target_" in part:
            continue
        key = f"dataset.parts.{name}"
        fault = Fault(
            where=key,
            found="no _target_",
            expected="what reads its rows, called once the trainer's form is known",
            fix=f"+{key}._target_={LOADER} +{key}._partial_=true",
        )
        faults.append(fault)
    for name, weight in weights.items():
        if name not in parts:
            faults.append(
                misnamed("dataset.weights", name, parts, f"dataset.weights.{{}}={weight}")
            )
        elif not isinstance(weight, int | float) or not weight > 0:
            fault = Fault(
                where=f"dataset.weights.{name}",
                found=str(weight),
                expected="a number above 0",
                fix="=1",
            )
            faults.append(fault)
    for name in parts:
        if weights and name not in weights:
            fault = Fault(
                where=f"dataset.weights.{name}",
                found="no weight",
                expected="one for every part, or none",
                fix="=1",
            )
            faults.append(fault)
    DataError.refuse(faults)
