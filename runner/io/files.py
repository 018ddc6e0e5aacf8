"""Files that are either whole or absent: atomic writes without secrets, rows of steps, hashes, what ships with us."""

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
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, Any

from runner.io.secrets import without_values
from runner.io.visible import to_visible

PACKAGE = Path(__file__).resolve().parent.parent
HUB_NAME = re.compile(r"(?:[\w.-]+/)?[\w.-]{1,96}")  # of a model or a dataset
SHIPPED = "runner://"
LEFT_BY_WRITES = re.compile(r"\..+\.(json|jsonl|yaml)\.[0-9a-f]{16}")  # temporary files of a write that was killed
ASIDE = f".*.{16 * '[0-9a-f]'}.removed"  # what ``set_aside`` has named and a kill has left, as a pattern
ROWS = ("metrics.jsonl", "samples.jsonl", "completions.jsonl", "checkpoints/completions.jsonl")  # of steps
# A checkout keeps the menu of configs beside the package; a wheel carries it inside.
MENU = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"


def shipped(path: str) -> str:
    """The place on this machine of ``runner://dataset/toy``, and of ``~/rows``; any other path comes back as it is.

    Configs name shipped files by this scheme, so that a frozen config and its key hold no path of one machine.
    """
    return str(PACKAGE / path.removeprefix(SHIPPED)) if path.startswith(SHIPPED) else os.path.expanduser(path)


def display_path(path: Path) -> str:
    """A path as one would type it from here, visible where somebody has hidden a part of it."""
    return to_visible(os.path.relpath(path) if path.absolute().is_relative_to(Path.cwd()) else str(path))


def hub_home() -> Path:
    """The folder in which the hub's libraries keep what they fetched, and the token."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HOME") or default).expanduser()


def sync(path: Path) -> None:
    """Have the system put a file's bytes, or a folder's names, on the disk before we go on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_rows(run_folder: Path) -> None:
    """Have the rows of all steps of a run on the disk, before something else there says that they were taken."""
    for path in filter(Path.exists, map(run_folder.joinpath, ROWS)):
        sync(path)


def write_text(path: Path, text: str, *, again: bool = True) -> None:
    """Write a text whole; see :func:`write_bytes`."""
    write_bytes(path, without_values(text).encode(), again=again)


def write_bytes(path: Path, content: bytes, *, again: bool = True, make: bool = True) -> None:
    """Write a file that readers see either as it was or whole: temporary name, sync, rename, sync.

    The temporary name is a new one each time, and a link in its place or in that of the file is not followed. Without
    ``again`` a file that has this content stays as it is. ``make`` makes the folder, but never the one around it: that
    of a run which somebody has deleted is not begun again.
    """
    if not again:
        with contextlib.suppress(OSError), open_own(path, "rb") as file:
            if file.read() == content:
                return
    if make:
        path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")  # ``LEFT_BY_WRITES``
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


