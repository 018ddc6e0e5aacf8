"""Rows on this machine: which files hold them, which split each file is, and which bytes are bad.

The bytes are looked at before a library reads them, because a bad line would otherwise come up as an
error without file and line, as columns that are shifted, or as a crash of the interpreter. Standard
library only; what the rows mean is found in ``detect``.
"""

import codecs
import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from glob import glob, has_magic
from itertools import islice
from pathlib import Path
from typing import Any

from runner.errors import DataError, Fault
from runner.files import shipped

READERS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
OPTIONS: dict[str, dict[str, object]] = {
    "json": {"parse_agent_traces": False},  # rows with certain columns would be taken for logs
    "csv": {"na_filter": False},  # an answer "None" or "NA" would be taken for nothing
    "parquet": {},
}
READABLE = "a file that ends in " + ", ".join(READERS) + "; .gz may follow"
SAVED_TO_DISK = {"dataset_dict.json", "state.json"}
SHOWN = 5


@dataclass(frozen=True)
class Files:
    """Files of one kind: the reader they need, its options, and the files of each split."""

    reader: str
    splits: Mapping[str, list[str]]
    options: Mapping[str, object]


def _suffix(path: Path) -> str:
    """The suffix by which a file is read, below a .gz."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


# --- Which files --------------------------------------------------------------------------------


def find_files(path: str) -> Files | None:
    """The files behind a path, which may be a file, a folder, a pattern or shipped; None for the hub.

    A file, or all files of a pattern together, are the split ``train``. In a folder each file is the
    split of its name, shards (``train-00000-of-00002``) being one.
    """
    if not path.strip():
        raise DataError(Fault("dataset.path", "no path", READABLE + ", or a name on the hub"))
    place = Path(shipped(path)).expanduser()
    if has_magic(str(place)):
        return _one_kind(path, {"train": _matches(path, str(place))})
    if place.is_dir():
        return _one_kind(path, _splits_in(path, place))
    if place.is_file():
        return _one_kind(path, {"train": [place]})
    if place.is_absolute() or path.startswith((".", "~")) or _suffix(place) in READERS:
        raise DataError(_missing(path, place))
    return None


def _matches(path: str, pattern: str) -> list[Path]:
    found = sorted(file for file in map(Path, glob(pattern, recursive=True)) if file.is_file())
    if not found:
        raise DataError(Fault(path, "no file matches the pattern", READABLE))
    return found


def _splits_in(path: str, folder: Path) -> dict[str, list[Path]]:
    """The files of rows by the name of their split, from the folder itself or from its data/."""
    names = sorted(file.name for file in folder.iterdir())
    if SAVED_TO_DISK & set(names):
        cure = "load_from_disk(folder).to_parquet(file) in Python, then dataset.path=<file>"
        raise DataError(Fault(path, "a folder that save_to_disk wrote", READABLE, cure))
    for place in (folder, folder / "data"):
        files = sorted(file for file in place.glob("*") if _suffix(file) in READERS)
        if files:
            return {name: [f for f in files if _split(f) == name] for name in map(_split, files)}
    raise DataError(Fault(path, f"a folder with {_listed(names)}", READABLE))


def _split(file: Path) -> str:
    stem = file.name.removesuffix(".gz").removesuffix(_suffix(file))
    return re.sub(r"\W", "_", re.sub(r"-\d+-of-\d+$", "", stem))


def _one_kind(path: str, splits: Mapping[str, list[Path]]) -> Files:
    suffixes = sorted({_suffix(file) for files in splits.values() for file in files})
    if not set(suffixes) <= set(READERS):
        raise DataError(Fault(path, "a file of another kind", READABLE))
    kinds = {(READERS[suffix], suffix == ".tsv") for suffix in suffixes}
    if len(kinds) > 1:
        cure = f"dataset.path='{path.rstrip('/')}/*{suffixes[0]}'"
        raise DataError(Fault(path, " and ".join(suffixes) + " files", "files of one kind", cure))
    reader, tabs = kinds.pop()
    options = OPTIONS[reader] | ({"sep": "\t"} if tabs else {})
    return Files(reader, {name: list(map(str, files)) for name, files in splits.items()}, options)


def _missing(path: str, place: Path) -> Fault:
    """What is there instead: the nearest name beside it, or the first folder that is missing."""
    for folder in reversed(place.parents):
        if not folder.is_dir():
            return Fault(path, f"there is no folder {folder}", READABLE)
    names = sorted(file.name for file in place.parent.iterdir())
    close = get_close_matches(place.name, names, n=1)
    cure = f"dataset.path={path.removesuffix(place.name)}{close[0]}" if close else ""
    return Fault(path, f"there is no {place.name}", f"one of {_listed(names)}", cure)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "nothing in it"


def header_of(files: Files) -> list[str]:
    """The names in the first line of csv files; empty where it cannot be read."""
    first = Path(next(iter(files.splits.values()))[0])
    with suppress(EOFError, gzip.BadGzipFile, zlib.error, csv.Error), _open(first) as file:
        return next(_records(file, first, errors="replace"), [])
    return []


# --- Which bytes --------------------------------------------------------------------------------


def check_files(files: Files, limit: int | None = None) -> None:
    """Raise DataError with file and line for what cannot be read; of each file ``limit`` lines."""
    paths = [Path(name) for names in files.splits.values() for name in names]
    faults = (fault for path in paths for fault in _faults(path, files.reader, limit))
    shown = list(islice(faults, SHOWN))
    if shown:
        raise DataError(shown)


def _faults(path: Path, reader: str, limit: int | None) -> Iterator[Fault]:
    try:
        with _open(path) as file:
            if file.peek(1).startswith(b"version https://git-lfs"):
                cure = f"git lfs pull --include '*{path.name}'"
                yield Fault(str(path), "a pointer that git-lfs left", "the file itself", cure)
            else:
                yield from _CHECKS[reader](file, path, limit)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield Fault(str(path), f"broken gzip data: {error}", "a whole .gz file")
    except UnicodeDecodeError:
        cure = "iconv -f <its encoding> -t utf-8"
        yield Fault(str(path), "bytes that are not UTF-8", "UTF-8", cure)


@contextmanager
def _open(path: Path) -> Iterator[io.BufferedReader]:
    with open(path, "rb") as file:
        if path.suffix == ".gz":
            with io.BufferedReader(gzip.GzipFile(fileobj=file)) as unpacked:
                yield unpacked
        else:
            yield file


def _check_json(file: io.BufferedReader, path: Path, limit: int | None) -> Iterator[Fault]:
    """Faults of rows that stand one in a line, or in a .json file also as one list."""
    first = next((line for line in file if line.strip()), b"")
    file.seek(0)
    one_document = first.lstrip().startswith(b"[") or _as_json(first) is None
    if _suffix(path) == ".json" and first and one_document:
        yield from _check_document(file.read(), path)
        return
    rows = 0
    for number, line in enumerate(islice(file, limit), 1):
        if line.strip():
            rows += 1
            if fault := _line_fault(line, f"{path}:{number}"):
                yield fault
    if not rows:
        yield _no_rows(path)


def _as_json(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _line_fault(line: bytes, where: str) -> Fault | None:
    expected = "one JSON object in each line"
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        cure = "iconv -f <its encoding> -t utf-8"
        return Fault(where, "bytes that are not UTF-8", "UTF-8", cure)
    except ValueError as error:
        return Fault(where, f"no JSON: {error}", expected)
    return None if isinstance(value, dict) else Fault(where, f"{line.strip()[:40]!r}", expected)


def _check_document(text: bytes, path: Path) -> Iterator[Fault]:
    expected = "a list of objects, or one object in each line"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        yield Fault(f"{path}:{error.lineno}", f"no JSON: {error}", expected)
        return
    if isinstance(value, dict):
        keys = ", ".join(list(value)[:5])
        cure = "save the list of rows by itself"
        yield Fault(str(path), f"one object with the keys {keys}", expected, cure)
    elif not value:
        yield _no_rows(path)
    else:
        wrong = ((place, row) for place, row in enumerate(value) if not isinstance(row, dict))
        yield from (Fault(f"{path} row {place}", repr(row)[:40], expected) for place, row in wrong)


def _check_csv(file: io.BufferedReader, path: Path, limit: int | None) -> Iterator[Fault]:
    """Faults of records that have another number of fields than the header."""
    records = _records(file, path)
    rows, previous = 0, csv.field_size_limit(sys.maxsize)  # one field may hold a whole document
    try:
        header = next(records, [])
        for name in sorted({name for name in header if header.count(name) > 1}):
            yield Fault(f"{path}:1", f"the column {name!r} twice", "each name once")
        for record in islice(records, limit):
            rows += bool(record)
            if record and len(record) != len(header):
                where = f"{path}:{records.line_num}"
                yield Fault(where, f"{len(record)} fields", f"{len(header)}, as in the header")
    except csv.Error as error:
        yield Fault(f"{path}:{records.line_num}", str(error), "comma-separated values")
    finally:
        csv.field_size_limit(previous)
    if not rows:
        yield _no_rows(path)


def _records(file: io.BufferedReader, path: Path, errors: str = "strict") -> Any:
    lines = codecs.iterdecode(file, "utf-8-sig", errors)
    return csv.reader(lines, delimiter="\t" if _suffix(path) == ".tsv" else ",")


def _check_parquet(file: io.BufferedReader, path: Path, limit: int | None) -> Iterator[Fault]:
    """The mark that stands at both ends of a whole parquet file; its reader checks the rest."""
    size = file.seek(0, io.SEEK_END)
    ends = [_bytes_at(file, 0), _bytes_at(file, max(0, size - 4))]
    if ends != [b"PAR1", b"PAR1"]:
        yield Fault(str(path), f"a file that begins with {ends[0]!r}", "a whole parquet file")


def _bytes_at(file: io.BufferedReader, place: int) -> bytes:
    file.seek(place)
    return file.read(4)


def _no_rows(path: Path) -> Fault:
    return Fault(str(path), "no rows", "at least one")


_CHECKS = {"json": _check_json, "csv": _check_csv, "parquet": _check_parquet}
