"""Rows of JSON as their files have them: a text stays a text.

The reader of datasets takes texts for dates where all of a block look like some, and where a column
has several types it takes texts for JSON, so that "2" becomes a number. It is asked for the types
of the columns. Where these show one of both, the rows are read again, by Python's own reader and in
types that hold what is written.
"""

import codecs
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    ArrowBasedBuilder,
    DatasetBuilder,
    DownloadManager,
    Features,
    Json,
    List,
    SplitGenerator,
    Value,
)
from datasets.builder import Key
from datasets.exceptions import DatasetGenerationError

from runner.dataset.form import Row

BATCH = 1_000
# Names of builders; the second is that of a dataset of the hub that was prepared before.
JSON_BUILDERS = ("json", "cache")
# A moment as text, as it comes out where a block of texts was taken for moments and another was
# not.
MOMENT = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?Z?$"
ONE_BLOCK = 10 << 20  # bytes of a file for which the reader decides at once
MAX_LETTERS_INTEGER = 20  # a longer number does not fit into 64 bits
VERSION = 1  # of what is kept in the cache


@dataclass
class ExactJsonConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """The types of the columns."""

    features: Features | None = None


class ExactJson(ArrowBasedBuilder):  # type: ignore[misc]
    """A dataset of JSON files in types that are given.

    A file has one object in each line, or is one list of objects.
    """

    BUILDER_CONFIG_CLASS = ExactJsonConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=self.config.features)

    def _split_generators(self, dl_manager: DownloadManager) -> list[SplitGenerator]:
        files = dl_manager.download_and_extract(self.config.data_files)
        return [
            SplitGenerator(name, gen_kwargs={"files": list(paths)}) for name, paths in files.items()
        ]

    def _generate_tables(self, files: list[str]) -> Iterator[tuple[Key, pa.Table]]:
        for shard, file in enumerate(files):
            for number, rows in enumerate(_batches(file)):
                yield Key(shard, number), _to_table(rows, self.info.features)


def prepare(builder: DatasetBuilder) -> DatasetBuilder:
    """A builder whose rows are prepared.

    It is the one that is given, or one that reads again what that has misread.
    """
    failure = None
    try:
        builder.download_and_prepare()
    except DatasetGenerationError as error:
        # Perhaps of a text behind others that were taken for moments.
        failure = error
    if _is_misread(builder, is_prepared=failure is None):
        exact = build_exact(builder)
        # A dataset of the hub that was prepared before may be there without its files, where there
        # is no connection.
        if exact.config.data_files or os.path.exists(exact.cache_dir):
            exact.download_and_prepare()
            return exact
    if failure:
        raise failure
    return builder


def build_exact(builder: DatasetBuilder) -> DatasetBuilder:
    """A builder of the same files that reads moments as texts.

    The types are those of the given builder, but columns of several types are JSON.
    """
    types = {}
    for name, kind in (builder.info.features or _guess_types(builder)).items():
        exact_kind = _with_texts(kind)
        types[name] = Json() if "Json(" in repr(exact_kind) else exact_kind
    features = Features(types)
    key = f"{VERSION} {builder.cache_dir} {features!r}"
    return ExactJson(
        dataset_name=builder.dataset_name,
        config_id=f"exact-{hashlib.sha256(key.encode()).hexdigest()[:16]}",
        features=features,
        data_files=builder.config.data_files,
        base_path=builder.base_path,
        repo_id=builder.repo_id,
        token=builder.token,
        storage_options=builder.storage_options,
    )


# --- Types --------------------------------------------------------------------------------------
def _is_misread(builder: DatasetBuilder, *, is_prepared: bool) -> bool:
    """True for rows of JSON some of whose values differ from those in the files, or may differ."""
    if builder.name not in JSON_BUILDERS:
        return False
    types = repr(builder.info.features)
    if "timestamp" in types or "Json(" in types:
        return True
    files = _files_of(builder)
    if not is_prepared:
        # Of a list of objects the reader knows no types before it has read all of it.
        return builder.info.features is None and all(map(os.path.isfile, files))
    if len(files) == 1 and os.path.isfile(files[0]):
        # The reader decides on the type of each column once, by all values of a short file.
        if os.path.getsize(files[0]) < ONE_BLOCK:
            return False
    # A text may look like a moment that was made a text again.
    for rows in builder.as_dataset().values():
        for batch in rows.with_format("arrow").iter(10 * BATCH):
            if any(_holds_moment(column.combine_chunks()) for column in batch.columns):
                return True
    return False


