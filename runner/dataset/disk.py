"""Rows on this machine: which files hold them, which split each file is, and which bytes are bad.

The bytes are looked at before a library reads them, because a bad line would otherwise come up as an error without file
and line, as columns that are shifted, or as a crash of the interpreter. (The readers of pyarrow count records in place
of lines, take ``null`` for a row, and refuse columns of several types, which datasets reads.)
"""

import codecs
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import glob, has_magic
from importlib.util import find_spec
from itertools import chain, count, islice, pairwise
from pathlib import Path
from shlex import quote
from typing import Any

from runner.dataset.step import Row
from runner.errors import DataError, EnvironmentFault, Fault, describe, fault
from runner.io.files import shipped
from runner.io.filetype import HEAD, sniff, special_file, undecodable
from runner.schema.text import files_beside, likeness, read_tables, to_override

READERS, OPTIONS, EXPECTED, WRAPPERS = read_tables(__file__).values()
PACKED = {".gz": "gzip", ".zst": "zstandard"}
MAX_BYTES_READ = 4 << 20  # of a large dataset, before it is loaded
MAX_BYTES_ROW, MAX_BYTES_LINE = 8 << 20, 256 << 20  # the second of a line that may be a whole list of rows
ENDLESS = ("/", "/proc/", "/sys/", "/dev/")  # below which nobody looks through all folders
MAX_DEPTH = 50  # of lists and objects in each other; the reader of rows takes 60
MAX_ROWS_PACKED = 1_000_000  # of a parquet file with less than a byte for each
# Words in the names of files that are splits, between the borders of words that datasets knows; where no name in a
# folder holds one, all of it is to train on.
SPLIT_WORD = re.compile(
    r"(?<![^\W\d_])(train(ing)?|test(ing)?|val(id(ation)?)?|dev|eval(uation)?|held|hold|(held|hold)_?out|split)"
    r"(set|data|s)?(?![^\W\d_])",
    re.IGNORECASE,
)
# The same in the middle of a word: of names such as trainA and testA, which differ in nothing else.
SPLIT_PART = re.compile(r"train|test|valid|val|dev|eval", re.IGNORECASE)
SAVED_TO_DISK = {"dataset_dict.json", "state.json"}
SHOWN = 5

Entry = Row | Fault  # of a file: a row, or what is wrong in its place
Paths = str | list[str]  # a file, folder or pattern, or several of them


@dataclass(frozen=True)
class Files:
    """Files of one kind: the reader they need, its options, and the files of each split."""

    reader: str
    splits: Mapping[str, list[str]]
    options: Mapping[str, object]

    @property
    def paths(self) -> list[Path]:
        """The files of all splits, each once."""
        return [Path(name) for name in dict.fromkeys(chain.from_iterable(self.splits.values()))]

    def only(self, splits: Collection[str]) -> "Files":
        """The files of these splits, where one may be in several: what is wanted by its name is not to train on too."""
        if len(self.paths) == sum(map(len, self.splits.values())) or not set(splits) <= set(self.splits):
            return self
        named = set(chain.from_iterable(self.splits[name] for name in splits if name != "train"))
        wanted = {name: self.splits[name] for name in splits}
        if "train" in wanted:
            wanted["train"] = [file for file in wanted["train"] if file not in named] or wanted["train"]
        return replace(self, splits=wanted)


def path_text(path: Paths) -> str:
    """A path, or several, as one text."""
    return path if isinstance(path, str) else ", ".join(map(str, path))


def suffix_of(path: Path) -> str:
    """The suffix by which a file is read, below a .gz or .zst."""
    return Path(_unpacked(path.name)).suffix.lower()


def _unpacked(name: str) -> str:
    return name[: name.rindex(".")] if name.lower().endswith((*PACKED,)) else name


