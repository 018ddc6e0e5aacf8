"""The first rows of a dataset as files of their own, in the source's columns: of a large one little is fetched.

Rows are read as ``load`` would read them, but for those of the hub that are not in the cache yet, which are streamed.
"""

import itertools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset_builder

from runner.dataset.disk import find_files, path_text
from runner.dataset.image import find_images
from runner.dataset.load import RowSource, open_source, translate_dataset_errors
from runner.dataset.remote import copy_here
from runner.dataset.request import Use, read_cuts, read_limits, split_of
from runner.dataset.step import Row
from runner.errors import DataError, fault
from runner.schema.text import Node

MAX_BYTES_WHOLE = 100_000_000  # of local files; of more only the first lines are read
MAX_ROWS_SKIPPED = 1000  # of a stream, to come to where a slice begins


@dataclass
class Head:
    """The files of the first rows, and the number of rows in all: ``rows`` None where nobody has counted them.

    ``whole`` holds up to as many rows as were asked for, ``short`` the shortest of them. ``split`` names both.
    """

    whole: Path
    short: Path
    split: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    images: str = ""  # the folder of those that the rows name


def write_head(node: Node, folder: Path, *, count: int, train: int, held_out: int) -> Head:
    """The first ``count`` rows to train on, and of each held-out set, that a node of ``load_rows`` means.

    Of the shortest rows there are ``train`` and ``held_out``. Raises DataError as a training would.
    """
    cut, evals = read_cuts(node.get("split"))
    limits = read_limits(node.get("limit"))
    # As a stream, where reading all of it would take long.
    files, streaming = find_files(copy_here(node["path"])), bool(node.get("streaming"))
    path = path_text(node["path"])
    config, revision = node.get("config"), node.get("revision")
    if files:
        streaming = streaming or sum(file.stat().st_size for file in files.paths) > MAX_BYTES_WHOLE
    else:
        with translate_dataset_errors(path):
            is_prepared = os.path.exists(load_dataset_builder(path, config, revision=revision).cache_dir)
        streaming = streaming or not is_prepared
    source = open_source(path, files, config, revision, streaming)
    head = Head(folder / "whole", folder / "short")
    head.images = str(find_images(files.paths if files else (), node.get("image_folder"), False).folder)
    if cut:
        counted = sum(map(len, _slices(source, cut)))
        head.rows = min(counted, limits["train"] or counted) or limits["train"]
        rows = _read(source, "train", cut, min(count, limits["train"] or count))
        head.split["train"] = _write(rows, source, head, "train", train)
    kept = {}
    for number, (name, other) in enumerate(evals.items()):
        if not isinstance(other, str):  # of another source
            kept[name] = other
            continue
        file = f"eval_{number}" if name else "eval"
        rows = _read(source, "eval", other, min(count, limits["eval"] or count))
        kept[name] = _write(rows, source, head, file, held_out)
    head.split["eval"] = kept.get("") if set(kept) <= {""} else kept
    return head


def _read(source: RowSource, use: Use, cut: str, count: int) -> list[Row]:
    where, split = f"dataset.split.{use}", split_of(cut)
    source.check(use, cut if source.streams is None else split)
    if source.streams is None:
        with translate_dataset_errors(source.path, where):
            rows = source.builder.as_dataset(split=cut)
    else:
        start = slices[0].start if (slices := _slices(source, cut)) else 0
        rows = source.streams[split].skip(min(start, MAX_ROWS_SKIPPED)) if start else source.streams[split]
    if first := list(itertools.islice(rows, count)):
        return first
    raise DataError(fault("dataset.empty_slice", where=where, path=source.path, cut=cut))


def _write(rows: list[Row], source: RowSource, head: Head, name: str, few: int) -> str:
    for folder, kept in ((head.whole, rows), (head.short, shortest(rows, few))):
        folder.mkdir(parents=True, exist_ok=True)
        Dataset.from_list(kept, features=source.builder.info.features).to_parquet(folder / f"{name}.parquet")
    return name


def _slices(source: RowSource, cut: str) -> list[range]:
    with translate_dataset_errors(source.path, "dataset.split"):
        return source.slices(cut) if source.lengths and all(source.lengths.values()) else []


def shortest(rows: list[Row], count: int) -> list[Row]:
    """The shortest rows in their order, of each label as many, because some trainers compare good and bad ones."""
    sizes = [len(json.dumps(row, default=str)) for row in rows]
    sides: dict[str, list[int]] = {}
    for index in sorted(range(len(rows)), key=sizes.__getitem__):
        label = rows[index].get("label")
        sides.setdefault(str(label) if isinstance(label, bool) else "", []).append(index)
    round_robin = [index for turn in itertools.zip_longest(*sides.values()) for index in turn if index is not None]
    return [rows[index] for index in sorted(round_robin[:count])]
