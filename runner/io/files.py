"""Files that are either whole or absent: atomic writes without secrets, JSON, and rows of steps.

A row is a line of JSON in a file that stands in the order of steps, such as ``metrics.jsonl``. Here
are also the paths of what ships with the package, and hashes of files.
"""

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from runner.io.secrets import without_values
from runner.io.visible import to_visible

JsonObject = dict[str, Any]

PACKAGE = Path(__file__).resolve().parent.parent
# A checkout has the menu of configs beside the package; a wheel carries it inside.
MENU = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
SHIPPED = "runner://"
HUB_NAME = re.compile(r"(?:[\w.-]+/)?[\w.-]{1,96}")  # of a model or a dataset
# Names that a process which was killed has left: of a file while it was written ...
LEFT_BY_WRITES = re.compile(r"\..+\.(json|jsonl|yaml)\.[0-9a-f]{16}")
# ... and, as a pattern, of what ``set_aside`` has renamed.
ASIDE = f".*.{16 * '[0-9a-f]'}.removed"
# The files of rows in a run folder.
CALLS = "calls.jsonl"  # of tools and environments
ROWS = (
    "metrics.jsonl",
    "samples.jsonl",
    "completions.jsonl",
    "checkpoints/completions.jsonl",
    CALLS,
)
# How many bytes at the end of a file of rows are read first; a step seldom writes as much.
END_BYTES = 1 << 14


# --- Paths --------------------------------------------------------------------------------------
def shipped(path: str) -> str:
    """The place on this machine of ``runner://dataset/toy``, and of ``~/rows``; else the same path.

    Configs name shipped files by this scheme, so that a frozen config and its key hold no path of
    one machine.
    """
    if path.startswith(SHIPPED):
        return str(PACKAGE / path.removeprefix(SHIPPED))
    return os.path.expanduser(path)


def display_path(path: Path) -> str:
    """A path as one would type it from here, with a sign for each character that hides others."""
    if path.absolute().is_relative_to(Path.cwd()):
        return to_visible(os.path.relpath(path))
    return to_visible(str(path))


def hub_home() -> Path:
    """The folder in which the hub's libraries keep what they fetched, and the token."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    return Path(home).expanduser()


# --- Files that are replaced as a whole ---------------------------------------------------------
def sync(path: Path) -> None:
    """Have the system put a file's bytes, or a folder's names, on the disk before we go on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, again: bool = True) -> None:
    """Write a text whole, without secrets; see :func:`write_bytes`."""
    write_bytes(path, without_values(text).encode(), again=again)


def write_json(path: Path, value: object) -> None:
    """Write strict JSON atomically in a folder that is there; see :func:`strict` for NaN."""
    text = json.dumps(strict(value), indent=2, ensure_ascii=False) + "\n"
    write_bytes(path, without_values(text).encode(), make=False)


def write_bytes(path: Path, content: bytes, *, again: bool = True, make: bool = True) -> None:
    """Write a file that readers see either as it was or whole: temporary name, sync, rename, sync.

    The temporary name is a new one each time, and a link in its place or in that of the file is not
    followed. Without ``again`` a file that has this content stays as it is. ``make`` makes the
    folder, but never the one around it: if somebody has deleted a run, it is not begun again.
    """
    if not again:
        with contextlib.suppress(OSError), open_own(path, "rb") as file:
            if file.read() == content:
                return
    if make:
        path.parent.mkdir(exist_ok=True)
    unique = os.urandom(8).hex()
    temporary = path.with_name(f".{path.name}.{unique}")  # ``LEFT_BY_WRITES``
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def open_own(
    path: Path, mode: str = "r", encoding: str | None = None, errors: str | None = None
) -> IO[Any]:
    """Open a file that only we write, to read it (r), to change it (r+) or to add to it (a).

    Changing and adding make the file where there is none. Raises OSError where a link, a pipe, a
    device or a socket is in its place: it is neither followed nor waited for. A file with a second
    name, as ``cp -al`` makes them, gets bytes of its own before it is changed.
    """
    if mode[0] == "a" or "+" in mode:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                write_bytes(path, path.read_bytes())

    def opener(name: str, flags: int) -> int:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        if mode not in ("r", "rb"):
            flags |= os.O_CREAT
        descriptor = os.open(name, flags, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a plain file", name)
        return descriptor

    return open(path, mode, encoding=encoding, errors=errors, opener=opener)


def read_json(path: Path) -> JsonObject | None:
    """The object that a JSON file holds, or None where it is missing, torn, or of another type."""
    with (
        contextlib.suppress(OSError, ValueError, RecursionError),
        open_own(path, encoding="utf-8") as file,
    ):
        content = json.load(file)
        if isinstance(content, dict):
            return content
    return None


def strict(value: object) -> object:
    """The same value for JSON: NaN and infinity are None, and objects of other classes are text.

    JSON has no word for a number that is not finite.
    """
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(value)
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "tolist"):  # an array of numpy or torch
        return strict(value.tolist())
    return str(value)


