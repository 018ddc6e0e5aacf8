"""The runs of a name as a report needs them, and the index that makes reading them again quick.

The files are the truth. ``outputs/<name>/.index.sqlite`` keeps what was read from each run folder,
with a hash of it and of the sizes and times of the files; all figures are the same without the
index. It may be deleted at any time, and is made again where it is damaged or of another version.
It is safe on a network disk, because it takes no lock: sqlite works in memory, and the file is read
as a whole and replaced by a rename.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import Fault
from runner.io.files import open_own, sha256, write_bytes
from runner.report import facts, number
from runner.run import METADATA, history, record
from runner.run.find import find_folders, is_run
from runner.run.key import SETTLED_NANOSECONDS
from runner.run.record import RunRecord, read_run

INDEX = ".index.sqlite"
# The name of the table tells the version of the code that made its rows.
SOURCES = [Path(str(module.__file__)) for module in (facts, number, history, record)]
SOURCE_DIGESTS = "".join(map(sha256, SOURCES))
VERSION = hashlib.sha256(SOURCE_DIGESTS.encode()).hexdigest()[:10]
TABLE_NAME = f"runs_{VERSION}"
TABLE = f"CREATE TABLE {TABLE_NAME} (folder BLOB PRIMARY KEY, record TEXT, seal TEXT)"


@dataclass(frozen=True)
class RunOfMany(RunRecord):
    """A run without its log and without most of its manifest, of which the index holds thousands.

    In place of these it has the facts and the last logged values.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    logged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class IndexRow:
    """A run in the index."""

    record: str  # the fields of a RunOfMany as JSON
    seal: str  # the hash of the record and of the stamp of the files


@dataclass(frozen=True)
class Stamp:
    """The sizes and times of the files of a run as text, and the latest of the times."""

    text: str
    latest: int  # nanoseconds since 1970


Rows = dict[bytes, IndexRow]  # by the name of the run folder
Memory = dict[Path, Rows]  # by the folder of the group


def read_group(group: Path, memory: Memory | None = None) -> list[RunOfMany]:
    """Every run of a name, in the order of the folder names.

    Only runs that have changed are read from their files. Their rows are kept in ``memory``, or
    without it in the index on the disk.
    """
    database, forgotten = _open_index(group / INDEX)
    remembered: Rows = {}
    if memory is not None:
        remembered = memory.setdefault(group, {})
    # A file that was written after this moment may change again without getting another time.
    settled = time.time_ns() - SETTLED_NANOSECONDS
    runs = []
    record: dict[str, Any] = {}
    for folder in find_folders(group):
        name = os.fsencode(folder.name)
        stamp = stamp_of(folder)
        row = remembered.get(name) or _find_row(database, name)
        forgotten.discard(name)
        if row is None or row.seal != _seal_of(stamp, row.record):
            fields = _record_of(folder)
            text = json.dumps(fields, default=str, skipkeys=True)
            row = IndexRow(text, _seal_of(stamp, text))
            if stamp.latest < settled:
                if memory is not None:
                    remembered[name] = row
                insert = f"INSERT OR REPLACE INTO {TABLE_NAME} VALUES (?, ?, ?)"
                database.execute(insert, [name, row.record, row.seal])
        record = _shared(json.loads(row.record), record)
        damaged = tuple(record["damaged"])
        faults = tuple(Fault(**beats) for beats in record["faults"])
        runs.append(RunOfMany(folder, **{**record, "damaged": damaged, "faults": faults}))

    # The remaining rows are of runs that are no longer there.
    deleted_runs = [[name] for name in forgotten]
    # This user may lack the right to write into the folder.
    with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(database):
        database.executemany(f"DELETE FROM {TABLE_NAME} WHERE folder = ?", deleted_runs)
        database.commit()
        if database.total_changes and memory is None:
            write_bytes(group / INDEX, database.serialize(), make=False)
    return runs


def read_runs(folders: Sequence[Path]) -> list[RunOfMany]:
    """The runs of some folders, each of one run or of a group, without doubles."""
    runs = {}
    for folder in folders:
        group = folder.parent if is_run(folder) else folder
        for run in read_group(group):
            if run.folder in folders or run.folder.parent in folders:
                runs[run.folder] = run
    return list(runs.values())


def _open_index(path: Path) -> tuple[sqlite3.Connection, set[bytes]]:
    """The index in memory, with the names of its rows.

    It is a new and empty one if the file is missing or damaged.
    """
    database = sqlite3.connect(":memory:")
    failures = (OSError, sqlite3.Error, MemoryError)
    with contextlib.suppress(*failures), open_own(path, "rb") as file:
        database.deserialize(file.read())
        verdict = database.execute("PRAGMA integrity_check").fetchall()
        tables = database.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
        # Another table, or one more, is that of another version of the code.
        if verdict == [("ok",)] and tables == [(TABLE,)]:
            names = database.execute(f"SELECT folder FROM {TABLE_NAME}")
            return database, {name for (name,) in names}
    database = sqlite3.connect("")  # sqlite moves it to a temporary file if it grows large
    database.execute(TABLE)
    return database, set()


def _find_row(database: sqlite3.Connection, name: bytes) -> IndexRow | None:
    """The row of a run in the index; read alone, because all of them take much memory."""
    select = f"SELECT record, seal FROM {TABLE_NAME} WHERE folder = ?"
    fields = database.execute(select, [name]).fetchone()
    return IndexRow(*fields) if fields else None


def stamp_of(folder: Path) -> Stamp:
    """The stamp of a run folder: of its metadata files and of the folders in it.

    The time of a folder changes when a file in it comes or goes, such as a checkpoint.
    """
    stats: dict[str, os.stat_result] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        stats[folder.name] = os.stat(folder)
        for entry in entries:
            if entry.name in METADATA or not entry.is_file():
                stats[entry.name] = os.lstat(entry)
    figures = {}
    times = []
    for name, stat in stats.items():
        figures[name] = [stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        times += [stat.st_mtime_ns, stat.st_ctime_ns]
    latest = max(times, default=time.time_ns())
    return Stamp(json.dumps(figures, sort_keys=True), latest)


def _seal_of(stamp: Stamp, record: str) -> str:
    """The hash of a record and of the stamp of its files, by which a change of either is seen."""
    content = f"{stamp.text}{record}"
    return hashlib.sha256(content.encode()).hexdigest()


def _record_of(folder: Path) -> dict[str, object]:
    """The fields of a :class:`RunOfMany`, read from the files of the run."""
    run = read_run(folder, depth=2)
    status = {}
    for key, value in run.status.items():
        if not isinstance(value, dict | list):
            status[key] = value
    return {
        "cfg": run.cfg,
        "before": run.before,
        "after": run.after,
        "logged": run.logged,
        "status": status,
        "manifest": {"command": run.manifest.get("command")},
        "facts": facts.list_facts(run),
        "damaged": run.damaged,
        "faults": [asdict(fault) for fault in run.faults],
    }


def _shared(node: Any, previous: Any) -> Any:
    """A tree in which each part that equals its counterpart in a previous tree is the same object.

    This saves memory, because runs of a name have most of their values in common.
    """
    if not isinstance(node, dict) or not isinstance(previous, dict):
        is_equal = type(node) is type(previous) and node == previous
        if is_equal and not isinstance(node, list):  # whose items may be 1 here and true there
            return previous
        return node
    shared = {}
    for key, value in node.items():
        shared[sys.intern(key)] = _shared(value, previous.get(key))
    if list(shared) != list(previous):
        return shared
    is_same = all(value is previous[key] for key, value in shared.items())
    return previous if is_same else shared
