"""Whether a report is up to date: a hash of all it is made from, kept in the page itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from runner.run.read import RunRecord


def fingerprint_of(runs: Iterable[RunRecord], *asked: object) -> str:
    """A hash of the files of some runs, their states, what was asked for, and of the code that makes the report."""
    sha = hashlib.sha256(repr(asked).encode())
    own = sorted(path for path in Path(__file__).parent.rglob("*") if path.suffix in (".py", ".html", ".css"))
    for path in own:
        sha.update(path.read_bytes())
    for run in runs:
        sha.update(f"{run.folder.name} {run.state}\n".encode())
        for path in run.data:
            sha.update(f"{path.name} {path.stat().st_size}\n".encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()[:32]


def is_written(page: Path, mark: str, others: Sequence[Path] = ()) -> bool:
    """Whether a page carries this hash and the files beside it are there."""
    if not page.exists() or not all(other.exists() for other in others):
        return False
    with open(page, encoding="utf-8", errors="replace") as file:
        return f'content="{mark}"' in file.read(1000)
