"""Rows as the datasets library holds them, their fingerprints, and what is cached beside them."""

import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset, Value

from runner.dataset.step import Step
from runner.schema.code import code_hash
from runner.schema.modality import modalities_of

log = logging.getLogger(__name__)

Rows: TypeAlias = Dataset | IterableDataset
HeldOut: TypeAlias = Rows | dict[str, Rows] | None
Column: TypeAlias = "np.ndarray[Any, Any]"  # one value for each row
BATCH = 1_000
BATCHED: dict[str, Any] = {"batched": True, "batch_size": BATCH}


def list_columns(rows: Rows) -> list[str]:
    """The names of the columns, of a stream those of its first row."""
    return rows.column_names or list(next(iter(rows), ()))


def cache_key(*parts: object) -> str:
    """A name for a result in the cache, from everything that it depends on."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def key_of_steps(steps: Sequence[Step]) -> list[list[str]]:
    """All that the results of the steps depend on: their code and their settings."""
    keys = []
    for step in steps:
        settings = step.keywords if isinstance(step, functools.partial) else vars(step)
        settings_key = repr(sorted(settings.items()))
        keys.append([code_hash(step), settings_key])
    return keys


def column_beside(
    rows: Dataset, name: str, kind: str, make: Callable[..., Any], key: str
) -> Column:
    """One value for each row, of shape (rows,), cached beside the rows under ``key``.

    ``make`` is given batches of columns. The rows themselves are not copied.
    """
    column = rows.map(
        make,
        features=Features({name: Value(kind)}),
        remove_columns=rows.column_names,
        new_fingerprint=key,
        desc=f"{name} of the rows",
        **BATCHED,
    )
    return np.asarray(column.with_format("numpy")[name][:])


def fingerprint(rows: Rows) -> str:
    """A hash of the rows and of their order, equal on every machine; "stream" for a stream."""
    if isinstance(rows, IterableDataset):
        return "stream"
    return hashlib.sha256(digests(rows).tobytes()).hexdigest()


def digests(rows: Dataset) -> Column:
    """One 64-bit hash for each row, int64 of shape (rows,), cached beside the rows.

    An image, or another medium, counts with its bytes, wherever its file is.
    """
    plain = rows.with_format("arrow")
    modalities = modalities_of(rows.column_names)
    # The file of a medium may change under the same name.
    stamps = []
    for modality in modalities:
        media = pc.list_flatten(plain[modality.column][:])
        for name in pc.unique(pc.struct_field(media, "path")).to_pylist():
            if name and os.path.exists(name):
                stat = os.stat(name)
                stamps.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")

    def digest(table: pa.Table) -> pa.Table:
        values = []
        for row in table.to_pylist():
            for modality in modalities:
                media = row[modality.column] or ()
                row[modality.column] = [modality.content_hash(medium) for medium in media]
            text = json.dumps(row, sort_keys=True, default=repr)
            content_hash = hashlib.blake2b(text.encode(), digest_size=8).digest()
            values.append(int.from_bytes(content_hash, "little", signed=True))
        return pa.table({"digest": pa.array(values, pa.int64())})

    key = cache_key(rows._fingerprint, "digests", *stamps)
    return column_beside(plain, "digest", "int64", digest, key).astype("<i8")


def forget_damaged() -> list[Path]:
    """Delete cached rows that can no longer be read, so that they are made again.

    The files are those of converted, prepared or weighed rows; the deleted ones are returned.
    """
    damaged = []
    for path in Path(datasets.config.HF_DATASETS_CACHE).rglob("cache-*.arrow"):
        try:
            Dataset.from_file(str(path))
        except (pa.ArrowInvalid, OSError):
            log.warning("%s is damaged; it is made again", path)
            path.unlink(missing_ok=True)
            damaged.append(path)
    return damaged
