"""The runs of a name as a report needs them, and the index from which they are read again in a moment.

The files are the truth. ``outputs/<name>/.index.sqlite`` holds what was read of each run folder, under a hash of that
and of the sizes and times that the files had: all figures are the same without it. It may be deleted at any time, and
is made again where it is damaged or another version's. It is safe on a network's disk, because no lock is taken: sqlite
works in memory, and the file is read whole, and put in its place by a rename.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import Fault
from runner.io.files import open_own, sha256, write_bytes
from runner.report import facts, number
from runner.run import METADATA, read
from runner.run.key import SETTLED_NANOSECONDS
from runner.run.read import RunRecord, find_folders, read_run

INDEX = ".index.sqlite"
# Another version is one in which the code that makes the rows is another one.
VERSION = hashlib.sha256("".join(sha256(Path(str(of.__file__))) for of in (facts, number, read)).encode()).hexdigest()
NAME = f"runs_{VERSION[:10]}"
TABLE = f"CREATE TABLE {NAME} (folder BLOB PRIMARY KEY, record TEXT, seal TEXT)"


@dataclass(frozen=True)
class RunOfMany(RunRecord):
    """A run beside many others: of its manifest the command and the facts, and of its log the last values."""

    facts: Mapping[str, str] = field(default_factory=dict)
    logged: Mapping[str, float] = field(default_factory=dict)


def read_group(group: Path, memory: dict[Path, Any] | None = None) -> list[RunOfMany]:
    """Every run of a name, in the order of the folders' names; what is read anew goes into the index or ``memory``."""
    runs, (rows, known), like = [], _open_index(group / INDEX), dict[str, Any]()
    known |= (held := {} if memory is None else memory.setdefault(group, {}))
    settled = time.time_ns() - SETTLED_NANOSECONDS  # what was written later may change again without another time
    for folder in find_folders(group):
        (stamp, latest), name = stamp_of(folder), os.fsencode(folder.name)
        record, seal = known.pop(name, ("", ""))
        if seal != _seal_of(stamp, record):
            record = json.dumps(_record_of(folder), default=str, skipkeys=True)
            if latest < settled:
                held[name] = record, _seal_of(stamp, record)
                rows.execute(f"INSERT OR REPLACE INTO {NAME} VALUES (?, ?, ?)", [name, *held[name]])
        like = _shared(json.loads(record), like)
        tuples = {"damaged": tuple(like["damaged"]), "faults": tuple(Fault(**each) for each in like["faults"])}
        runs.append(RunOfMany(folder, **like | tuples))
    with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(rows):  # a folder that nobody may write
        rows.executemany(f"DELETE FROM {NAME} WHERE folder = ?", [[gone] for gone in known])
        rows.commit()
        if rows.total_changes and memory is None:
            write_bytes(group / INDEX, rows.serialize(), make=False)
    return runs


def _open_index(path: Path) -> tuple[sqlite3.Connection, dict[bytes, tuple[str, str]]]:
    """The index that is there, read into memory, with its rows; an empty one, partly on the disk, where it is none."""
    rows = sqlite3.connect(":memory:")
    with contextlib.suppress(OSError, sqlite3.Error, MemoryError), open_own(path, "rb") as file:
        rows.deserialize(file.read())
        is_whole = rows.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if is_whole and rows.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL").fetchall() == [(TABLE,)]:
            return rows, {name: own for name, *own in rows.execute(f"SELECT * FROM {NAME}")}
    rows = sqlite3.connect("")
    rows.execute(TABLE)
    return rows, {}


def stamp_of(folder: Path) -> tuple[str, int]:
    """The sizes and times of the files that are read of a run and of the folders in it, and the latest of the times."""
    found: dict[str, tuple[int, ...]] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in (folder, *entries):
            if entry.name in METADATA or not entry.is_file():
                about = os.stat(entry) if entry is folder else os.lstat(entry)
                found[entry.name] = (about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    return json.dumps(found, sort_keys=True), max((max(of[2:]) for of in found.values()), default=time.time_ns())


def _seal_of(stamp: str, record: str) -> str:
    """The hash by which a row is known to be as it was written, and of the files as they are."""
    return hashlib.sha256(f"{stamp}{record}".encode()).hexdigest()


def _record_of(folder: Path) -> dict[str, Any]:
    run = read_run(folder, depth=2)
    kept = {"cfg": run.cfg, "before": run.before, "after": run.after, "logged": run.logged}
    kept["status"] = {key: entry for key, entry in run.status.items() if not isinstance(entry, dict | list)}
    kept |= {"manifest": {"command": run.manifest.get("command")}, "facts": facts.list_facts(run)}
    return kept | {"damaged": run.damaged, "faults": [asdict(each) for each in run.faults]}


def _shared(node: Any, like: Any) -> Any:
    """A tree in which each part that equals that of another one is the same object: many runs take little memory."""
    if not isinstance(node, dict) or not isinstance(like, dict):
        return like if type(node) is type(like) and not isinstance(node, list) and node == like else node
    made = {sys.intern(key): _shared(entry, like.get(key)) for key, entry in node.items()}
    return like if list(made) == list(like) and all(entry is like[key] for key, entry in made.items()) else made
