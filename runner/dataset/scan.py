"""Rows read from files of this machine before a library reads them, and the faults of their bytes.

A bad line would otherwise come up as an error without file and line, as columns that are shifted,
or as a crash of the interpreter. (The readers of pyarrow count records in place of lines, take
``null`` for a row, and refuse columns of several types, which datasets reads.)
"""

import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from runner.dataset import faults, scan_csv, scan_json
from runner.dataset.form import Row
from runner.dataset.scan_lines import Entry, open_packed, then_named
from runner.dataset.scan_parquet import check_parquet, parquet_batches
from runner.dataset.source_files import Files, first_bytes
from runner.errors import DataError, EnvironmentFault, Fault
from runner.io.filetype import COMPRESSIONS, sniff, special_file, undecodable

MAX_BYTES_READ = 4 << 20  # of a large dataset, before it is loaded
MAX_FAULTS = 5  # that are shown of all files
ROWS_FOR_COLUMNS = 5
READ_OR_CHECK = {
    "json": scan_json.read_json_rows,
    "csv": scan_csv.read_csv_rows,
    "parquet": check_parquet,
}
EXPECTED = {
    "json": scan_json.ROW_EXPECTED,
    "csv": scan_csv.EXPECTED,
    "parquet": "a whole parquet file",
}


def check_files(files: Files, max_bytes: int | None = None) -> None:
    """Raise DataError with file and line for what cannot be read.

    Of each file the first ``max_bytes`` are looked at, or all. The first few faults are raised.
    """
    for path in files.paths:
        if path.suffix == ".zst" and find_spec("zstandard") is None:
            fault = Fault(
                where=str(path),
                found="zstandard data, and that package is missing",
                expected="the package zstandard",
                fix="pip install zstandard",
            )
            raise EnvironmentFault(fault)
    # One file after the other, so that nothing is read in vain.
    found: list[Fault] = []
    for path in files.paths:
        for entry in _scan(path, files.reader, max_bytes):
            if isinstance(entry, Fault):
                found.append(entry)
            if len(found) == MAX_FAULTS:
                raise DataError(found)
    DataError.refuse(found)


def read_columns(files: Files, max_bytes: int | None = None) -> list[str]:
    """The columns of checked files, as the first rows of the first file show them.

    No more than ``max_bytes`` of that file are read.
    """
    path = files.paths[0]
    if files.reader == "parquet":
        from pyarrow import parquet

        return list(parquet.read_schema(path).names)
    columns: dict[str, None] = {}
    for row in islice(_scan(path, files.reader, max_bytes), ROWS_FOR_COLUMNS):
        if isinstance(row, dict):
            columns |= dict.fromkeys(row)
    return list(columns)


def read_data_file(path: Path, reader: str, count: int | None = None) -> list[Row]:
    """The first ``count`` rows of a checked file, or all, as its reader would give them.

    The types of columns may differ. Of parquet all rows are read.
    """
    rows: list[Row] = []
    if reader == "parquet":
        for batch in parquet_batches(path):
            rows += batch.rows.to_pylist()
        return rows
    return [row for row in islice(_scan(path, reader), count) if isinstance(row, dict)]


def holds_at_most(files: Files, max_bytes: int) -> bool:
    """True where the files hold no more bytes; packed ones are unpacked for it, but no further."""
    total = 0
    for path in files.paths:
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            for batch in parquet_batches(path):
                total += batch.size
                if total > max_bytes:
                    break
        elif suffix in COMPRESSIONS:
            with open_packed(path) as file:
                total += len(file.read(max_bytes - total + 1))
        else:
            total += path.stat().st_size
        if total > max_bytes:
            return False
    return True


def _scan(path: Path, reader: str, max_bytes: int | None = None) -> Iterator[Entry]:
    """The rows of a file, and a fault in place of what cannot be read or has no end.

    Of parquet only the faults come.
    """
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    try:
        _check_type(path, reader, compression)
        with open_packed(path) as file:
            yield from READ_OR_CHECK[reader](file, path, max_bytes)
    except DataError as error:
        yield from error.faults
    except UnicodeDecodeError as error:
        finding = undecodable(error.object, str(path))
        yield faults.not_utf8(path, finding)
    except PermissionError:
        yield Fault(
            where=str(path),
            found="you have no permission to read it",
            expected="a file that this process may read",
            fix=f"chmod +r {path}",
        )
    except (EOFError, zlib.error, OSError) as error:
        # An error of the disk is no fault of the data.
        if not compression or getattr(error, "errno", None):
            raise
        yield Fault(
            where=str(path),
            found=f"broken {compression} data: {error}",
            expected=f"a whole {path.suffix} file",
            fix=f"copy or download {path.name} again",
        )


def _check_type(path: Path, reader: str, compression: str) -> None:
    """Raise DataError for a file that is not what its suffix promises, by its first bytes."""
    special = special_file(path)
    if special:
        fault = Fault(
            where=str(path),
            found=special.found,
            expected="a file",
            fix=special.fix,
        )
        raise DataError(fault)
    finding = sniff(first_bytes(path), str(path))
    if finding is None:
        return
    promised = compression or ("parquet" if reader == "parquet" else "")
    if promised and finding.found.startswith(promised):
        return
    fault = Fault(
        where=str(path),
        found=finding.found,
        expected=EXPECTED[reader],
        fix=then_named(finding.fix),
    )
    raise DataError(fault)