# --- Which files --------------------------------------------------------------------------------
def find_files(path: Paths) -> Files | None:
    """The files behind a path, which may be a file, a folder, a pattern, a list of these, or shipped; None for the hub.

    A file, or all files of a pattern or a list together, are the split ``train``. In a folder each file is the
    split of its name, shards (``train-00000-of-00002``) being one; where no name is that of a split, all are ``train``.
    """
    if not isinstance(path, str):
        several = {str(one): find_files(str(one)) for one in path}
        strange = [one for one, files in several.items() if files is None or "train" not in files.splits]
        if strange or not several:
            what = f"{strange[0]}, which is no file here" if strange else "an empty list"
            raise DataError(fault("dataset.no_list_of_files", found=what))
        names = dict.fromkeys(name for files in several.values() if files for name in files.splits["train"])
        return _one_kind(path_text(path), {"train": list(map(Path, names))})
    if not path.strip():
        raise DataError(fault("dataset.no_path"))
    local = Path(shipped(path))
    if odd := special_file(local):
        raise DataError(fault("dataset.no_plain_file", path=path, odd=odd))
    if "**" in str(local) and str(local).partition("*")[0] in ENDLESS:
        raise DataError(fault("dataset.whole_machine", path=path))
    if has_magic(str(local)) and not local.exists():
        found = sorted(file for file in map(Path, glob(str(local), recursive=True)) if file.is_file())
        if not found:
            raise DataError(fault("dataset.no_match", path=path))
        return _one_kind(path, {"train": found})
    if local.is_dir() or local.is_file():
        return _one_kind(path, _splits_in(path, local) if local.is_dir() else {"train": [local]})
    if local.is_absolute() or path.startswith((".", "~")) or suffix_of(local) in READERS:
        for folder in reversed(local.parents):
            if not folder.is_dir():
                raise DataError(fault("dataset.no_folder", path=path, folder=folder))
        if not (near := files_beside(local, (*READERS, *PACKED))):
            raise DataError(fault("dataset.no_file", path=path, name=local.name))
        is_meant = len(near) == 1 or likeness(local.stem, Path(near[0]).stem) > 0.5
        fix = to_override("dataset.path", near[0]) if is_meant else "dataset.path=<one of them>"
        raise DataError(fault("dataset.no_file_but_others", path=path, name=local.name, there=_listed(near), fix=fix))
    return None


def _splits_in(path: str, folder: Path) -> dict[str, list[Path]]:
    names = sorted(file.name for file in folder.iterdir())
    if SAVED_TO_DISK & set(names):
        raise DataError(fault("dataset.saved_to_disk", path=path))
    splits: dict[str, list[Path]] = {}
    for inside in (folder, folder / "data"):
        for file in sorted(inside.glob("*")):
            if suffix_of(file) in READERS:
                name = re.sub(r"-\d+-of-\d+$", "", Path(_unpacked(file.name)).stem)
                splits.setdefault(re.sub(r"\W", "_", name), []).append(file)
        if splits and not _are_splits(splits):
            return {"train": [file for files in splits.values() for file in files], **splits}
        if splits:
            return splits
    raise DataError(fault("dataset.folder_without_rows", path=path, names=_listed(names)))


def _are_splits(names: Collection[str]) -> bool:
    """True for names of files some of which say that they are a split."""
    if any(SPLIT_WORD.search(name) for name in names):
        return True
    rests = [SPLIT_PART.sub("", name) for name in names if SPLIT_PART.search(name)]
    return len(set(rests)) < len(rests)


def _one_kind(path: str, splits: Mapping[str, list[Path]]) -> Files:
    suffixes = sorted({suffix_of(file) for files in splits.values() for file in files})
    if not set(suffixes) <= set(READERS):
        first = next(file for files in splits.values() for file in files)
        odd = sniff(_head_of(first), str(first))
        found = odd.found if odd and "pickle" in odd.found else f"a file of another kind: {first.suffix or 'no suffix'}"
        raise DataError(fault("dataset.other_kind", path=path, found=found, stem=first.stem))
    kinds = {(READERS[suffix], suffix == ".tsv") for suffix in suffixes}
    if len(kinds) > 1:
        fix = f"dataset.path='{path.rstrip('/')}/*{suffixes[0]}'"
        if not Path(shipped(path)).is_dir():
            of_one = [str(file) for files in splits.values() for file in files if suffix_of(file) == suffixes[0]]
            fix = f"dataset.path=[{','.join(of_one)}], or dataset=mixture with each under dataset.parts"
        raise DataError(fault("dataset.several_kinds", path=path, suffixes=" and ".join(suffixes), fix=fix))
    reader, tabs = kinds.pop()
    options = OPTIONS[reader] | ({"sep": "\t"} if tabs else {})
    return Files(reader, {name: list(map(str, files)) for name, files in splits.items()}, options)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "nothing in it"


def read_columns(files: Files, max_bytes: int | None = None) -> list[str]:
    """The columns of files without faults, as far as ``max_bytes`` of the first one and its first rows show them."""
    if files.reader == "parquet":
        from pyarrow import parquet

        return parquet.read_schema(files.paths[0]).names
    rows = islice(_scan(files.paths[0], files.reader, max_bytes), SHOWN)
    return list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))