# --- Rows ---------------------------------------------------------------------------------------
def sync_rows(run_folder: Path) -> None:
    """Have the rows of all steps of a run on the disk, before another file says they were taken."""
    for name in ROWS:
        path = run_folder / name
        if path.exists():
            sync(path)


def to_line(row: Mapping[str, object]) -> str:
    """A row as one line of strict JSON."""
    return json.dumps(strict(dict(row)), ensure_ascii=False) + "\n"


def read_rows(path: Path, most: int | None = None) -> list[JsonObject]:
    """The objects in the lines of a file, or in its first ``most`` lines; none without a file.

    A line that is cut off, or holds no object, is left out.
    """
    rows = []
    with (
        contextlib.suppress(FileNotFoundError),
        open_own(path, encoding="utf-8", errors="replace") as file,
    ):
        for line in islice(file, most):
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict):
                    rows.append(row)
    return rows


def read_step(line: bytes) -> JsonObject | None:
    """The row of a step in a whole line; None where there is none."""
    if not line.endswith(b"\n"):
        return None
    with contextlib.suppress(ValueError):
        row = json.loads(line)
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            return row
    return None


def read_last_row(path: Path) -> JsonObject:
    """The row of the last whole line of a file of rows, without reading it all; empty for none."""
    if not path.exists():
        return {}
    with open_own(path, "rb") as file:
        for lines in _read_ends(file):
            for line in reversed(lines):
                row = read_step(line)
                if row:
                    return row
    return {}


def replace_rows(path: Path, rows: Sequence[JsonObject], *, same: Sequence[str] = ()) -> None:
    """Add rows of one step to a file of rows.

    They take the place of rows of this step with equal values of the keys ``same``, of rows of
    later steps, and of a row that was cut off. What stands before the step is neither read nor
    written.
    """
    if not rows:
        return
    step = rows[0]["step"]
    replaced = {tuple(row.get(key) for key in same) for row in rows}
    with open_own(path, "r+b") as file:
        later_rows = _seek_behind(file, step - 1)
        lines = []
        for row in later_rows:
            is_replaced = tuple(row.get(key) for key in same) in replaced
            if row["step"] == step and not is_replaced:
                lines.append(to_line(row))
        lines += map(to_line, rows)
        file.write(without_values("".join(lines)).encode())
        file.truncate()


def forget_rows(path: Path, after: int) -> None:
    """Cut off a file of rows behind those of a step."""
    if path.exists():
        with open_own(path, "r+b") as file:
            _seek_behind(file, after)
            file.truncate()


def _seek_behind(file: IO[bytes], step: int) -> list[JsonObject]:
    """Go to the place behind the rows of a step, and return those that follow."""
    later_lines: list[bytes] = []
    for lines in _read_ends(file):
        later_lines = _lines_behind(lines, step)
        # An earlier row was met. Without one, all lines of the file are later.
        if len(later_lines) < len(lines):
            break
    size = sum(map(len, later_lines))
    file.seek(-size, os.SEEK_END)
    rows = map(read_step, later_lines)
    return [row for row in rows if row]


def _lines_behind(lines: list[bytes], step: int) -> list[bytes]:
    """The lines behind the last row of this step or an earlier one."""
    for place in reversed(range(len(lines))):
        row = read_step(lines[place])
        if row and row["step"] <= step:
            return lines[place + 1 :]
    return lines


def _read_ends(file: IO[bytes]) -> Iterator[list[bytes]]:
    """The lines at the end of a file, each time of a larger part of it, up to the whole file."""
    size = file.seek(0, os.SEEK_END)
    length = END_BYTES
    while length < size:
        file.seek(size - length)
        lines = file.read().splitlines(keepends=True)
        yield lines[1:]  # the first may be the end of a longer one
        length *= 4
    file.seek(0)
    yield file.read().splitlines(keepends=True)


# --- Hashes and removal -------------------------------------------------------------------------
def sha256(path: Path) -> str:
    """The hex digest of a file's bytes, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder, by its relative name."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    digests = {}
    for path in sorted(paths):
        name = path.relative_to(folder).as_posix()
        digests[name] = sha256(path)
    return digests


def set_aside(path: Path) -> Path:
    """Rename what is to be deleted, so that no reader meets half of it; return the new path."""
    unique = os.urandom(8).hex()
    return path.rename(path.with_name(f".{path.name}.{unique}.removed"))


def remove(folder: Path) -> None:
    """Delete a folder, or a file in its place, so that no reader meets half of it: rename first."""
    set_aside(folder)
    leftovers = glob.escape(f".{folder.name}.") + "*.removed"  # those of a kill, too
    for path in folder.parent.glob(leftovers):
        delete_whole(path)


def delete_whole(path: Path) -> None:
    """Delete a folder with all that is in it, or a file."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
