"""Rows of JSON read with the number of each: an object in each line, or one list of objects."""

import io
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from shlex import quote

from runner.dataset import faults
from runner.dataset.form import Row
from runner.dataset.scan_lines import BoundedLines, Entry, renamed, to_see
from runner.errors import DataError, Fault
from runner.io.filetype import HEAD, suffix_of, undecodable

ROW_EXPECTED = "one JSON object in each line"
LIST_EXPECTED = "a list of objects, or one object in each line"
MAX_DEPTH = 50  # of lists and objects in each other; the reader of rows takes 60
# Keys under which others wrap the rows of a file in one object.
WRAPPERS = ("data", "rows", "train", "examples", "instances", "records", "items", "dataset")


def read_json_rows(file: io.BufferedReader, path: Path, max_bytes: int | None) -> Iterator[Entry]:
    """The rows of a file, and a fault in place of each bad one.

    A list is only read as a whole, so none of its rows comes where ``max_bytes`` cut it.
    """
    lines = BoundedLines(file, path, max_bytes)
    start = file.peek(HEAD).lstrip()
    is_list = start.startswith(b"[")
    may_be_list = suffix_of(path) == ".json"
    numbered = iter(lines)
    filled = ((number, line) for number, line in numbered if line.strip())
    first_number, first = next(filled, (0, b""))
    if may_be_list and first and (is_list or _parse_or_none(first) is None):
        # Blank lines stand for those that were skipped, so that errors have their right number.
        blank_lines = b"\n" * (first_number - 1)
        rest = [line for _, line in numbered]
        text = blank_lines + first + b"".join(rest)
        if not lines.is_cut:
            yield from _read_document(text, path)
        return
    if is_list and not may_be_list:
        # The suffix of the file promises one object in each line.
        fix = to_see(path, 1)
        if re.match(rb"\[\s*(\{|$)", start):
            fix = renamed(path, ".json")
        first_letters = start.splitlines()[0][:40].decode(errors="replace")
        raise DataError(
            Fault(
                where=f"{path}:1",
                found=f"a list: {first_letters!r}",
                expected=ROW_EXPECTED,
                fix=fix,
            )
        )
    count = 0
    beginning = [(first_number, first)] if first else []
    for number, line in chain(beginning, filled):
        count += 1
        yield _read_line(line, path, number)
    if not count and not lines.is_cut:
        yield faults.no_rows(path)
    elif count == 1:
        value = _parse_or_none(first)
        if isinstance(value, dict) and _wraps_rows(value):
            yield _wrapped(value, path)


def _wraps_rows(value: Row) -> bool:
    """True for an object that holds a list of objects under a name that is usual for rows."""
    for name in WRAPPERS:
        rows = value.get(name)
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            return True
    return False


def _wrapped(value: Row, path: Path) -> Fault:
    """The fault of one object in place of rows, with the words that take the rows out of it."""
    lists = [name for name, rows in value.items() if isinstance(rows, list)]
    name = lists[0] if lists else "data"
    rows_file = path.with_name(f"{path.stem}-{name}.jsonl")
    typed_file = quote(str(rows_file))
    command = f"jq -c '.{name}[]' {quote(str(path))} > {typed_file}"
    return Fault(
        where=str(path),
        found=f"one object with the keys {', '.join(list(value)[:5])}",
        expected=LIST_EXPECTED,
        fix=f"{command}, then dataset.path={typed_file}",
    )


def _read_document(text: bytes, path: Path) -> Iterator[Entry]:
    """The rows of one list of objects."""
    try:
        value = _parse(text)
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        where = str(path)
        if isinstance(error, json.JSONDecodeError):
            where = f"{path}:{error.lineno}"
        raise DataError(_not_json(where, error, LIST_EXPECTED, f"mend {path}")) from None
    if isinstance(value, dict):
        yield _wrapped(value, path)
        return
    if not isinstance(value, list) or not value:
        yield faults.no_rows(path)
        return
    doubts = _find_doubts(text)
    for number, row in enumerate(value):
        where = f"{path} row {number}"
        yield _check_row(row, where, f"delete row {number}, or mend it", doubts)


def _read_line(line: bytes, path: Path, number: int) -> Entry:
    """The row of a line, or its fault with the words that show the line."""
    where = f"{path}:{number}"
    try:
        row = _check_row(_parse(line), where, "", _find_doubts(line))
    except UnicodeDecodeError:
        return faults.not_utf8(where, undecodable(line, str(path)))
    except ValueError as error:
        return _not_json(where, error, ROW_EXPECTED, to_see(path, number))
    if isinstance(row, Fault):
        return replace(row, fix=to_see(path, number))
    return row


def _not_json(where: str, error: ValueError, expected: str, fix: str) -> Fault:
    """The fault of a text that is no JSON."""
    return Fault(
        where=where,
        found=f"no JSON: {error}",
        expected=expected,
        fix=fix,
    )


# --- Values -------------------------------------------------------------------------------------
def _parse(text: bytes) -> object:
    """The value of a text in JSON.

    Raises ValueError where it is none, or where an object has a key twice.
    """
    try:
        return _DECODER.decode(text.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _parse_or_none(line: bytes) -> object:
    """The value of a text in JSON, None where it is none."""
    with suppress(ValueError):
        return _parse(line)
    return None


def _to_number(text: str) -> float:
    """A number; raises ValueError for one that would be infinite."""
    number = float(text)
    if math.isinf(number):
        shown = text
        if len(text) > 20:
            shown = f"{text[:20]}..."
        raise ValueError(f"the number {shown} is too large for the reader")
    if not text.lstrip("-").isdigit():
        return number
    return int(text)


def _to_object(pairs: list[tuple[str, object]]) -> Row:
    """An object; raises ValueError for a key that it has twice, of which one would be lost."""
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = [name for name in names if names.count(name) > 1]
        raise ValueError(f"the key {repeated[0]!r} twice in one object")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_to_object, parse_float=_to_number, parse_int=_to_number
)


@dataclass(frozen=True)
class Doubts:
    """Two things that only some texts can hold, and that take long to look for."""

    may_be_deep: bool
    has_escapes: bool


def _find_doubts(text: bytes) -> Doubts:
    """The doubts about a text, by signs that are quickly counted."""
    brackets = text.count(b"[") + text.count(b"{")
    return Doubts(may_be_deep=brackets > MAX_DEPTH, has_escapes=b"\\u" in text)


def _check_row(value: object, where: str, fix: str, doubts: Doubts) -> Entry:
    """The value, or the fault of one that is no object or that the reader of rows does not take."""
    if not isinstance(value, dict):
        text = json.dumps(value, ensure_ascii=False)[:40]
        return Fault(
            where=where,
            found=repr(text),
            expected="a JSON object",
            fix=fix,
        )
    if doubts.may_be_deep and _is_too_deep(value):
        return Fault(
            where=where,
            found="lists or objects nested without an end",
            expected=f"at most {MAX_DEPTH} deep",
            fix=fix,
        )
    if doubts.has_escapes:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return Fault(
                where=where,
                found="half a surrogate pair, which is not a character",
                expected="whole characters",
                fix=fix,
            )
    return value


def _is_too_deep(value: Row) -> bool:
    """True for lists and objects in each other that the reader of rows cannot follow."""
    level: list[dict[str, object] | list[object]] = [value]
    for _ in range(MAX_DEPTH):
        below: list[dict[str, object] | list[object]] = []
        for container in level:
            values = container.values() if isinstance(container, dict) else container
            below += [inner for inner in values if isinstance(inner, dict | list)]
        level = below
    return bool(level)
