"""The first rows of a dataset as files of their own, in the source's columns: of a large one little is fetched."""

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
    """The files of the first rows, and the number of rows in all."""

    whole: Path  # of up to as many rows as were asked for
    short: Path  # of the shortest of them
    split: dict[str, Any] = field(default_factory=dict)  # names the files of both
    rows: int | None = None  # where somebody has counted them
    images: str = ""  # the folder of those that the rows name


def write_head(node: Node, folder: Path, *, count: int, train: int, held_out: int) -> Head:
    """Files of the first ``count`` rows of each set of a node, and of the ``train`` or ``held_out`` shortest ones."""
    cut, evals = read_cuts(node.get("split"))
    limits = read_limits(node.get("limit"))
    files, path = find_files(copy_here(node["path"])), path_text(node["path"])
    config, revision = node.get("config"), node.get("revision")
    if files:
        is_long = sum(file.stat().st_size for file in files.paths) > MAX_BYTES_WHOLE
    else:
        with translate_dataset_errors(path):
            is_long = not os.path.exists(load_dataset_builder(path, config, revision=revision).cache_dir)
    # As a stream, where reading all of it would take long.
    source = open_source(path, files, config, revision, is_long or bool(node.get("streaming")))
    head = Head(folder / "whole", folder / "short")
    head.images = str(find_images(files.paths if files else (), node.get("image_folder"), False).folder)
    if cut:
        counted = sum(map(len, _slices(source, cut)))
        head.rows = min(counted, limits["train"] or counted) or limits["train"]
        rows = _read(source, "train", cut, min(count, limits["train"] or count))
        head.split["train"] = _write(rows, source, head, "train", train)
    kept = dict(evals)
    for number, (name, other) in enumerate(evals.items()):
        if isinstance(other, str):  # else of another source
            rows = _read(source, "eval", other, min(count, limits["eval"] or count))
            kept[name] = _write(rows, source, head, f"eval_{number}" if name else "eval", held_out)
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
