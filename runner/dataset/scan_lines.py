"""The lines of a file of rows, packed or not, each of a bounded length.

Here are also the words to type that show a line.
"""

import gzip
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shlex import quote

from runner.dataset.form import Row
from runner.errors import DataError, Fault
from runner.io.filetype import HEAD, suffix_of

MAX_BYTES_ROW = 8 << 20
MAX_BYTES_LINE = 256 << 20  # of a line that may be a whole list of rows
UNPACKERS = {".gz": "gzip", ".zst": "zstd"}

Entry = Row | Fault  # of a file: a row, or what is wrong in its place


def open_packed(path: Path) -> io.BufferedReader:
    """A file opened for reading, its bytes unpacked."""
    suffix = path.suffix.lower()
    if suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(str(path), "zstd"))
    if suffix == ".gz":
        # pyarrow's gzip refuses the zeros with which a tape or a tar ends a file.
        return io.BufferedReader(gzip.GzipFile(path))
    return open(path, "rb")


@dataclass
class BoundedLines:
    """The numbered lines that stand whole in the first ``max_bytes`` of a file.

    Raises DataError for a line that is too long to be a row.
    """

    file: io.BufferedReader
    path: Path
    max_bytes: int | None
    is_cut: bool = False  # whether lines behind these were left out
    number: int = 0  # of the last line
    bytes_read: int = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        is_list = False
        if suffix_of(self.path) == ".json":
            is_list = self.file.peek(HEAD).lstrip().startswith(b"[")
        max_line = MAX_BYTES_LINE if is_list else MAX_BYTES_ROW
        for number in count(1):
            line = self.file.readline(max_line)
            if len(line) == max_line:
                raise DataError(self._endless_line(number, max_line, is_list))
            if not line:
                return
            if self.max_bytes is not None and self.bytes_read + len(line) > self.max_bytes:
                self.is_cut = True
                return
            self.number = number
            self.bytes_read += len(line)
            yield number, line

    def _endless_line(self, number: int, max_line: int, is_list: bool) -> Fault:
        """The fault of a line that is too long to be a row."""
        # A long list can be written anew, one object a line; another line can be looked at.
        fix = to_see(self.path, number).replace("  (", " | head -c 300  (", 1)
        if is_list:
            stem = self.path.name.partition(".")[0]
            rows_file = self.path.with_name(f"{stem}.jsonl")
            rows = quote(str(rows_file))
            list_rows = unpacked(self.path, "jq -c '.[]'")
            fix = f"{list_rows} > {rows}, then dataset.path={rows}"
        return Fault(
            where=f"{self.path}:{number}",
            found=f"a line of more than {max_line:,} bytes",
            expected="rows that end",
            fix=fix,
        )


def to_see(path: Path, number: int) -> str:
    """The words to type that show a line of a file."""
    return f"{unpacked(path, f'sed -n {number}p')}  (to see it, and mend it or delete it)"


def unpacked(path: Path, command: str) -> str:
    """A command of the shell that reads a file, which is unpacked first where it is packed."""
    unpacker = UNPACKERS.get(path.suffix.lower())
    if unpacker:
        return f"{unpacker} -dc {quote(str(path))} | {command}"
    return f"{command} {quote(str(path))}"


def then_named(fix: str) -> str:
    """The words of a fix, with the new name as the path where they only rename the file."""
    if re.fullmatch("mv [^&]*", fix):
        return f"{fix}, then dataset.path={fix.rpartition(' ')[2]}"
    return fix


def renamed(path: Path, suffix: str) -> str:
    """The words to type that give a file another suffix and name it as the path."""
    old_word = quote(str(path))
    new_word = quote(str(path.with_suffix(suffix)))
    return then_named(f"mv {old_word} {new_word}")
