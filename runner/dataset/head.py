"""The first rows of a dataset as files of their own, in the source's columns: of a large one little is fetched.

Rows are read as ``load`` would read them, but for those of the hub that are not in the cache yet, which are streamed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset, ReadInstruction

from runner.dataset.disk import find_files
from runner.dataset.load import Source, open_source, read_cuts, read_limits, told
from runner.errors import DataError, Fault

LARGE = 100_000_000  # bytes of local files, above which only their first lines are read
FAR = 1000  # rows that are passed over at most to come to where a slice of a stream begins


@dataclass
class Head:
    """Where the first rows are, and how many there are in all: ``rows`` None where nobody has counted them.

    ``whole`` holds up to as many rows as were asked for, ``short`` the shortest of them. ``split`` names both.
    """

    whole: Path
    short: Path
    split: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None


def write_head(node: Mapping[str, Any], folder: Path, *, count: int, train: int, held_out: int) -> Head:
    """The first ``count`` rows to train on, and of each held-out set, that a node of ``load_rows`` means.

    Of the shortest rows there are ``train`` and ``held_out``. Raises DataError as a training would.
    """
    cut, evals = read_cuts(node.get("split"))
    limits = read_limits(node.get("limit"))
    source = _open(node)
    head = Head(folder / "whole", folder / "short")
    if cut:
        head.rows = _total(source, cut, limits["train"])
        head.split["train"] = _write(source, "train", cut, limits["train"], "train", head, count, train)
    kept = {}
    for name, other in evals.items():
        file = f"eval_{re.sub(r'[^A-Za-z0-9]', '_', name)}" if name else "eval"
        kept[name] = _write(source, "eval", other, limits["eval"], file, head, count, held_out)
    head.split["eval"] = kept.get("") if set(kept) <= {""} else kept
    return head


def _open(node: Mapping[str, Any]) -> Source:
    """The source, as a stream where reading all of it would take long."""
    path, files = node["path"], find_files(node["path"])
    how = (node.get("config"), node.get("revision"))
    if files:
        size = sum(os.path.getsize(name) for names in files.splits.values() for name in names)
        return open_source(path, files, *how, streaming=bool(node.get("streaming")) or size > LARGE)
    source = open_source(path, None, *how, streaming=True) if not _is_cached(path, *how) else None
    return source or open_source(path, None, *how, streaming=bool(node.get("streaming")))


def _is_cached(path: str, config: str | None, revision: str | None) -> bool:
    """Whether a dataset of the hub was prepared here before, or can be had from here only."""
    from datasets import load_dataset_builder

    with told(path):
        return os.path.exists(load_dataset_builder(path, config, revision=revision).cache_dir)


def _write(source: Source, use: str, cut: str, limit: int | None, name: str, head: Head, count: int, few: int) -> str:
    """Write the first rows of a slice under a name, all of them and the shortest; gives the name."""
    rows = list(itertools.islice(_read(source, use, cut), min(count, limit or count)))
    if not rows:
        raise DataError(Fault(f"dataset.split.{use}", f"{source.path} {cut}: no rows", "at least one"))
    for folder, kept in ((head.whole, rows), (head.short, shortest(rows, few))):
        folder.mkdir(parents=True, exist_ok=True)
        Dataset.from_list(kept, features=source.builder.info.features).to_parquet(folder / f"{name}.parquet")
    return name


def _read(source: Source, use: str, cut: str) -> Iterable[dict[str, Any]]:
    """The rows of a slice in their order; of a stream from where it begins, but never far from the front."""
    if source.streams is None:
        source.check(use, cut)
        with told(source.path, f"dataset.split.{use}"):
            return source.builder.as_dataset(split=cut)
    name = re.split(r"[\[+]", cut.strip())[0]
    source.check(use, name)
    (first, *_) = _parts(source, cut) or [None]
    start = (first.from_ or 0) if first else 0
    return source.streams[name].skip(min(start, FAR)) if start else source.streams[name]


def _total(source: Source, cut: str, limit: int | None) -> int | None:
    """How many rows a slice has, where the source says how many its splits have."""
    sizes, parts = _sizes(source), _parts(source, cut)
    if not parts:
        return limit
    found = sum((sizes[part.splitname] if part.to is None else part.to) - (part.from_ or 0) for part in parts)
    return min(found, limit or found)


def _parts(source: Source, cut: str) -> list[Any]:
    """The absolute slices of a cut; none where nobody has counted the rows."""
    sizes = _sizes(source)
    with told(source.path, "dataset.split"):
        return list(ReadInstruction.from_spec(cut).to_absolute(sizes)) if sizes and all(sizes.values()) else []


def _sizes(source: Source) -> dict[str, int | None]:
    return {name: info.num_examples for name, info in (source.builder.info.splits or {}).items()}


def shortest(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The shortest rows in their order, of each label as many, because some trainers compare good and bad ones.

    >>> shortest([{"text": "long enough"}, {"text": "a"}, {"text": "bc"}], 2)
    [{'text': 'a'}, {'text': 'bc'}]
    """
    sizes = [len(json.dumps(row, default=str)) for row in rows]
    sides: dict[str, list[int]] = {}
    for place in sorted(range(len(rows)), key=sizes.__getitem__):
        label = rows[place].get("label")
        sides.setdefault(str(label) if isinstance(label, bool) else "", []).append(place)
    dealt = [place for hand in itertools.zip_longest(*sides.values()) for place in hand if place is not None]
    return [rows[place] for place in sorted(dealt[:count])]
