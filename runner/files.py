"""Files that are either whole or absent: atomic writes, syncs, hashes, and what ships with the package.

Standard library only. Locks live in ``run``, because only runs are locked.
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SHIPPED = "runner://"


def shipped(path: str) -> str:
    """The place on this machine of ``runner://dataset/toy``; any other path comes back as it is.

    Configs name shipped files by this scheme, so that a frozen config and its key hold no path of one machine.
    """
    return str(PACKAGE / path.removeprefix(SHIPPED)) if path.startswith(SHIPPED) else path


def sync(path: Path) -> None:
    """Have the system put a file's bytes, or a folder's names, on the disk before we go on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a file that readers see either as it was or whole: temporary name, sync, rename, sync."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that a team could not read
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write strict JSON atomically; see :func:`strict` for what happens to NaN."""
    write_text(path, json.dumps(strict(value), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict | None:
    """What a JSON file holds, or None where it is missing or torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def strict(value: object) -> object:
    """The same value with every NaN and infinity as None, because JSON has no word for them.

    >>> strict({"loss": float("nan"), "steps": [1, 2.5]})
    {'loss': None, 'steps': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {str(key): strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def sha256(path: Path) -> str:
    """The hex digest of a file's bytes, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