def _files_of(builder: DatasetBuilder) -> list[str]:
    """The files of all splits; a prepared dataset of the hub may have none."""
    files: list[str] = []
    for paths in (builder.config.data_files or {}).values():
        files += paths
    return files


def _guess_types(builder: DatasetBuilder) -> Features:
    """The types of the columns by all of their values, of local files that each hold one list."""
    rows: list[Row] = []
    for file in _files_of(builder):
        for batch in _batches(file, compression="infer"):
            rows += batch
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    types: dict[str, Any] = {}
    for name in names:
        try:
            values = [row.get(name) for row in rows]
            table = pa.table({name: values})
            types |= Features.from_arrow_schema(table.schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # several types
            types[name] = Json()
    return Features(types)


def _holds_moment(values: pa.Array) -> bool:
    """True where a text in an array looks like a moment, however deep it stands."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return _holds_moment(values.flatten())
    if pa.types.is_struct(values.type):
        return any(_holds_moment(field) for field in values.flatten())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return bool(pc.any(pc.match_substring_regex(values, MOMENT)).as_py())
    return False


def _with_texts(kind: Any) -> Any:
    """A type with texts in place of moments, however deep they are in it."""
    if isinstance(kind, Value) and kind.dtype.startswith("timestamp"):
        return Value("string")
    if isinstance(kind, List):
        return List(_with_texts(kind.feature), length=kind.length)
    if isinstance(kind, dict):
        return {name: _with_texts(inner) for name, inner in kind.items()}
    return kind


# --- Rows ---------------------------------------------------------------------------------------
def _batches(file: str, compression: str | None = None) -> Iterator[list[Row]]:
    """The rows of a file, which is one list or has an object in each line, in batches."""
    with fsspec.open(file, "rb", compression=compression) as lines:
        filled = (line for line in lines if line.strip())
        first = next(filled, b"")
        rows: Iterator[Row]
        if first.lstrip().removeprefix(codecs.BOM_UTF8).startswith(b"["):
            rows = iter(_parse(first + lines.read()))
        else:
            first_line = [first] if first else []
            rows = map(_parse, itertools.chain(first_line, filled))
        while batch := list(itertools.islice(rows, BATCH)):
            yield batch


def _parse(text: bytes) -> Any:
    """The value of JSON with numbers as the reader of datasets has them."""
    return json.loads(text, parse_int=_to_number)


def _to_number(text: str) -> int | float:
    """An integer, or the float that the reader of datasets makes of one of more than 64 bits."""
    if len(text) > MAX_LETTERS_INTEGER:
        return float(text)
    number = int(text)
    if -(1 << 63) <= number < 1 << 63:
        return number
    return float(text)


def _to_table(rows: list[Row], types: Features) -> pa.Table:
    """The rows as a table of these types; raises ValueError for a key that they do not have."""
    columns = {}
    for name, field in zip(types, types.arrow_schema, strict=True):
        values = [row.get(name) for row in rows]
        if isinstance(types[name], Json):
            texts = [_to_json(value) for value in values]
            columns[name] = pa.array(texts, pa.string()).cast(field.type)
        else:
            _refuse_new_keys(values, types[name], name)
            columns[name] = pa.array(values, field.type)
    _refuse_new_keys(rows, dict(types), "a row")
    return pa.table(columns)


def _to_json(value: object) -> str | None:
    """JSON of a value; nothing stays nothing."""
    if value is None:
        return None
    return json.dumps(value, ensure_ascii=False)


def _refuse_new_keys(values: Iterable[Any], kind: Any, where: str) -> None:
    """Raise ValueError for a key that the first rows do not have: a table would lose it."""
    if isinstance(kind, List):
        lists = (value for value in values if value)
        _refuse_new_keys(itertools.chain.from_iterable(lists), kind.feature, where)
    elif isinstance(kind, dict):
        mappings = [value for value in values if value is not None]
        keys = set(itertools.chain.from_iterable(mappings))
        new = keys - kind.keys()
        if new:
            names = ", ".join(sorted(new))
            raise ValueError(f"{where} has a key that the first rows do not have: {names}")
        for name, inner in kind.items():
            if isinstance(inner, dict | List):
                inner_values = [mapping.get(name) for mapping in mappings]
                _refuse_new_keys(inner_values, inner, f"{where}.{name}")
