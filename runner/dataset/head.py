"""The first rows of a dataset as files of their own, in the source's columns.

Of a large dataset only little is fetched.
"""

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset, load_dataset_builder

from runner.dataset.form import Row
from runner.dataset.media_source import find_media
from runner.dataset.remote_files import copy_here
from runner.dataset.request import Use, read_cuts, read_limits, split_of, unnamed_sets
from runner.dataset.row_source import RowSource, open_source, translate_dataset_errors
from runner.dataset.source_files import find_files, path_text
from runner.errors import DataError, Fault
from runner.io.files import JsonObject
from runner.schema.text import Node

MAX_BYTES_WHOLE = 100_000_000  # of local files; of more only the first lines are read
MAX_ROWS_SKIPPED = 1000  # of a stream, to come to where a slice begins


@dataclass
class Head:
    """The files of the first rows, and the number of rows in all."""

    whole: Path  # of up to as many rows as were asked for
    short: Path  # of the shortest of them
    split: JsonObject = field(default_factory=dict)  # names the files of both
    rows: int | None = None  # where somebody has counted them
    media_folder: str = ""  # of those that the rows name


def write_head(node: Node, folder: Path, *, count: int, train: int, held_out: int) -> Head:
    """Files of the first ``count`` rows of each set of a node, and of the shortest ones.

    Of the training rows the ``train`` shortest are written, of a held-out set the ``held_out``
    shortest.
    """
    cut, evals = read_cuts(node.get("split"))
    limits = read_limits(node.get("limit"))
    files = find_files(copy_here(node["path"]))
    # As a stream where reading all of it would take long.
    path = path_text(node["path"])
    config = node.get("config")
    revision = node.get("revision")
    if files:
        size = sum(file.stat().st_size for file in files.paths)
        is_long = size > MAX_BYTES_WHOLE
    else:
        with translate_dataset_errors(path):
            builder = load_dataset_builder(path, config, revision=revision)
            is_long = not os.path.exists(builder.cache_dir)
    is_streamed = is_long or bool(node.get("streaming"))
    source = open_source(path, files, config, revision, is_streamed)
    head = Head(folder / "whole", folder / "short")
    paths = files.paths if files else ()
    media = find_media(paths, node.get("image_folder"), False)
    head.media_folder = str(media.folder)
    if cut:
        train_limit = limits["train"]
        total = sum(map(len, _slices(source, cut)))
        head.rows = min(total, train_limit or total) or train_limit
        rows = _read(source, "train", cut, min(count, train_limit or count))
        head.split["train"] = _write(rows, source, head, "train", train)
    eval_count = min(count, limits["eval"] or count)
    held_out_sets = dict(evals)
    for number, (name, eval_cut) in enumerate(evals.items()):
        if not isinstance(eval_cut, str):  # of another source, which is not written
            continue
        rows = _read(source, "eval", eval_cut, eval_count)
        file_name = f"eval_{number}" if name else "eval"
        held_out_sets[name] = _write(rows, source, head, file_name, held_out)
    head.split["eval"] = unnamed_sets(held_out_sets)
    return head


def _read(source: RowSource, use: Use, cut: str, count: int) -> list[Row]:
    """The first rows of a slice.

    Of a stream no more than MAX_ROWS_SKIPPED rows are skipped to come to its beginning.
    """
    where = f"dataset.split.{use}"
    if source.streams is None:
        source.check(use, cut)
        with translate_dataset_errors(source.path, where):
            rows = source.builder.as_dataset(split=cut)
    else:
        split = split_of(cut)
        source.check(use, split)
        rows = source.streams[split]
        slices = _slices(source, cut)
        start = slices[0].start if slices else 0
        if start:
            rows = rows.skip(min(start, MAX_ROWS_SKIPPED))
    first = list(itertools.islice(rows, count))
    if not first:
        found = f"{source.path} {cut}: no rows"
        raise DataError(
            Fault(
                where=where,
                found=found,
                expected="at least one",
            )
        )
    return first


def _write(rows: list[Row], source: RowSource, head: Head, name: str, count: int) -> str:
    """Write the rows, and the ``count`` shortest of them, under a name, and return it."""
    features = source.builder.info.features
    rows_by_folder = {head.whole: rows, head.short: shortest(rows, count)}
    for folder, folder_rows in rows_by_folder.items():
        folder.mkdir(parents=True, exist_ok=True)
        dataset = Dataset.from_list(folder_rows, features=features)
        dataset.to_parquet(folder / f"{name}.parquet")
    return name


def _slices(source: RowSource, cut: str) -> list[range]:
    """The rows of each part of a slice, none where nobody has counted those of the splits."""
    with translate_dataset_errors(source.path, "dataset.split"):
        lengths = source.lengths.values()
        if not lengths or not all(lengths):
            return []
        return source.slices(cut)


def shortest(rows: Sequence[Row], count: int) -> list[Row]:
    """The shortest rows, in their order.

    Of each label as many are taken, because some trainers compare good and bad ones.
    """
    sizes = [len(json.dumps(row, default=str)) for row in rows]
    by_label: dict[str, list[int]] = {}  # the numbers of rows, the shortest first
    for number in sorted(range(len(rows)), key=sizes.__getitem__):
        label = rows[number].get("label")
        group = str(label) if isinstance(label, bool) else ""
        by_label.setdefault(group, []).append(number)
    numbers: list[int] = []
    for turn in itertools.zip_longest(*by_label.values()):
        numbers += [number for number in turn if number is not None]
    chosen = sorted(numbers[:count])
    return [rows[number] for number in chosen]
