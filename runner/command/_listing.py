"""The names under a folder of outputs, with the states of their runs."""

from collections.abc import Iterable
from pathlib import Path

from runner.io.files import display_path
from runner.report.number import short
from runner.report.sweep import list_states
from runner.report.table import Column, format_table
from runner.run.find import find_folders
from runner.run.record import RunRecord, read_state


def find_names(folders: Iterable[Path]) -> list[tuple[Path, list[RunRecord]]]:
    """The folders in which there are runs, with the states of these, newest first."""
    names = []
    for path in folders:
        runs = [read_state(folder) for folder in find_folders(path)] if path.is_dir() else []
        if runs:
            names.append((path, runs))
    return sorted(names, key=_last_update, reverse=True)


def _last_update(name: tuple[Path, list[RunRecord]]) -> str:
    _, runs = name
    return max(str(run.status.get("updated") or "") for run in runs)


def listing(root: Path) -> str:
    """The names under a folder of outputs, newest first, with how many runs are in which state."""
    names = find_names(root.glob("*"))
    if not names:
        return f"no runs under {display_path(root)}/ yet"
    folders = [display_path(path) for path, _ in names]
    counts = [str(len(runs)) for _, runs in names]
    states = [list_states(runs) for _, runs in names]
    columns = [
        Column("folder", [short(folder, 50) for folder in folders], needed=True, left=True),
        Column("runs", counts, needed=True),
        Column("states", states, needed=True, left=True),
    ]
    lines = format_table(columns, 80)
    return "\n".join([*lines, "", f"next      python -m runner report {folders[0]}"])
