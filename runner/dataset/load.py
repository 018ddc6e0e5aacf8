"""Rows from the hub or from files: split, shuffled, limited, and in the form that a trainer takes.

What costs time is cached by its content, so that a second process, or the next run of a sweep, finds it on disk.
"""

import functools
import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Any, Literal, TypeAlias

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetBuilder, Features, Image, IterableDataset, Json, List, Value
from datasets.exceptions import DatasetGenerationError

from runner.dataset.convert import CONVERT_VERSION, Conversion, RowRequest, find_unread
from runner.dataset.detect import check_without, refuse_media
from runner.dataset.disk import MAX_BYTES_READ, Files, check_files, find_files, path_text, read_columns
from runner.dataset.exact import build_exact, prepare
from runner.dataset.form import CALLING, SPOKEN, TURN_EXTRAS, Role, is_conversation
from runner.dataset.image import COLUMNS, IMAGES, content_hash, find_images, has_images
from runner.dataset.remote import copy_here
from runner.dataset.request import Use, check_cut, check_words, no_row, read_cuts, read_limits, split_of
from runner.dataset.step import Step, first_made, list_steps, made_rows
from runner.errors import DataError, EnvironmentFault, describe, fault
from runner.io.files import SHIPPED
from runner.io.hub import is_of_network
from runner.io.turns import TEMPLATE_ARGUMENTS, THOUGHTS, TemplateHabits, fit_turns
from runner.schema.code import code_hash

log = logging.getLogger(__name__)

Rows: TypeAlias = Dataset | IterableDataset
HeldOut: TypeAlias = Rows | dict[str, Rows] | None
STREAM_BUFFER = 10_000  # rows of a stream that are shuffled among each other
STREAM_HEAD = 1_000  # rows of a stream among which there must be a good one
BATCH = 1_000
READ_COLUMNS = ("tools", TEMPLATE_ARGUMENTS)  # which are no texts any more where they were JSON in one
SEEN_FOR_KEYS = 100  # rows in which columns and keys of turns are looked for that nobody reads
BATCHED: dict[str, Any] = {"batched": True, "batch_size": BATCH}
TURN = {"role": Value("string"), "content": Value("string")}
MEDIUM = re.compile(r"(?:List\()*(?:Audio|Video)\(")  # as datasets writes the types of its columns


def load_rows(
    path: str | list[str],
    *,
    form: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    split: dict[Literal["train", "eval"], Any] | None = None,
    map: dict[str, Any] | list[dict[str, Any] | None] | None = None,  # of a mapping with _target_, what it builds
    columns: dict[Role, str] | None = None,
    system: str | None = None,
    limit: dict[Literal["train", "eval"], int | None] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    streaming: bool = False,
    bad_rows: str = "refuse",
    without: Sequence[str] = (),
    image_folder: str | None = None,
    image_urls: bool = False,
    join_turns: Literal["system", "all"] | None = None,
    thoughts: Literal["inline"] | None = None,
    to: str | None = None,
    keep: Sequence[str] | None = None,
) -> tuple[Rows | None, HeldOut]:
    """The training rows, and the held-out rows: one set, a mapping of named sets, or None.

    ``path`` is a name on the hub, a file, a folder, a pattern of files, a list of these, ``runner://...``, or an
    address (``s3://...``) whose files are copied into the cache. ``split`` has ``train`` and ``eval``, each a slice as
    datasets writes it (``train[:90%]``); ``eval`` may map names to slices, or to functions such as a partial of this
    one, whose held-out rows are meant. Training rows are shuffled before ``limit`` is taken, because files are often
    sorted, and the head of a sorted file is no sample; held-out rows keep their order. ``limit`` counts rows of the
    source. ``map`` is a function row -> row, or None to leave it out, or several of them; each goes over the source's
    rows before their form is found. ``without`` names columns that are as if they were not there. Images are
    below ``image_folder``, else the first file's folder, and with ``image_urls`` at addresses. ``join_turns="system"``
    puts the text of a system turn in front of the next question, and ``all`` makes one of turns of one speaker that
    follow each other; ``thoughts="inline"`` writes what a turn keeps beside its content as ``<think>`` in front of it.
    ``to`` is the trainer form; None changes no row.

    Raises DataError with every bad row of a split; ``bad_rows="drop"`` logs them and leaves them out.
    """
    (train, evals), limits = read_cuts(split), read_limits(limit)
    named, held_out = path_text(path), dict[str, Any]()
    with _each_in_turn():
        files = find_files(copy_here(path))
        images = find_images(files.paths if files else (), image_folder, image_urls)
        shape = {"join_turns": join_turns, "thoughts": thoughts}
        request = RowRequest(form, columns, system, bad_rows, to or "", keep, list_steps(map), without, images, **shape)  # type: ignore[arg-type]
        check_words(files, bad_rows, config=config, revision=revision)
        used = [split_of(part) for cut in (train, *evals.values()) if isinstance(cut, str) for part in cut.split("+")]
        source = open_source(named, files and files.only(used), config, revision, streaming)
        rows = source.read("train", train, limits["train"], seed if shuffle else None, request) if train else None
        for name, cut in evals.items():
            if callable(cut):
                _, others = cut(to=to, keep=keep, seed=seed)
                others = others.take(limits["eval"]) if limits["eval"] else others
            else:
                others = source.read("eval", cut, limits["eval"], None, request)
            held_out[name], is_known = others, isinstance(rows, Dataset) and isinstance(others, Dataset)  # no streams
            if is_known and (shared := int(np.isin(_digests(others), _digests(rows)).sum())):
                which = name or "eval" if callable(cut) else cut
                log.warning("%s %s: %d of %d held-out rows are trained on too", named, which, shared, len(others))
    return rows, held_out.get("") if set(held_out) <= {""} else held_out


