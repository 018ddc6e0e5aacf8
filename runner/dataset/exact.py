"""Rows of JSON as their files say them: a text stays a text.

The reader of datasets takes texts for dates where all of a block look like some, and where a column has several types
it takes texts for JSON, so that "2" becomes a number. It is asked for the types of the columns. Where these show one of
both, the rows are read again, by Python's own reader and in types that hold what is written.
"""

import codecs
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    ArrowBasedBuilder,
    Dataset,
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

BATCH = 1_000
READERS = ("json", "cache")  # names of builders; the second is that of a dataset of the hub that was prepared before
# A moment as text, as it comes out where a block of texts was taken for moments and another was not.
MOMENT = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?Z?$"
ONE_BLOCK = 10 << 20  # bytes of a file for which the reader decides at once
VERSION = 1  # of what is kept in the cache


@dataclass
class ExactJsonConfig(datasets.BuilderConfig):
    """The types of the columns."""

    features: Features | None = None


class ExactJson(ArrowBasedBuilder):
    """A dataset of JSON files, one object a line or one list of objects, in types that are given."""

    BUILDER_CONFIG_CLASS = ExactJsonConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=self.config.features)

    def _split_generators(self, dl_manager: DownloadManager) -> list[SplitGenerator]:
        files = dl_manager.download_and_extract(self.config.data_files)
        return [SplitGenerator(name, gen_kwargs={"files": list(paths)}) for name, paths in files.items()]

    def _generate_tables(self, files: list[str]) -> Iterator[tuple[Key, pa.Table]]:
        for shard, file in enumerate(files):
            for number, rows in enumerate(_batches(file)):
                yield Key(shard, number), _to_table(rows, self.info.features)


def prepare(builder: DatasetBuilder) -> DatasetBuilder:
    """A builder whose rows are prepared: the one that is given, or one that reads what that has misread."""
    failure = None
    try:
        builder.download_and_prepare()
    except DatasetGenerationError as error:  # perhaps of a text behind others that were taken for moments
        failure = error
    if _is_misread(builder, is_prepared=failure is None):
        exact = build_exact(builder)
        # A dataset of the hub that was prepared before may be there without its files, where there is no connection.
        if exact.config.data_files or os.path.exists(exact.cache_dir):
            exact.download_and_prepare()
            return exact
    if failure:
        raise failure
    return builder


def build_exact(builder: DatasetBuilder) -> DatasetBuilder:
    """A builder of the same files and types, but for moments, which are texts, and columns of several types: JSON."""
    features = builder.info.features or _guess_types(builder)
    kinds = {name: _with_texts(kind) for name, kind in features.items()}
    kinds |= {name: Json() for name, kind in kinds.items() if "Json(" in repr(kind)}
    features = Features(kinds)
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


def _is_misread(builder: DatasetBuilder, *, is_prepared: bool) -> bool:
    """True for rows of JSON some of whose values are others than in the files, or may be."""
    if builder.name not in READERS:
        return False
    types = repr(builder.info.features)
    if "timestamp" in types or "Json(" in types:
        return True
    if not is_prepared:  # lists of objects, of which the reader knows no types before it has read all of them
        return builder.info.features is None and _are_local(builder)
    return not _is_one_block(builder) and _hold_moments(builder.as_dataset())


def _are_local(builder: DatasetBuilder) -> bool:
    return all(os.path.isfile(file) for file in _files_of(builder))


def _files_of(builder: DatasetBuilder) -> list[str]:
    return [file for paths in (builder.config.data_files or {}).values() for file in paths]


def _guess_types(builder: DatasetBuilder) -> Features:
    """The types of the columns by all of their values, of local files that each hold one list."""
    rows = []
    for file in _files_of(builder):
        for batch in _batches(file, compression="infer"):
            rows += batch
    kinds: dict[str, Any] = {}
    for name in {name: None for row in rows for name in row}:
        try:
            kinds |= Features.from_arrow_schema(pa.table({name: [row.get(name) for row in rows]}).schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # several types
            kinds[name] = Json()
    return Features(kinds)


def _is_one_block(builder: DatasetBuilder) -> bool:
    """True where the reader has decided on the type of each column once, by all of its values."""
    files = _files_of(builder)
    return len(files) == 1 and os.path.isfile(files[0]) and os.path.getsize(files[0]) < ONE_BLOCK


def _hold_moments(splits: Mapping[str, Dataset]) -> bool:
    """True where a text looks like a moment that was made a text again."""
    for rows in splits.values():
        for batch in rows.with_format("arrow").iter(100 * BATCH):
            if any(_holds_moment(column.combine_chunks()) for column in batch.columns):
                return True
    return False


def _holds_moment(values: pa.Array) -> bool:
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return _holds_moment(values.flatten())
    if pa.types.is_struct(values.type):
        return any(_holds_moment(field) for field in values.flatten())
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    return is_text and bool(pc.any(pc.match_substring_regex(values, MOMENT)).as_py())


def _with_texts(kind: Any) -> Any:
    """A type with texts in place of moments, however deep they are in it."""
    if isinstance(kind, Value) and kind.dtype.startswith("timestamp"):
        return Value("string")
    if isinstance(kind, List):
        return List(_with_texts(kind.feature), length=kind.length)
    if isinstance(kind, dict):
        return {name: _with_texts(inner) for name, inner in kind.items()}
    return kind


def _batches(file: str, compression: str | None = None) -> Iterator[list[dict[str, Any]]]:
    with fsspec.open(file, "rb", compression=compression) as lines:
        first = next((line for line in lines if line.strip()), b"")
        if first.lstrip().removeprefix(codecs.BOM_UTF8).startswith(b"["):
            rows = iter(_parse(first + lines.read()))
        else:
            rows = (_parse(line) for line in itertools.chain([first], lines) if line.strip())
        while batch := list(itertools.islice(rows, BATCH)):
            yield batch


def _parse(text: bytes) -> Any:
    return json.loads(text, parse_int=_to_number)


def _to_number(text: str) -> int | float:
    """An integer, or the float that the reader of datasets makes of one of more than 64 bits."""
    number = int(text) if len(text) <= 20 else float(text)
    return number if -(1 << 63) <= number < 1 << 63 else float(text)


def _to_table(rows: list[dict[str, Any]], kinds: Features) -> pa.Table:
    columns = {}
    for name, field in zip(kinds, kinds.arrow_schema, strict=True):
        values = [row.get(name) for row in rows]
        if isinstance(kinds[name], Json):
            texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
            columns[name] = pa.array(texts, pa.string()).cast(field.type)
        else:
            _refuse_new_keys(values, kinds[name], name)
            columns[name] = pa.array(values, field.type)
    _refuse_new_keys(rows, dict(kinds), "a row")
    return pa.table(columns)


def _refuse_new_keys(values: Iterable[Any], kind: Any, where: str) -> None:
    """Raise ValueError for a key that the first rows had not: a table would lose it."""
    if isinstance(kind, List):
        _refuse_new_keys((inner for value in values if value for inner in value), kind.feature, where)
    elif isinstance(kind, dict):
        mappings = [value for value in values if value is not None]
        new = {key for value in mappings for key in value} - kind.keys()
        if new:
            raise ValueError(f"{where} has a key that the first rows have not: {', '.join(sorted(new))}")
        for name, inner in kind.items():
            if isinstance(inner, dict | List):
                _refuse_new_keys((value.get(name) for value in mappings), inner, f"{where}.{name}")
