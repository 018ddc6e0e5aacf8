"""Rows converted in the datasets library, cached by all that they depend on."""

import itertools
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset, Json, List, Value

from runner.dataset import faults
from runner.dataset.conversation import CALLING, TURN_EXTRAS, is_conversation
from runner.dataset.convert import CONVERT_VERSION, Batch, Conversion, RowRequest
from runner.dataset.detect import check_without, refuse_media
from runner.dataset.form import SPOKEN, Cells, Row
from runner.dataset.loaded_rows import (
    BATCH,
    BATCHED,
    Column,
    Rows,
    cache_key,
    column_beside,
    key_of_steps,
    list_columns,
)
from runner.dataset.source_files import PATH_FIX
from runner.dataset.step import first_made, made_rows
from runner.dataset.unread import find_unread
from runner.errors import DataError, Fault
from runner.io.files import SHIPPED
from runner.io.turns import TEMPLATE_ARGUMENTS, THOUGHTS, TemplateHabits, fit_turns
from runner.schema.modality import MODALITIES, UNTRAINED_TYPE, Modality

log = logging.getLogger(__name__)

# Columns that are no texts any more where they were JSON in one.
READ_COLUMNS = ("tools", TEMPLATE_ARGUMENTS)
STREAM_BUFFER = 10_000  # rows of a stream that are shuffled among each other
STREAM_HEAD = 1_000  # rows of a stream among which there must be a good one
SEEN_FOR_KEYS = 100  # rows in which columns and keys of turns are looked for that nobody reads
MADE_FOR_KEYS = 10  # the same where steps make the rows, which may take long
PLAIN_TURN = {"role": Value("string"), "content": Value("string")}
# The type of a turn: of role and content alone, or of JSON, which holds anything.
Turn: TypeAlias = Json | dict[str, Value]


def narrow(rows: Rows, request: RowRequest) -> Rows:
    """The rows without unwanted columns, and with media as they are stored.

    Raises DataError for media that nothing is trained on, and for others in a column that is not
    theirs.
    """
    if request.without:
        check_without(request.without, list_columns(rows))
        rows = rows.remove_columns(list(request.without))
    if not request.to or request.steps:
        return rows
    features = rows.features or {}
    untrained = [name for name, kind in features.items() if UNTRAINED_TYPE.match(repr(kind))]
    refuse_media(untrained)
    for modality, columns in request.media_columns.items():
        for name, kind in features.items():
            stored = modality.undecoded(kind)
            if stored is None:
                continue
            if name not in columns:
                fault = Fault(
                    where=f"dataset.columns.{modality.column}",
                    found=f"{modality.many} in the column {name}",
                    expected=f"the column whose {modality.many} belong to the rows",
                    fix=f"={name}, or dataset.without=[{name}]",
                )
                raise DataError(fault)
            rows = rows.cast_column(name, stored)
    return rows


def convert_rows(
    rows: Dataset,
    request: RowRequest,
    label: str,
    numbers: "Column | None" = None,
    seed: int | None = None,
) -> Dataset:
    """The rows in the form of ``request.to``, from the cache where they were converted before.

    ``numbers`` are those that messages give to the rows. For ``unpaired`` good and bad rows come
    out evenly mixed, because KTO's sampler keeps the order and compares within a batch.
    """
    if not request.to:
        return rows
    conversion = _start(rows, request, label, len(rows))
    numbers_in_source = np.arange(len(rows)) if numbers is None else numbers
    if not conversion.first(rows):
        # Each row is converted, so that the fault has the reasons of all.
        for start in range(0, len(rows), BATCH):
            end = start + BATCH
            conversion.batch(rows[start:end], numbers_in_source[start:end].tolist())
        raise DataError(conversion.nothing_left(len(rows)))
    turn = _type_of_turns(rows, conversion)
    kept = _types_of_kept(rows, conversion)
    json_columns = [name for name, kind in kept.items() if isinstance(kind, Json)]

    def convert_batch(cells: Batch, indices: list[int]) -> Batch:
        made = conversion.batch(cells, numbers_in_source[indices].tolist())
        for name in json_columns:
            if name in READ_COLUMNS:
                continue
            for index, value in enumerate(made[name]):
                if isinstance(value, str):  # which the library would take for JSON
                    made[name][index] = json.dumps(value)
        return made

    # The types of the columns must not be guessed from a first batch of nulls.
    types = {name: _type_of(name, value, turn) for name, value in conversion.like.items()}
    converted = rows.map(
        convert_batch,
        with_indices=True,
        remove_columns=rows.column_names,
        features=Features({**types, **kept}),
        new_fingerprint=_key(rows, conversion),
        desc=f"{label} to {request.to}",
        **BATCHED,
    )
    layout = conversion.layout
    log.info("%s: %d rows of %s, %d to train on", label, len(rows), layout, len(converted))
    if request.to == "unpaired":
        return mix_labels(converted, seed or 0, label)
    return converted


