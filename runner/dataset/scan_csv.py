"""Rows of CSV and TSV read with the line of each, and a fault in place of a record that is bad."""

import codecs
import csv
import io
import re
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

from runner.dataset import faults
from runner.dataset.scan_lines import MAX_BYTES_ROW, BoundedLines, Entry, renamed, to_see
from runner.errors import DataError, Fault
from runner.io.filetype import suffix_of

EXPECTED = "comma-separated values"
CLOSE_QUOTE = '"'


def read_csv_rows(file: io.BufferedReader, path: Path, max_bytes: int | None) -> Iterator[Entry]:
    """The rows of a file as text by column, and a fault in place of each bad record.

    The record in which ``max_bytes`` end is read to its end.
    """
    if file.peek(1)[:1] in (b"{", b"["):
        fault = Fault(
            where=str(path),
            found=f"json in a {suffix_of(path)} file",
            expected=EXPECTED,
            fix=renamed(path, ".jsonl"),
        )
        raise DataError(fault)
    lines = BoundedLines(file, path, None)
    lines_alone = (line for _, line in lines)
    text = codecs.iterdecode(lines_alone, "utf-8-sig")
    # A quote behind the last line becomes a part of the last record where that has one open: the
    # record then ends behind the lines of the file.
    delimiter = "\t" if suffix_of(path) == ".tsv" else ","
    records = csv.reader(chain(text, [CLOSE_QUOTE]), delimiter=delimiter)
    # One field may hold a whole document.
    previous_limit = csv.field_size_limit(MAX_BYTES_ROW)
    count = 0
    begin = 1  # the line in which the record begins that is read next
    try:
        header = next(records, [])
        begin += records.line_num
        yield from _check_header(header, path)
        for record in records:
            if records.line_num > lines.number:
                if begin <= lines.number:
                    yield _open_quote(path, begin)
                break
            if record:
                count += 1
                yield _to_row(record, header, path, begin, records.line_num)
            begin = records.line_num + 1
            if max_bytes is not None and lines.bytes_read > max_bytes:
                return
    except csv.Error as error:
        if "field larger" in str(error):
            raise DataError(_open_quote(path, begin)) from None
        fault = Fault(
            where=f"{path}:{records.line_num}",
            found=str(error),
            expected=EXPECTED,
            fix=to_see(path, records.line_num),
        )
        raise DataError(fault) from None
    finally:
        csv.field_size_limit(previous_limit)
    if not count:
        yield faults.no_rows(path)


def _check_header(header: list[str], path: Path) -> Iterator[Fault]:
    """A fault for each name that stands twice; raises DataError for names that no comma divides."""
    other = None
    if len(header) == 1:
        other = re.fullmatch(r"\w+(?:([;|\t])\w+)+", header[0])
    if other:
        fault = Fault(
            where=f"{path}:1",
            found=f"one column {header[0]!r}, cut by {other[1]!r}",
            expected="comma-separated values, or tabs in a .tsv file",
            fix=f"save it with commas, or with tabs as {path.stem}.tsv",
        )
        raise DataError(fault)
    repeated = {name for name, following in pairwise(sorted(header)) if name == following}
    for name in sorted(repeated):
        yield Fault(
            where=f"{path}:1",
            found=f"the column {name!r} twice",
            expected="each name once",
            fix="rename one of the two",
        )


def _to_row(record: list[str], header: list[str], path: Path, begin: int, end: int) -> Entry:
    """A record by its columns, or the fault of too many or too few fields.

    It stands in the lines ``begin`` to ``end``.
    """
    if len(record) == len(header):
        return dict(zip(header, record, strict=True))
    lines = f", in lines {begin} to {end}" if end > begin else ""
    return Fault(
        where=f"{path}:{end}",
        found=f"{len(record)} fields{lines}",
        expected=f"{len(header)}, as in the header",
        fix='quote fields that hold commas or lines: "a, b"',
    )


def _open_quote(path: Path, number: int) -> Fault:
    """The fault of a quote that swallows the rest of a file."""
    return Fault(
        where=f"{path}:{number}",
        found="a quote that is never closed",
        expected='two of them: "a, b"',
        fix=to_see(path, number),
    )
