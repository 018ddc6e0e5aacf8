"""The names under a folder of outputs by the room that they take on the disk."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from runner.command._deletion import Listing, list_place
from runner.io.files import display_path
from runner.io.terminal import MAX_LINES
from runner.report.table import Column, format_table
from runner.run.disk import sized
from runner.run.find import find_folders

PARTS = ("checkpoints", "model", "other")  # of what the runs of a name take


def list_sizes(root: Path) -> list[str]:
    """The lines of a table of names by their sizes, and the commands that free the most.

    No run is lost by these.
    """
    sizes = _sort_by_size(root)
    if not sizes:
        return [f"no runs under {display_path(root)}/ yet"]
    lines = [*_size_table(sizes), ""]
    freed = 0
    for group in sizes:
        for keep in ("last", "model"):
            listing = Listing()
            list_place(listing, group, keep)
            freed = sum(deletion.bytes for deletion in listing.deletions.values())
            if freed:
                words = f"python -m runner clean {display_path(group)} keep={keep}"
                lines.append(f"next      {words}  (asks, and frees {sized(freed)})")
        if freed:
            break
    return lines


def _sort_by_size(root: Path) -> dict[Path, dict[str, int]]:
    """The folders in which there are runs, the largest first, with the bytes of their PARTS."""
    sizes = {}
    for group in root.glob("[!.]*"):
        if group.is_dir() and not group.is_symlink() and find_folders(group):
            sizes[group] = _measure(group)
    totals = {group: sum(parts.values()) for group, parts in sizes.items()}
    largest_first = sorted(sizes, key=totals.__getitem__, reverse=True)
    return {group: sizes[group] for group in largest_first}


def _measure(group: Path) -> dict[str, int]:
    """The bytes of the files below a group; one with several names counts once."""
    sizes = dict.fromkeys(PARTS, 0)
    counted = set()
    for folder, _, names in os.walk(group):
        inner_folders = Path(folder).relative_to(group).parts
        part = "".join(inner_folders[1:2])  # in the folder of a run
        if part not in sizes:
            part = "other"
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a run has just replaced it
                stat = os.lstat(f"{folder}/{name}")
                if stat.st_ino not in counted:
                    counted.add(stat.st_ino)
                    sizes[part] += stat.st_size
    return sizes


def _size_table(sizes: dict[Path, dict[str, int]]) -> list[str]:
    """The lines of a table of names by their sizes."""
    shown = list(sizes)[:MAX_LINES]
    columns = [
        _column("folder", [display_path(group) for group in shown], left=True),
        _column("size", [sized(sum(sizes[group].values())) for group in shown]),
    ]
    for part in PARTS:
        cells = [sized(sizes[group][part]) for group in shown]
        columns.append(_column(part, cells))
    lines = format_table(columns, 80)
    more = len(sizes) - len(shown)
    if more:
        lines.append(f"  and {more} smaller ones")
    return lines


def _column(title: str, cells: Sequence[str], left: bool = False) -> Column:
    return Column(title, cells, needed=True, left=left)
