"""Predictions -> a file of JSON lines in the order of the rows, which the same command continues.

Batches are appended to a partial file beside it as they come; the file itself exists only when it
is whole.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from runner.errors import Fault, FolderError
from runner.io.files import (
    JsonObject,
    display_path,
    open_own,
    read_json,
    read_rows,
    to_line,
    write_json,
    write_text,
)
from runner.run import foreign_faults

Batch: TypeAlias = Sequence[tuple[int, int]]  # numbers of rows and samples
FORMAT = 3  # of rows, random numbers and facts; a file begun with another one is not continued


def prediction_key(facts: Mapping[str, object]) -> str:
    """Ten hex digits that name everything on which predictions depend."""
    text = json.dumps({"format": FORMAT, **facts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class PredictionFile:
    """The file at ``path``, for predictions of this ``key``.

    Beside it <path>.json holds the facts that they were made with.
    """

    def __init__(self, path: Path, key: str):
        self.path = path
        self.key = key
        self.facts = path.with_name(f"{path.name}.json")
        self.partial = path.with_name(f".{path.name}.{key}.part")
        self.on_batch: Callable[[], object] = lambda: None  # called when a batch is on the disk

    def is_finished(self) -> bool:
        """True where these very predictions exist; FolderError where the file holds others."""
        if not self.path.exists():
            return False
        if (read_json(self.facts) or {}).get("key") == self.key:
            return True
        raise FolderError(
            Fault(
                where=display_path(self.path),
                found="holds something else than these predictions",
                expected="no file yet, or the same predictions",
                fix="to=<another file>",
            )
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing the same predictions, while this one lives."""
        from filelock import FileLock, Timeout

        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.partial.with_suffix(".lock")
        links = filter(Path.is_symlink, [self.partial, lock])
        FolderError.refuse(foreign_faults(links))
        lock.touch()  # raises at once where FileLock would wait as if another process had it
        try:
            with FileLock(lock, timeout=0):
                yield
                with contextlib.suppress(FileNotFoundError):
                    lock.unlink()
        except Timeout:
            raise FolderError(
                Fault(
                    where=display_path(self.path),
                    found="another process writes these predictions",
                    expected="one at a time",
                    fix="wait for it, or to=<another file>",
                )
            ) from None

    def finish(self, facts: Mapping[str, object]) -> list[JsonObject]:
        """Write the file with every row once, in order, and its facts; returns the rows."""
        latest = {(row.get("row"), row.get("sample")): row for row in read_rows(self.partial)}
        rows = sorted(latest.values(), key=_order_in_file)
        write_text(self.path, "".join(map(to_line, rows)))
        write_json(self.facts, {"key": self.key, **facts, "rows": len(rows)})
        self.partial.unlink(missing_ok=True)
        return rows

    def complete(self, batches: Sequence[Batch], make: Callable[[Batch], list[JsonObject]]) -> int:
        """Make the batches that lack something, each on disk before the next.

        Returns the number of batches that were complete before. A batch is made as a whole, because
        the rows beside a row decide how it is rounded.
        """
        rows = read_rows(self.partial)
        # A last line that was cut off is left out.
        write_text(self.partial, "".join(map(to_line, rows)))
        finished = {(row["row"], row.get("sample", 0)) for row in rows}
        missing = [batch for batch in batches if not finished.issuperset(batch)]
        for batch in missing:
            lines = map(to_line, make(batch))
            with open_own(self.partial, "a", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            self.on_batch()
        return len(batches) - len(missing)


def _order_in_file(row: JsonObject) -> tuple[int, int]:
    """A key to sort by: the number of the row, then that of the sample."""
    return row.get("row") or 0, row.get("sample") or 0
