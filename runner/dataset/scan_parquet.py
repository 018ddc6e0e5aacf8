"""Rows of parquet in batches of a bounded size, and what shows that a file of them is broken."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.dataset import faults
from runner.dataset.scan_lines import MAX_BYTES_LINE, MAX_BYTES_ROW
from runner.errors import DataError, Fault, describe

if TYPE_CHECKING:
    from pyarrow import RecordBatch

MAX_ROWS_PACKED = 1_000_000  # of a file with less than a byte for each
MAX_ROWS_BATCH = 64


@dataclass(frozen=True)
class RowBatch:
    """Some rows, and their bytes when they are written out."""

    rows: "RecordBatch"
    size: int


def check_parquet(file: io.BufferedReader, path: Path, max_bytes: int | None) -> Iterator[Fault]:
    """The fault of a file whose footer or first rows are broken.

    Raises DataError for one without rows, and for rows that are very many or very long.
    """
    from pyarrow import ArrowException, parquet

    total = file.seek(0, io.SEEK_END)
    broken = "a broken footer"
    try:
        count = parquet.read_metadata(path).num_rows
        if count <= 0:
            raise DataError(faults.no_rows(path))
        if count > max(MAX_ROWS_PACKED, total):
            fault = Fault(
                where=str(path),
                found=f"{count:,} rows in {total:,} bytes",
                expected="rows that differ from each other",
                fix=f"save each row once, as {path.stem}.jsonl",
            )
            raise DataError(fault)
        broken = "broken rows"
        bytes_read = 0
        for batch in parquet_batches(path):
            if batch.size > MAX_BYTES_ROW and _has_long_row(batch):
                fault = Fault(
                    where=str(path),
                    found=f"a row of more than {MAX_BYTES_ROW:,} bytes",
                    expected="rows that end",
                    fix=f"copy or download {path.name} again",
                )
                raise DataError(fault)
            bytes_read += batch.size
            if max_bytes is not None and bytes_read > max_bytes:
                break
    except (ArrowException, OSError, OverflowError) as error:
        yield Fault(
            where=str(path),
            found=f"{broken}: {describe(error)}",
            expected="a whole parquet file, PAR1 at both ends",
            fix=f"copy or download {path.name} again",
        )


def _has_long_row(batch: RowBatch) -> bool:
    """True where one row alone is too large; a batch may be large by many small ones."""
    rows = batch.rows
    for index in range(len(rows)):
        row = rows.slice(index, 1)
        if row.nbytes > MAX_BYTES_ROW:
            return True
    return False


def parquet_batches(path: Path) -> Iterator[RowBatch]:
    """The rows of a file in batches; even in a small file they may be very many, or very long."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        largest = 1  # bytes of a column in a group of rows
        for number in range(file.num_row_groups):
            for column in file.metadata.row_group(number).to_dict()["columns"]:
                largest = max(largest, column["total_uncompressed_size"])
        rows_per_batch = max(1, min(MAX_ROWS_BATCH, MAX_BYTES_LINE // largest))
        for rows in file.iter_batches(rows_per_batch):
            # Values that stand once in a dictionary count as often as rows have them.
            size = len(rows)
            for column in rows:
                if hasattr(column, "dictionary_decode"):
                    column = column.dictionary_decode()
                size += column.nbytes
            yield RowBatch(rows, size)