def _key(rows: Dataset, conversion: Conversion) -> str:
    """The name of converted rows in the cache.

    Another order of its parts would convert all rows anew.
    """
    request = conversion.request
    layout = conversion.layout
    parts: list[object] = [request.to, request.system, conversion.kept, request.bad_rows]
    parts += key_of_steps(request.steps)
    if conversion.modalities:
        parts.append(str(request.media.folder))
    parts += [request.join_turns, request.thoughts]
    if request.context_separator is not None:
        parts.append(request.context_separator)
    columns = dict(layout.columns)
    return cache_key(CONVERT_VERSION, rows._fingerprint, layout.form, columns, *parts)


def convert_stream(
    stream: IterableDataset, request: RowRequest, label: str, limit: int | None, seed: int | None
) -> IterableDataset:
    """The first ``limit`` rows of a stream in the form of ``request.to``.

    With a ``seed`` they are shuffled. Raises DataError where no row among the first is good; later
    bad ones are refused as they flow.
    """
    rows = stream
    if seed is not None:
        rows = rows.shuffle(seed, buffer_size=STREAM_BUFFER)
    if limit is not None:
        rows = rows.take(limit)
    if not request.to:
        return rows
    conversion = _start(stream, request, label)
    for modality in conversion.modalities:
        raise DataError(faults.stream_of_media(modality, label))
    if not conversion.first(stream.take(STREAM_HEAD)):
        fault = Fault(
            where=label,
            found=f"no good row among the first {STREAM_HEAD}",
            expected="rows",
        )
        raise DataError(fault)
    columns = list(next(iter(stream)))
    converted = rows.map(conversion.batch, remove_columns=columns, with_indices=True, **BATCHED)
    if request.to == "unpaired":  # in which the halves of a pair stand side by side
        return converted.shuffle(seed or 0, buffer_size=STREAM_BUFFER)
    return converted


def _start(rows: Rows, request: RowRequest, label: str, total: int | None = None) -> Conversion:
    """The conversion of some rows; logs what is in them that nobody reads."""
    row: Row | None
    if request.steps:
        row = first_made(rows, request.steps)
    else:
        row = next(iter(rows), None)
    if row is None:
        fault = Fault(
            where=label,
            found="no row",
            expected="at least one row",
            fix=PATH_FIX,
        )
        raise DataError(fault)
    modalities = []
    if isinstance(rows, Dataset) and not request.steps:
        modalities = [modality for modality in MODALITIES if _is_in_turns(rows, modality)]
    conversion = request.start_conversion(list(row), row, label, total, modalities=modalities)
    # In what ships nothing can be mistaken.
    if not request.to or label.startswith(SHIPPED):
        return conversion
    looked_at = MADE_FOR_KEYS if request.steps else SEEN_FOR_KEYS
    head = made_rows(itertools.islice(rows, looked_at), request.steps)
    unread = "; ".join(find_unread(head, conversion.layout, request, conversion.kept))
    if unread and unread not in request.warned:
        request.warned.add(unread)
        log.warning("%s: not used: %s", label, unread)
    return conversion


def _is_in_turns(rows: Dataset, modality: Modality) -> bool:
    """True where any row has a medium of a kind in its turns.

    It is looked for once, and the answer is cached beside the rows.
    """
    # Turns of plain texts hold none.
    columns = []
    for name, kind in rows.features.items():
        if re.search(r"Json\(|'content': List", repr(kind)):
            columns.append(name)
    if not columns:
        return False

    def look(cells: Batch) -> dict[str, list[bool]]:
        seen = []
        for row in zip(*cells.values(), strict=True):
            cells_of_row = dict(zip(cells, row, strict=True))
            seen.append(modality.is_in(cells_of_row))
        return {"seen": seen}

    key = cache_key(rows._fingerprint, "media", modality.column)
    media_columns = rows.select_columns(columns)
    seen_by_row = column_beside(media_columns, "seen", "bool", look, key)
    return bool(seen_by_row.any())


# --- Types of columns ---------------------------------------------------------------------------
def _type_of_turns(rows: Dataset, conversion: Conversion) -> Turn:
    """The type of turns: JSON where they hold, or may hold, more than role and content."""
    if conversion.modalities or conversion.chats:
        return Json()
    if conversion.request.steps:  # which may make anything of the source's columns
        return PLAIN_TURN
    for column in conversion.layout.columns.values():
        kind = getattr(rows.features[column], "feature", rows.features[column])
        if isinstance(kind, Json):
            return Json()
        if isinstance(kind, dict) and _holds_more(rows, column, kind):
            return Json()
    return PLAIN_TURN


