"""Predictions -> a file of JSON lines in the order of the rows, which the same command continues where it was.

Batches are appended to a partial file beside it as they come; the file itself is there only when it is whole.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import FolderError, fault
from runner.io.files import display_path, open_own, read_json, read_rows, to_line, write_json, write_text
from runner.run import foreign_faults

Batch = Sequence[tuple[int, int]]  # of rows and samples, by their numbers
FORMAT = 3  # of rows, random numbers and facts; what was begun with another is not continued


def prediction_key(facts: Mapping[str, Any]) -> str:
    """Ten hex digits that name everything on which predictions depend."""
    facts = {"format": FORMAT, **facts}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:10]


class PredictionFile:
    """The file at ``path``, for predictions of this ``key``; beside it, as <path>.json, what they were made with."""

    def __init__(self, path: Path, key: str):
        self.path, self.key = path, key
        self.facts = path.with_name(f"{path.name}.json")
        self.partial = path.with_name(f".{path.name}.{key}.part")
        self.on_batch: Callable[[], object] = lambda: None  # is called when a batch is on the disk

    def is_finished(self) -> bool:
        """Tell whether these very predictions are there; raises FolderError where something else is in the way."""
        if not self.path.exists():
            return False
        if (read_json(self.facts) or {}).get("key") == self.key:
            return True
        raise FolderError(fault("generate.other_predictions", file=display_path(self.path)))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep another process from writing the same predictions; the kernel lets go when this one ends."""
        from filelock import FileLock, Timeout

        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.partial.with_suffix(".lock")
        FolderError.refuse(foreign_faults(filter(Path.is_symlink, [self.partial, lock])))
        lock.touch()  # where this fails, a lock would wait as if another process had it
        try:
            with FileLock(lock, timeout=0):
                yield
                with contextlib.suppress(FileNotFoundError):
                    lock.unlink()
        except Timeout:
            raise FolderError(fault("generate.written_elsewhere", file=display_path(self.path))) from None

    def finish(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Put every row into the file in its order, each once, and say what they were made with."""
        found = {tuple(row.get(name) for name in ("row", "sample")): row for row in read_rows(self.partial)}
        rows = [found[key] for key in sorted(found, key=lambda key: [number or 0 for number in key])]
        write_text(self.path, "".join(map(to_line, rows)))
        write_json(self.facts, {"key": self.key, **facts, "rows": len(rows)})
        self.partial.unlink(missing_ok=True)
        return rows

    def complete(self, batches: Sequence[Batch], make: Callable[[Batch], list[dict[str, Any]]]) -> int:
        """Make the batches that lack something, each on disk before the next; returns how many were there already.

        A batch is made as a whole, because what is side by side in it decides how it is rounded.
        """
        rows = read_rows(self.partial)
        write_text(self.partial, "".join(map(to_line, rows)))  # without a last line that was cut off
        there = {(row["row"], row.get("sample", 0)) for row in rows}
        left = [batch for batch in batches if not there.issuperset(batch)]
        for batch in left:
            lines = map(to_line, make(batch))
            with open_own(self.partial, "a", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            self.on_batch()
        return len(batches) - len(left)
