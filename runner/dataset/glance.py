"""A look at a dataset before anything loads: are the files there, can they be read, do their rows fit the trainer.

Rows are read here without the datasets library, whole files up to a size that takes no time; of larger ones only the
beginning, and the rest is looked at when they are loaded. What nobody can know here passes: rows of the hub, streams,
and what the user's own steps and loaders make.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.dataset.asked import check_cut, check_weights, check_words, count_of, no_row, read_cuts, read_limits
from runner.dataset.convert import ARROWS, Conversion, Row
from runner.dataset.detect import MEDIA, check_without, kept_columns, misnamed, read_layout, refuse_media
from runner.dataset.disk import CHOOSE, READABLE, Files, check_files, columns_of, find_files, holds_at_most, read_rows
from runner.errors import DataError, Fault
from runner.files import SHIPPED

LOADER = "runner.dataset.load.load_rows"
MIXER = "runner.dataset.mix.mix_rows"
MOST = 4 << 20  # bytes of a dataset that are read here
FIRST = 500  # rows that are converted; where one of them is bad, all are
STREAMED = 100  # lines of a stream
SAMPLE = 3  # rows of what ships, which shows its columns
HUB_NAME = re.compile(r"(?:[\w.-]+/)?[\w.-]{1,96}")


@dataclass
class Glance:
    """What was seen of a dataset: its faults, and the columns of its training rows where these are known."""

    faults: list[Fault] = field(default_factory=list)
    columns: set[str] | None = None

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Inside, faults of the data are noted and end what is inside."""
        try:
            yield
        except DataError as error:
            self.faults += error.faults


def look_at(node: Mapping[str, Any], to: str | None, where: str = "dataset") -> Glance:
    """What can be said of the rows that a node of the configuration names, for a trainer that eats ``to``."""
    target = str(node.get("_target_"))
    if target == MIXER:
        return _look_at_parts(node, to, where)
    seen = Glance()
    if target == LOADER:
        with _silent():
            _look(node, to, seen)
    seen.faults = [_placed(fault, where) for fault in seen.faults]
    return seen


def _look_at_parts(node: Mapping[str, Any], to: str | None, where: str) -> Glance:
    seen, parts = Glance(), {name: part for name, part in (node.get("parts") or {}).items() if part is not None}
    with seen.noting():
        check_weights(parts, node.get("weights"))
    for name, part in parts.items():
        seen.faults += look_at(part, to, f"{where}.parts.{name}").faults
    return seen


def _placed(fault: Fault, where: str) -> Fault:
    """A fault with the keys of this node, which may be a part of another one."""
    if where == "dataset":
        return fault
    here = {
        beat: re.sub(r"\bdataset\.(?=\w)", f"{where}.", getattr(fault, beat)) for beat in ("where", "found", "cure")
    }
    return replace(fault, **here)


def _look(node: Mapping[str, Any], to: str | None, seen: Glance) -> None:
    """Note what is wrong with the words of a node, its files, and their rows; the first two all at once."""
    files, train, evals = None, None, {}
    if node.get("form") not in (None, *ARROWS):
        seen.faults.append(misnamed("dataset.form", node["form"], ARROWS, "dataset.form={}"))
    with seen.noting():
        read_limits(node.get("limit"))
    with seen.noting():
        train, evals = read_cuts(node.get("split"))
        if not train:
            where = "dataset.split.train"
            seen.faults.append(Fault(where, "null, and a training needs rows", "a slice of a split", f"{where}=train"))
    with seen.noting():
        files = find_files(str(node["path"]))
        check_words(files, node.get("bad_rows", "refuse"), config=node.get("config"), revision=node.get("revision"))
    streaming = bool(node.get("streaming"))
    if files is None:
        if not seen.faults and not HUB_NAME.fullmatch(str(node["path"])):
            seen.faults.append(_no_name(str(node["path"])))
        return
    cuts = [("train", train)] if train else []
    for use, cut in [*cuts, *(("eval", cut) for cut in evals.values())]:
        with seen.noting():
            check_cut(f"dataset.split.{use}", cut, files.splits, str(node["path"]), streaming=streaming)
    if not _is_shipped(node):
        with seen.noting():
            check_files(files, STREAMED if streaming else None, MOST)
    if not seen.faults and to and not node.get("map"):
        with seen.noting():
            without, given = node.get("without") or (), (node.get("columns") or {}).values()
            left = [name for name in columns_of(files, MOST) if name not in (*without, *given)]
            refuse_media(name for name in left if name in (MEDIA[:2] if to == "prompt" else MEDIA))
    if not seen.faults and not streaming and not node.get("map") and holds_at_most(files, MOST):
        _look_at_rows(node, to, files, [*cuts, *(("eval", cut) for cut in evals.values())], seen)


def _is_shipped(node: Mapping[str, Any]) -> bool:
    """Whether the rows are ours, which are good."""
    return str(node["path"]).startswith(SHIPPED)


def _no_name(path: str) -> Fault:
    found = f"{path!r} is no file or folder here, and no name that the hub could have"
    return Fault("dataset.path", found, f"{READABLE}, or org/name", CHOOSE)


def _look_at_rows(
    node: Mapping[str, Any], to: str | None, files: Files, cuts: Sequence[tuple[str, str]], seen: Glance
) -> None:
    """Note where the rows of a slice cannot be read as the trainer needs them, or where there are none."""
    limits, read, first = read_limits(node.get("limit")), {}, SAMPLE if _is_shipped(node) else None
    for use, cut in cuts:
        name = re.split(r"[\[+(]", cut)[0].strip()
        if name not in read:
            read[name] = [row for path in files.splits[name] for row in read_rows(Path(path), files.reader, first)]
        rows, label = read[name], f"{node['path']} {cut}"
        count = count_of(cut, len(rows)) if first is None else None
        if count == 0:
            seen.faults.append(no_row(use, cut, f"{label} of {len(rows)}"))
            continue
        whole = count == len(rows) and count <= (limits[use] or count)
        with seen.noting():
            columns = _look_at_forms(node, to, rows, label, all_used=whole)
            seen.columns = columns if use == "train" else seen.columns


def _look_at_forms(
    node: Mapping[str, Any], to: str | None, rows: Sequence[Row], label: str, *, all_used: bool
) -> set[str]:
    """The columns that the trainer will see; raises DataError where the rows do not fit it, or some are bad."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    check_without(without := node.get("without") or (), columns)
    columns = [name for name in columns if name not in without]
    rows = [{name: row.get(name) for name in columns} for row in rows]
    layout = read_layout(columns, rows[0], form=node.get("form"), given=dict(node.get("columns") or {}), to=to)
    kept = kept_columns(columns, layout, to, None) if to else ()
    if to is None:
        return set()
    how = (layout, to, node.get("system"), kept, node.get("bad_rows", "refuse"), label)
    if not all_used:  # a bad row may be one that nobody asked for
        return {*Conversion(*how).first(rows), *kept}
    try:
        return {*_convert(how, rows[:FIRST]), *kept}
    except DataError:
        return {*_convert(how, rows), *kept}


def _convert(how: tuple[Any, ...], rows: Sequence[Row]) -> Row:
    """The first converted row; raises DataError with the bad ones, or where none comes out."""
    conversion = Conversion(*how, total=len(rows))
    made = conversion.first(rows)
    conversion.batch({name: [row[name] for row in rows] for name in rows[0]}, range(len(rows)))
    if not made:
        raise DataError(conversion.nothing_left(len(rows)))
    return made


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Leave it to the loading to say what is left out, which it will once more."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