# --- Which bytes --------------------------------------------------------------------------------
def check_files(files: Files, max_bytes: int | None = None) -> None:
    """Raise DataError with file and line for what cannot be read, in the first ``max_bytes`` of each file."""
    if locked := [path for path in files.paths if path.suffix == ".zst" and find_spec("zstandard") is None]:
        raise EnvironmentFault(fault("dataset.no_zstandard", path=locked[0]))
    entries = (entry for path in files.paths for entry in _scan(path, files.reader, max_bytes))
    DataError.refuse(islice((entry for entry in entries if isinstance(entry, Fault)), SHOWN))


def read_data_file(path: Path, reader: str, first: int | None = None) -> list[Row]:
    """The rows of a checked file, or the ``first`` of them, as its reader would give them but for columns' types."""
    if reader == "parquet":
        return [row for batch, _ in _parquet_batches(path) for row in batch.to_pylist()]
    return [row for row in islice(_scan(path, reader), first) if isinstance(row, dict)]


def holds_at_most(files: Files, max_bytes: int) -> bool:
    """True where the files hold no more bytes; packed ones are unpacked for it, but no further than that."""
    for path in files.paths:
        if path.suffix.lower() == ".parquet":
            for _, size in _parquet_batches(path):
                if (max_bytes := max_bytes - size) < 0:
                    break
        elif path.suffix.lower() in PACKED:
            with _open(path) as file:
                max_bytes -= len(file.read(max_bytes + 1))
        else:
            max_bytes -= path.stat().st_size
        if max_bytes < 0:
            return False
    return True


def _scan(path: Path, reader: str, max_bytes: int | None = None) -> Iterator[Entry]:
    """The rows of a file, but for those of parquet, and a fault in place of each that cannot be read, or has no end."""
    kind = PACKED.get(path.suffix.lower(), "")
    try:
        if odd := special_file(path):
            raise DataError(fault("dataset.special", path=path, odd=odd))
        odd = sniff(_head_of(path), str(path))
        if odd and not odd.found.startswith(kind or ("parquet" if reader == "parquet" else "?")):
            how = {"expected": EXPECTED[reader], "fix": _then_named(odd.fix)}
            raise DataError(fault("dataset.other_bytes", path=path, odd=odd, **how))
        with _open(path) as file:
            yield from {"json": _read_json, "csv": _read_csv, "parquet": _check_parquet}[reader](file, path, max_bytes)
    except DataError as error:
        yield from error.faults
    except UnicodeDecodeError as error:
        yield fault("dataset.undecodable", where=path, odd=undecodable(error.object, str(path)))
    except PermissionError:
        yield fault("dataset.unreadable", path=path)
    except (EOFError, zlib.error, OSError) as error:
        if not kind or getattr(error, "errno", None):  # an error of the disk is none of the data
            raise
        yield fault("dataset.broken_packing", path=path, kind=kind, error=error)


def _head_of(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(HEAD)


def _open(path: Path) -> io.BufferedReader:
    if path.suffix.lower() == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(str(path), "zstd"))
    # Of pyarrow no gzip, which refuses the zeros with which a tape or a tar ends one.
    return io.BufferedReader(gzip.GzipFile(path)) if path.suffix.lower() == ".gz" else open(path, "rb")


@dataclass
class _Lines:
    """The numbered lines that stand whole in the first bytes; raises DataError for a line that no row can be."""

    file: io.BufferedReader
    path: Path
    left: int | None
    cut: bool = False  # others were left out
    number: int = 0
    read: int = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        is_list = suffix_of(self.path) == ".json" and self.file.peek(HEAD).lstrip().startswith(b"[")
        most = MAX_BYTES_LINE if is_list else MAX_BYTES_ROW
        for number in count(1):
            if len(line := self.file.readline(most)) == most:
                fix = _see(self.path, number).replace("  (", " | head -c 300  (", 1)
                if is_list:
                    rows = quote(str(self.path.with_name(f"{self.path.name.partition('.')[0]}.jsonl")))
                    fix = _unpacking(self.path, "jq -c '.[]'") + f" > {rows}, then dataset.path={rows}"
                raise DataError(fault("dataset.endless_line", path=self.path, number=number, most=most, fix=fix))
            if self.left is not None:
                self.left -= len(line)
                self.cut = self.left < 0
            if not line or self.cut:
                return
            self.number, self.read = number, self.read + len(line)
            yield number, line


