"""The layout of a run folder: its files by their names, and what does not belong in its place.

Links to a run folder are the user's. One inside it would have files elsewhere overwritten, deleted
or shown, and a pipe would have us wait for ever. Some trackers make links in a folder of theirs,
where we neither write nor delete.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.errors import Fault
from runner.io.files import ROWS
from runner.schema.upstream.trackers import TRACKERS

METADATA = ("config.yaml", "status.json", "manifest.json", "scores.json", "metrics.jsonl")
FILES = (*METADATA, *ROWS, "log.txt", "adjustments.json", ".lock")
FOLDERS = ("checkpoints", "model", "plots", ".model.new")
LINKED_FOLDERS = {tracker.run_folder for tracker in TRACKERS.values() if tracker.makes_links}
STATES = ("created", "queued", "running", "interrupted", "failed", "finished")

# The kinds of things that are not a link.
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


def find_foreign_faults(folder: Path, depth: int | None = None) -> list[Fault]:
    """The faults of what does not belong in a run folder, down to a depth, or in all of it."""
    paths = sorted(_find_foreign(str(folder), depth))
    return list(foreign_faults(map(Path, paths)))


def _find_foreign(folder: str, depth: int | None, inside: str = "") -> Iterator[str]:
    """The paths of foreign things in a folder, which has the path ``inside`` in that of the run."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = inside + entry.name
            if entry.is_dir(follow_symlinks=False):
                if name in FILES:
                    yield entry.path
                if entry.name not in LINKED_FOLDERS and depth != 1:
                    deeper = None if depth is None else depth - 1
                    yield from _find_foreign(entry.path, deeper, f"{name}/")
            elif name in FOLDERS or not entry.is_file(follow_symlinks=False):
                if os.path.lexists(entry.path):  # else it was there only for a moment
                    yield entry.path


def foreign_faults(paths: Iterable[Path]) -> Iterator[Fault]:
    """A fault for each thing in a folder of ours that does not belong in its place."""
    for path in paths:
        if path.is_symlink():
            found = f"a link to {os.readlink(path)}"
        else:
            kind = stat.S_IFMT(path.stat().st_mode)
            found = KINDS.get(kind, "a device")
        expected = (
            "a file or a folder; what is on another disk is the whole run, by output_root=<folder>"
        )
        command = "rm"
        if found == "a folder":
            expected = "a file"
            command = "rm -r"
        elif found == "a file":
            expected = "a folder"
        yield Fault(
            where=str(path),
            found=found,
            expected=expected,
            fix=f"{command} {path}",
        )