def _holds_more(rows: Dataset, column: str, kind: Mapping[str, object]) -> bool:
    """True where turns have further keys that are read, or calls of tools as their text."""
    if kind.keys() & {*TURN_EXTRAS, "function_call"}:
        return True
    if len(rows) == rows.data.num_rows:  # in any order, in which nothing has to be copied
        turns = rows.data.column(column)
    else:
        turns = rows.with_format("arrow")[column][:]
    if hasattr(rows.features[column], "feature"):
        turns = pc.list_flatten(turns)
    for key in kind.keys() & {"role", "from"}:
        speakers = pc.unique(pc.struct_field(turns, key)).to_pylist()
        if any(name in speakers for name in CALLING):
            return True
    return False


def _types_of_kept(rows: Dataset, conversion: Conversion) -> Features:
    """The types of the columns that go along."""
    if conversion.request.steps:
        arrow_types = {}
        for name in conversion.kept:
            value = conversion.like[name]
            arrow_types[name] = pa.string()  # nothing counts as text
            if value is not None:
                arrow_types[name] = pa.array([value]).type
        types = Features.from_arrow_schema(pa.schema(arrow_types))
    else:
        types = Features({name: rows.features[name] for name in conversion.kept})
    for name in READ_COLUMNS:
        if name in types:
            types[name] = Json()
    return types


def _type_of(name: str, value: object, turn: Turn) -> List | Value:
    """The type of a column of converted rows with such a value."""
    for modality in MODALITIES:
        if name == modality.column:
            return modality.column_type()
    if isinstance(value, list):
        if isinstance(value[0], dict):
            return List(turn)
        return List(_type_of(name, value[0], turn))
    kinds: dict[type, str] = {bool: "bool", float: "float64", int: "int64"}
    return Value(kinds.get(type(value), "string"))


# --- Converted rows -----------------------------------------------------------------------------
def iterate(rows: Dataset) -> Iterator[Row]:
    """The rows one by one, of which many are read at once: that takes a third of the time."""
    for cells in rows.iter(BATCH):
        for values in zip(*cells.values(), strict=True):
            yield dict(zip(cells, values, strict=True))


def fit_rows(rows: Rows, habits: TemplateHabits) -> Rows:
    """Rows whose turns have the names of roles and keys that a template reads (``fit_turns``)."""
    spoken = [name for name in list_columns(rows) if name in SPOKEN]

    def fit(row: Cells) -> Row:
        fitted = {}
        for name in spoken:
            if is_conversation(row[name]):
                fitted[name] = fit_turns(row[name], habits)
        return fitted

    if not isinstance(rows, Dataset):
        return rows.map(fit)
    # Rows without any of these words stay as they are.
    words = []
    if habits.thoughts:
        words += [f'"{key}":' for key in THOUGHTS if key not in habits.thoughts]
    if habits.developer != "developer":
        words.append('"developer"')
    if not habits.takes_mappings:
        words.append('"tool_calls":')
    plain = rows.with_format("arrow")
    if not any(_holds_words(plain[name][:], words) for name in spoken):
        return rows
    key = cache_key(rows._fingerprint, "fitted", asdict(habits))
    desc = "turns as the template takes them"
    return rows.map(fit, features=rows.features, new_fingerprint=key, desc=desc)


def _holds_words(column: pa.ChunkedArray, words: Sequence[str]) -> bool:
    """True where turns have one of these words with its quotes.

    Each turn is a piece of JSON, or else a role beside a content.
    """
    if not pa.types.is_list(column.type):
        return False
    turns = pc.list_flatten(column)
    if pa.types.is_struct(turns.type):
        if '"developer"' not in words:
            return False
        return "developer" in pc.unique(pc.struct_field(turns, "role")).to_pylist()
    texts = turns.cast(pa.string())
    for word in words:
        if pc.any(pc.match_substring(texts, word)).as_py():
            return True
    return False


def mix_labels(rows: Dataset, seed: int, label: str = "rows") -> Dataset:
    """Unpaired rows in an order that spreads the good and the bad evenly.

    Both are shuffled by the seed.
    """
    labels = np.array(rows["label"][:])
    random = np.random.default_rng(seed)
    sides = []
    for is_good in (True, False):
        places = np.flatnonzero(labels == is_good)
        sides.append(random.permutation(places))
    if not all(len(side) for side in sides):
        log.warning("%s: all labels are the same, so there is nothing to compare", label)
    # Each row stands at a fraction of the way, and both sides go the whole way.
    fractions = []
    for side in sides:
        middles = np.arange(len(side)) + 0.5
        fractions.append(middles / max(1, len(side)))
    order = np.argsort(np.concatenate(fractions), kind="stable")
    mixed = np.concatenate(sides)[order]
    return rows.select(mixed, new_fingerprint=cache_key(rows._fingerprint, "labels mixed", seed))