def _read_json(file: io.BufferedReader, path: Path, max_bytes: int | None) -> Iterator[Entry]:
    lines, start = _Lines(file, path, max_bytes), file.peek(HEAD).lstrip()
    is_list, numbered = start.startswith(b"["), iter(lines)
    begin, first = next(((number, line) for number, line in numbered if line.strip()), (0, b""))
    if suffix_of(path) == ".json" and first and (is_list or _as_json(first) is None):
        text = b"\n" * (begin - 1) + first + b"".join(line for _, line in numbered)
        if not lines.cut:
            yield from _read_document(text, path)
        return
    if suffix_of(path) != ".json" and is_list:
        moved = _then_named(f"mv {quote(str(path))} {quote(str(path.with_suffix('.json')))}")
        fix = moved if re.match(rb"\[\s*(\{|$)", start) else _see(path, 1)
        begun = start.splitlines()[0][:40].decode(errors="replace")
        raise DataError(fault("dataset.list_in_lines", path=path, start=repr(begun), fix=fix))
    rows = 0
    for number, line in chain([(begin, first)], numbered):
        if line.strip():
            rows += 1
            yield _read_line(line, path, number)
    if not rows and not lines.cut:
        yield fault("dataset.no_rows", path=path)
    elif rows == 1 and isinstance(only := _as_json(first), dict):
        lists = [only[name] for name in WRAPPERS if isinstance(only.get(name), list)]
        if any(entry and isinstance(entry[0], dict) for entry in lists):  # it holds the rows under a usual name
            yield _wrapped(only, path)


def _parse(text: bytes) -> object:
    """The value of a text in JSON; raises ValueError where it is none, or an object has a key twice."""
    try:
        return _DECODER.decode(text.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _to_number(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"the number {text[:20]}{'...' * (len(text) > 20)} is beyond what a reader takes")
    return int(text) if text.lstrip("-").isdigit() else number


def _to_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(made := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} twice in one object")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_to_object, parse_float=_to_number, parse_int=_to_number)


def _as_json(line: bytes) -> object:
    with suppress(ValueError):
        return _parse(line)
    return None


def _read_line(line: bytes, path: Path, number: int) -> Entry:
    where = f"{path}:{number}"
    try:
        row = _as_row(_parse(line), where, "", *_looks(line))
        return replace(row, fix=_see(path, number)) if isinstance(row, Fault) else row
    except UnicodeDecodeError:
        return fault("dataset.undecodable", where=where, odd=undecodable(line, str(path)))
    except ValueError as error:
        return fault("dataset.no_json", where=where, error=error, expected=EXPECTED["json"], fix=_see(path, number))


def _looks(text: bytes) -> tuple[bool, bool]:
    return text.count(b"[") + text.count(b"{") > MAX_DEPTH, b"\\u" in text


def _as_row(value: object, where: str, fix: str, may_be_deep: bool, has_escapes: bool) -> Entry:
    if not isinstance(value, dict):
        return fault("dataset.no_object", where=where, text=json.dumps(value, ensure_ascii=False)[:40], fix=fix)
    level: list[Any] = [value] if may_be_deep else []
    for _ in range(MAX_DEPTH):
        inside = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for each in chain.from_iterable(inside) if isinstance(each, dict | list)]
    if level:
        return fault("dataset.too_deep", where=where, most=MAX_DEPTH, fix=fix)
    if has_escapes:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return fault("dataset.half_a_character", where=where, fix=fix)
    return value


def _see(path: Path, number: int) -> str:
    return f"{_unpacking(path, f'sed -n {number}p')}  (to see it, and mend it or delete it)"


def _unpacking(path: Path, command: str) -> str:
    unpack = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    return f"{unpack} -dc {quote(str(path))} | {command}" if unpack else f"{command} {quote(str(path))}"


def _then_named(fix: str) -> str:
    return f"{fix}, then dataset.path={fix.rpartition(' ')[2]}" if re.fullmatch("mv [^&]*", fix) else fix


def _wrapped(value: Row, path: Path) -> Fault:
    name = next((name for name, entry in value.items() if isinstance(entry, list)), "data")
    rows = quote(str(path.with_name(f"{path.stem}-{name}.jsonl")))
    fix = f"jq -c '.{name}[]' {quote(str(path))} > {rows}, then dataset.path={rows}"
    return fault("dataset.wrapped", path=path, keys=", ".join(list(value)[:5]), fix=fix)