def _each_in_turn() -> AbstractContextManager[None]:
    """Has the first process of a machine do the work, and the others find it cached."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return nullcontext()
    import torch
    from accelerate import PartialState as State

    return State(cpu=not torch.accelerator.is_available()).local_main_process_first()  # they must know


def narrow(rows: Rows, request: RowRequest) -> Rows:
    """The rows without the columns that are not wanted, images as they are stored; refused for audio or video."""
    if request.without:
        check_without(request.without, list_columns(rows))
        rows = rows.remove_columns(list(request.without))
    if request.to and not request.steps:
        refuse_media(name for name, kind in (rows.features or {}).items() if MEDIUM.match(repr(kind)))
        stored, given = {Image: Image(decode=False), List: List(Image(decode=False))}, request.columns or {}
        for name, kind in (rows.features or {}).items():
            if isinstance(getattr(kind, "feature", kind), Image):
                if name not in (*COLUMNS, given.get("images")):
                    raise DataError(fault("dataset.image_beside", name=name))
                rows = rows.cast_column(name, stored[type(kind)])
    return rows


def list_columns(rows: Rows) -> list[str]:
    """The names of the columns, of a stream those of its first row."""
    return rows.column_names or list(next(iter(rows), ()))


# --- Where rows come from -----------------------------------------------------------------------
@dataclass(frozen=True)
class RowSource:
    """One dataset with its splits, on disk, or as streams."""

    path: str
    builder: DatasetBuilder
    splits: tuple[str, ...]
    streams: Mapping[str, IterableDataset] | None = None

    def read(self, use: Use, cut: str, limit: int | None, seed: int | None, request: RowRequest) -> Rows:
        """The rows of one slice, in the form that ``request`` asks for."""
        self.check(use, cut)
        label = f"{self.path} {cut}"
        if self.streams is not None:
            stream = narrow(self.streams[cut], request)
            rows = stream if seed is None else stream.shuffle(seed, buffer_size=STREAM_BUFFER)
            rows = rows if limit is None else rows.take(limit)
            if not request.to:
                return rows
            conversion = _conversion(stream, request, label)
            if conversion.pictured:
                raise DataError(fault("dataset.stream_of_images", label=label))
            if not conversion.first(stream.take(STREAM_HEAD)):
                raise DataError(fault("dataset.no_good_row", label=label, count=STREAM_HEAD))
            converted = rows.map(conversion.batch, remove_columns=[*next(iter(stream))], with_indices=True, **BATCHED)
            if request.to != "unpaired":
                return converted
            return converted.shuffle(seed or 0, buffer_size=STREAM_BUFFER)  # parts the halves of a pair
        with translate_dataset_errors(self.path, f"dataset.split.{use}"):
            if not any(self.slices(cut)):
                raise DataError(no_row(use, cut, label))
            rows = narrow(self.builder.as_dataset(split=cut), request)
        count = min(limit or len(rows), len(rows))
        if seed is None:
            return convert_rows(rows.select(range(count)), request, label)
        numbers = np.random.default_rng(seed).permutation(len(rows))[:count]
        key = cache_key(rows._fingerprint, "shuffled", seed, count)
        return convert_rows(rows.select(numbers, new_fingerprint=key), request, label, numbers.tolist(), seed)

    @property
    def lengths(self) -> dict[str, int]:
        """The number of rows of each split, 0 where nobody has counted them."""
        return {name: split.num_examples for name, split in (self.builder.info.splits or {}).items()}

    def slices(self, cut: str) -> list[range]:
        """The rows of each part of a cut, by their number in the part's split."""
        return [range(it.from_, it.to) for it in datasets.ReadInstruction.from_spec(cut).to_absolute(self.lengths)]

    def check(self, use: Use, cut: str) -> None:
        """Refuse splits that are not there, and slices where rows only flow past."""
        check_cut(f"dataset.split.{use}", cut, self.splits, self.path, streaming=self.streams is not None)