def open_own(path: Path, mode: str = "r", **how: Any) -> IO[Any]:
    """Open a file that only we write, to read it (r), to change it (r+) or to add to it (a); the last two may make it.

    Raises OSError where a link, a pipe, a device or a socket is in its place: it is neither followed nor waited for.
    A file with a second name, as ``cp -al`` makes them, gets bytes of its own before it is changed.
    """
    if mode[0] == "a" or "+" in mode:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG((about := path.lstat()).st_mode) and about.st_nlink > 1:
                write_bytes(path, path.read_bytes())

    def opener(name: str, flags: int) -> int:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | (0 if mode in ("r", "rb") else os.O_CREAT)
        descriptor = os.open(name, flags, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a plain file", name)
        return descriptor

    return open(path, mode, opener=opener, **how)


def write_json(path: Path, value: object) -> None:
    """Write strict JSON atomically in a folder that is there; see :func:`strict` for what happens to NaN."""
    text = json.dumps(strict(value), indent=2, ensure_ascii=False) + "\n"
    write_bytes(path, without_values(text).encode(), make=False)


def read_json(path: Path) -> dict | None:
    """The object that a JSON file holds, or None where it is missing, torn, or holds something else."""
    with contextlib.suppress(OSError, ValueError, RecursionError), open_own(path, encoding="utf-8") as file:
        return found if isinstance(found := json.load(file), dict) else None
    return None


def read_rows(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    """The objects in the lines of a file, or in so many; what is none, or cut off, is left out; none without a file."""
    found = []
    with contextlib.suppress(FileNotFoundError), open_own(path, encoding="utf-8", errors="replace") as file:
        for line in islice(file, most):
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
    return [row for row in found if isinstance(row, dict)]


def read_last_row(path: Path) -> dict:
    """The row of the last whole line of a file of steps, without reading the others; empty where there is none."""
    if not path.exists():
        return {}
    with open_own(path, "rb") as file:
        size, block = file.seek(0, os.SEEK_END), 65536
        while True:
            start = file.seek(max(0, size - block))
            lines = file.read().splitlines(keepends=True)
            for line in reversed(lines[1:] if start else lines):  # the first may be the end of a longer one
                if row := read_step(line):
                    return row
            if not start:
                return {}
            block *= 4


def replace_rows(path: Path, rows: Sequence[Mapping[str, Any]], *, same: Sequence[str] = ()) -> None:
    """Add rows of one step to a file of JSON lines that is in the order of steps.

    They take the place of rows of this step with equal values of the keys ``same``, of rows of later steps, and of one
    that was cut off. What stands before the step is neither read nor written.
    """
    if not rows:
        return
    step, there = rows[0]["step"], {tuple(row[key] for key in same) for row in rows}
    with open_own(path, "r+b") as file:
        found = [row for row in _seek_behind(file, step - 1) if row["step"] == step]
        others = [row for row in found if tuple(row.get(key) for key in same) not in there]
        file.write(without_values("".join(map(to_line, [*others, *rows]))).encode())
        file.truncate()


def forget_rows(path: Path, after: int) -> None:
    """Cut off a file of JSON lines that is in the order of steps behind the rows of a step."""
    if path.exists():
        with open_own(path, "r+b") as file:
            _seek_behind(file, after)
            file.truncate()


def _seek_behind(file: IO[bytes], step: int) -> list[dict[str, Any]]:
    """Go to the place behind the rows of a step, and give those that follow, without what is no whole row."""
    size, block = file.seek(0, os.SEEK_END), 8192
    while True:
        start = file.seek(max(0, size - block))
        lines = file.read().splitlines(keepends=True)[bool(start) :]  # the first may be the end of one
        later = list(takewhile(lambda row: not row or row["step"] > step, map(read_step, reversed(lines))))
        if len(later) < len(lines) or not start:
            file.seek(size - sum(map(len, lines[len(lines) - len(later) :])))
            return [row for row in reversed(later) if row]
        block *= 2


def read_step(line: bytes) -> dict[str, Any] | None:
    """The row of a step in a whole line; None where there is none."""
    with contextlib.suppress(ValueError):
        row = json.loads(line) if line.endswith(b"\n") else None
        return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None
    return None


def to_line(row: Mapping[str, Any]) -> str:
    """A row as one line of strict JSON."""
    return json.dumps(strict(dict(row)), ensure_ascii=False) + "\n"


def strict(value: object) -> object:
    """The same value with NaN and infinity as None, because JSON has no word for them; others' objects as text."""
    if isinstance(value, dict):
        return {str(key): strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return strict(value.tolist()) if hasattr(value, "tolist") else str(value)  # of numpy and torch, else anything


def sha256(path: Path) -> str:
    """The hex digest of a file's bytes, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def set_aside(path: Path) -> Path:
    """Give what is to be deleted another name, and return it, so that no reader meets half of it."""
    return path.rename(path.with_name(f".{path.name}.{os.urandom(8).hex()}.removed"))


def remove(folder: Path) -> None:
    """Delete a folder, or a file in its place, so that no reader meets half of it: rename first."""
    set_aside(folder)
    for path in folder.parent.glob(glob.escape(f".{folder.name}.") + "*.removed"):  # and what a kill has left
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def files_of(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder, by its relative name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in paths}