def _read_document(text: bytes, path: Path) -> Iterator[Entry]:
    try:
        value = _parse(text)
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        where = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else path
        found = {"error": error, "expected": EXPECTED["list"], "fix": f"mend {path}"}
        raise DataError(fault("dataset.no_json", where=where, **found)) from None
    if isinstance(value, dict):
        yield _wrapped(value, path)
    elif not isinstance(value, list) or not value:
        yield fault("dataset.no_rows", path=path)
    else:
        looks = _looks(text)
        for number, row in enumerate(value):
            yield _as_row(row, f"{path} row {number}", f"delete row {number}, or mend it", *looks)


def _read_csv(file: io.BufferedReader, path: Path, max_bytes: int | None) -> Iterator[Entry]:
    if file.peek(1)[:1] in (b"{", b"["):
        fix = _then_named(f"mv {quote(str(path))} {quote(str(path.with_suffix('.jsonl')))}")
        raise DataError(fault("dataset.json_in_csv", path=path, suffix=suffix_of(path), fix=fix))
    lines = _Lines(file, path, None)
    text = codecs.iterdecode((line for _, line in lines), "utf-8-sig")
    # A last quote is taken into the record before it where that has one open.
    records = csv.reader(chain(text, ['"']), delimiter="\t" if suffix_of(path) == ".tsv" else ",")
    rows, begin, previous = 0, 1, csv.field_size_limit(MAX_BYTES_ROW)  # one field may hold a whole document
    try:
        header: list[str] = next(records, [])
        begin += records.line_num
        if len(header) == 1 and (other := re.fullmatch(r"\w+(?:([;|\t])\w+)+", header[0])):
            raise DataError(fault("dataset.other_commas", path=path, header=header[0], comma=other[1]))
        for name in sorted({name for name, other in pairwise(sorted(header)) if name == other}):
            yield fault("dataset.column_twice", path=path, column=name)
        for record in records:
            if records.line_num > lines.number:
                if begin <= lines.number:
                    yield fault("dataset.open_quote", path=path, number=begin, fix=_see(path, begin))
                break
            before, begin = begin, records.line_num + 1
            rows += bool(record)
            if len(record) == len(header):
                yield dict(zip(header, record, strict=True))
            elif record:
                over = f", in lines {before} to {records.line_num}" if begin - before > 1 else ""
                counts = {"count": len(record), "wanted": len(header)}
                yield fault("dataset.other_fields", path=path, number=records.line_num, lines=over, **counts)
            if max_bytes is not None and lines.read > max_bytes:
                return
    except csv.Error as error:
        if "field larger" in str(error):
            raise DataError(fault("dataset.open_quote", path=path, number=begin, fix=_see(path, begin))) from None
        fix = _see(path, records.line_num)
        raise DataError(fault("dataset.no_csv", path=path, number=records.line_num, error=error, fix=fix)) from None
    finally:
        csv.field_size_limit(previous)
    if not rows:
        yield fault("dataset.no_rows", path=path)


def _check_parquet(file: io.BufferedReader, path: Path, max_bytes: int | None) -> Iterator[Entry]:
    from pyarrow import ArrowException, parquet

    what, total = "a broken footer", file.seek(0, io.SEEK_END)
    try:
        about = parquet.read_metadata(path)
        if about.num_rows <= 0:
            raise DataError(fault("dataset.no_rows", path=path))
        if about.num_rows > max(MAX_ROWS_PACKED, total):
            raise DataError(fault("dataset.same_rows", path=path, rows=about.num_rows, size=total))
        what = "broken rows"
        for batch, size in _parquet_batches(path):
            if size > MAX_BYTES_ROW and any(batch.slice(row, 1).nbytes > MAX_BYTES_ROW for row in range(len(batch))):
                raise DataError(fault("dataset.endless_row", path=path, most=MAX_BYTES_ROW))
            if max_bytes is not None and (max_bytes := max_bytes - size) < 0:
                break
    except (ArrowException, OSError, OverflowError) as error:
        yield fault("dataset.broken_parquet", path=path, part=what, error=describe(error))


def _parquet_batches(path: Path) -> Iterator[tuple[Any, int]]:
    """Batches of rows with their bytes written out: of a small file, rows may be very many, or very long."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        sizes = (part["total_uncompressed_size"] for group in groups for part in group.to_dict()["columns"])
        for batch in file.iter_batches(max(1, min(64, MAX_BYTES_LINE // max(1, *sizes, 1)))):
            columns = [each.dictionary_decode() if hasattr(each, "dictionary_decode") else each for each in batch]
            yield batch, len(batch) + sum(each.nbytes for each in columns)