def open_source(path: str, files: Files | None, config: str | None, revision: str | None, streaming: bool) -> RowSource:
    with translate_dataset_errors(path):
        builder = _file_builder(files) if files else datasets.load_dataset_builder(path, config, revision=revision)
        if streaming:
            if files:
                check_files(files, 4 * MAX_BYTES_READ // len(files.paths))
            streams = builder.as_streaming_dataset()
            if builder.name == "json" and (files or "timestamp" in repr(builder.info.features)):
                builder = build_exact(builder)
                streams = builder.as_streaming_dataset()
            return RowSource(path, builder, tuple(streams), streams)
        if files and not os.path.exists(builder.cache_dir):  # else they were checked, and are unchanged
            check_files(files)
        builder = prepare(builder)
    return RowSource(path, builder, tuple(builder.info.splits))


def _file_builder(files: Files) -> DatasetBuilder:
    """The reader of local files; csv has no types, and what is text must not become numbers."""
    features = None
    if files.reader == "csv" and (columns := read_columns(files)):
        features = Features({name: Value("string") for name in columns})
    options = dict(files.options) | ({"features": features} if features else {})
    paths = {name: [escape(path) for path in paths] for name, paths in files.splits.items()}  # datasets takes patterns
    return datasets.load_dataset_builder(files.reader, data_files=paths, **options)


@contextmanager
def translate_dataset_errors(path: str, where: str = "dataset.path") -> Iterator[None]:
    """Inside, errors of datasets are raised as faults of the config or of the connection."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(fault("dataset.not_found", error=describe(error))) from error
    except DatasetGenerationError as error:
        raise DataError(fault("dataset.not_read", path=path, error=describe(error.__cause__ or error))) from error
    except (ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        fix = "dataset.config=<name>" if "Config name" in text else ""
        raise DataError(fault("dataset.refused_by_datasets", where=where, error=text, fix=fix)) from error
    except Exception as error:
        if not is_of_network(error):
            raise
        raise EnvironmentFault(fault("dataset.no_hub", error=describe(error))) from error


def cache_key(*parts: object) -> str:
    """A name for a result in the cache, from everything that it depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def key_of_steps(steps: Sequence[Step]) -> list[Any]:
    """All that the results of the steps depend on: their code and their settings."""
    key = []
    for step in steps:
        settings = step.keywords if isinstance(step, functools.partial) else vars(step)
        key.append([code_hash(step), repr(sorted(settings.items()))])
    return key


# --- Conversion ---------------------------------------------------------------------------------
def convert_rows(
    rows: Dataset, request: RowRequest, label: str, numbers: Sequence[int] | None = None, seed: int | None = None
) -> Dataset:
    """The rows in the form of ``request.to``, from the cache where they were converted before.

    ``numbers`` are those that messages give to the rows. For ``unpaired`` good and bad rows come out evenly mixed,
    because KTO's sampler keeps the order and compares within a batch.
    """
    if not request.to:
        return rows
    conversion = _conversion(rows, request, label, len(rows))
    layout, numbers = conversion.layout, range(len(rows)) if numbers is None else numbers
    if not conversion.first(rows):  # then the reasons are those of all rows
        for start in range(0, len(rows), BATCH):
            conversion.batch(rows[start : start + BATCH], numbers[start : start + BATCH])
        raise DataError(conversion.nothing_left(len(rows)))
    how = [request.to, request.system, conversion.kept, request.bad_rows, *key_of_steps(request.steps)]
    how += [str(request.images.folder)] if conversion.pictured else []
    how += [request.join_turns, request.thoughts]
    # The types of the columns must not be guessed from a first batch of nulls.
    if request.steps:  # which may make anything of the source's columns
        turn = Json() if conversion.chats or conversion.pictured else TURN
        found = {name: conversion.like[name] for name in conversion.kept}  # null counts as text
        kinds = {name: pa.string() if value is None else pa.array([value]).type for name, value in found.items()}
        kept = Features.from_arrow_schema(pa.schema(kinds))
    else:
        turn, kept = Json() if conversion.pictured else TURN, {name: rows.features[name] for name in conversion.kept}
        for column in layout.columns.values():
            kind = getattr(rows.features[column], "feature", rows.features[column])
            if isinstance(kind, Json) or (isinstance(kind, dict) and _holds_more(rows, column, kind)):
                turn = Json()  # turns hold more than role and content, which may be anything
    kept |= {name: Json() for name in conversion.kept if name in READ_COLUMNS}
    in_json = [name for name, kind in kept.items() if isinstance(kind, Json) and name not in READ_COLUMNS]

    def convert(cells: Mapping[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        made = conversion.batch(cells, [numbers[index] for index in indices])
        for name in in_json:  # in which datasets would take a text for JSON
            made[name] = [json.dumps(value) if isinstance(value, str) else value for value in made[name]]
        return made

    converted = rows.map(
        convert,
        with_indices=True,
        remove_columns=rows.column_names,
        features=Features({name: _type_of(name, value, turn) for name, value in conversion.like.items()} | kept),
        new_fingerprint=cache_key(CONVERT_VERSION, rows._fingerprint, layout.form, dict(layout.columns), *how),
        desc=f"{label} to {request.to}",
        **BATCHED,
    )
    log.info("%s: %d rows of %s, %d to train on", label, len(rows), layout, len(converted))
    return mix_labels(converted, seed or 0, label) if request.to == "unpaired" else converted


def _conversion(rows: Rows, request: RowRequest, label: str, total: int | None = None) -> Conversion:
    row = first_made(rows, request.steps) if request.steps else next(iter(rows), None)
    if row is None:
        raise DataError(fault("dataset.no_row", label=label))
    pictured = isinstance(rows, Dataset) and not request.steps and _has_pictures(rows)
    conversion = request.start_conversion(list(row), row, label, total, pictured=pictured)
    if request.to:
        head = made_rows(itertools.islice(rows, SEEN_FOR_KEYS), request.steps)
        unread = "; ".join(find_unread(head, conversion.layout, request, conversion.kept))
        is_ours = label.startswith(SHIPPED)  # in which nothing can be mistaken
        if unread and not is_ours and unread not in request.warned:
            request.warned.add(unread)
            log.warning("%s: not used: %s", label, unread)
    return conversion


def _has_pictures(rows: Dataset) -> bool:
    """True where any row has an image in its turns (plain texts hold none), looked for once, cached beside the rows."""
    parted = [name for name, kind in rows.features.items() if re.search(r"Json\(|'content': List", repr(kind))]

    def look(cells: Mapping[str, list[Any]]) -> dict[str, list[bool]]:
        return {"seen": [has_images(dict(zip(cells, row, strict=True))) for row in zip(*cells.values(), strict=True)]}

    key = cache_key(rows._fingerprint, "pictures")
    return bool(parted) and bool(_column_beside(rows.select_columns(parted), "seen", "bool", look, key).any())


def _holds_more(rows: Dataset, column: str, kind: Mapping[str, object]) -> bool:
    turns = rows.with_format("arrow")[column][:]
    turns = pc.list_flatten(turns) if hasattr(rows.features[column], "feature") else turns
    speakers = [pc.unique(pc.struct_field(turns, key)).to_pylist() for key in kind.keys() & {"role", "from"}]
    more = {*TURN_EXTRAS, "function_call"}
    return bool(kind.keys() & more) or any(name in each for each in speakers for name in CALLING)


def _type_of(name: str, value: object, turn: Json | dict[str, Value]) -> List | Value:
    if name == IMAGES:
        return List(Image(mode="RGB"))
    if isinstance(value, list):
        return List(turn if isinstance(value[0], dict) else _type_of(name, value[0], turn))
    return Value({bool: "bool", float: "float64", int: "int64"}.get(type(value), "string"))


def fit_rows(rows: Rows, habits: TemplateHabits) -> Rows:
    """Rows whose turns have the names of roles and keys that a template reads (``fit_turns``)."""
    spoken = [name for name in list_columns(rows) if name in SPOKEN]

    def fit(row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: fit_turns(row[name], habits) for name in spoken if is_conversation(row[name])}

    if not isinstance(rows, Dataset):
        return rows.map(fit)
    words = [f'"{key}":' for key in THOUGHTS if habits.thoughts and key not in habits.thoughts]
    words += [] if habits.developer == "developer" else ['"developer"']
    words += [] if habits.takes_mappings else ['"tool_calls":']
    plain = rows.with_format("arrow")
    if not any(_holds_words(plain[name][:], words) for name in spoken):
        return rows
    key = cache_key(rows._fingerprint, "fitted", asdict(habits))
    return rows.map(fit, features=rows.features, new_fingerprint=key, desc="turns as the template takes them")


def _holds_words(column: pa.ChunkedArray, words: Sequence[str]) -> bool:
    """True where turns, each a piece of JSON or a role beside a content, have one of these words with its quotes."""
    if not pa.types.is_list(column.type):
        return False
    turns = pc.list_flatten(column)
    if pa.types.is_struct(turns.type):
        return '"developer"' in words and "developer" in pc.unique(pc.struct_field(turns, "role")).to_pylist()
    texts = turns.cast(pa.string())
    return any(pc.any(pc.match_substring(texts, word)).as_py() for word in words)


def mix_labels(rows: Dataset, seed: int, label: str = "rows") -> Dataset:
    """Unpaired rows in an order that spreads the good and the bad evenly, each in a seeded shuffle."""
    labels = np.array(rows["label"][:])
    random = np.random.default_rng(seed)
    sides = [random.permutation(np.flatnonzero(labels == side)) for side in (True, False)]
    if not all(len(side) for side in sides):
        log.warning("%s: all labels are alike, so there is nothing to compare", label)
    fractions = [(np.arange(len(side)) + 0.5) / max(1, len(side)) for side in sides]
    order = np.concatenate(sides)[np.argsort(np.concatenate(fractions), kind="stable")]
    return rows.select(order, new_fingerprint=cache_key(rows._fingerprint, "labels mixed", seed))


def forget_damaged() -> list[Path]:
    """Delete what no longer can be read of rows that were converted or prepared before, so that it is made again."""
    damaged = []
    for path in Path(datasets.config.HF_DATASETS_CACHE).rglob("cache-*.arrow"):
        try:
            Dataset.from_file(str(path))
        except (pa.ArrowInvalid, OSError):
            log.warning("%s is damaged; it is made again", path)
            path.unlink(missing_ok=True)
            damaged.append(path)
    return damaged


# --- Contents -----------------------------------------------------------------------------------
def fingerprint(rows: Rows) -> str:
    """A hash of the rows and of their order, equal on every machine; "stream" for a stream."""
    return "stream" if isinstance(rows, IterableDataset) else hashlib.sha256(_digests(rows).tobytes()).hexdigest()


def _digests(rows: Dataset) -> np.ndarray:
    """One 64-bit hash for each row, int64 of shape (rows,), cached beside the rows; of images that of their bytes."""
    plain, stamps = rows.with_format("arrow"), list[str]()
    if IMAGES in rows.column_names:
        names = pc.unique(pc.struct_field(pc.list_flatten(plain[IMAGES][:]), "path")).to_pylist()
        there = [(name, os.stat(name)) for name in filter(None, names) if os.path.exists(name)]
        stamps = [f"{name} {seen.st_size} {seen.st_mtime_ns}" for name, seen in there]

    def digest(table: pa.Table) -> pa.Table:
        found = table.to_pylist()
        for row in found if IMAGES in table.column_names else ():
            row[IMAGES] = list(map(content_hash, row[IMAGES] or ()))
        texts = (json.dumps(row, sort_keys=True, default=repr) for row in found)
        hashes = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
        digests = [int.from_bytes(each, "little", signed=True) for each in hashes]
        return pa.table({"digest": pa.array(digests, pa.int64())})

    key = cache_key(rows._fingerprint, "digests", *stamps)
    return _column_beside(plain, "digest", "int64", digest, key).astype("<i8")


def _column_beside(rows: Dataset, name: str, kind: str, make: Callable[..., Any], key: str) -> np.ndarray:
    """One value for each row, of shape (rows,), made by batches of them and cached beside the rows under a key."""
    how = {"remove_columns": rows.column_names, "new_fingerprint": key, "desc": f"{name} of the rows"}
    found = rows.map(make, features=Features({name: Value(kind)}), **how, **BATCHED)
    return np.asarray(found.with_format("numpy")[name][:])
