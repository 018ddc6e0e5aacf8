"""The names under a folder of outputs, with the states of their runs."""

from pathlib import Path

from runner.io.files import display_path
from runner.report.number import short
from runner.report.sweep import list_states
from runner.report.table import Column, format_table
from runner.run.record import find_names


def listing(root: Path) -> str:
    """The names under a folder of outputs, newest first, with how many runs are in which state."""
    names = find_names(root.glob("*"))
    if not names:
        return f"no runs under {display_path(root)}/ yet"
    folders = []
    counts = []
    states = []
    for path, runs in names:
        folders.append(short(display_path(path), 50))
        counts.append(str(len(runs)))
        states.append(list_states(runs))
    columns = [
        Column("folder", folders, needed=True, left=True),
        Column("runs", counts, needed=True),
        Column("states", states, needed=True, left=True),
    ]
    newest, _ = names[0]
    lines = format_table(columns, 80)
    lines.append("")
    lines.append(f"next      python -m runner report {display_path(newest)}")
    return "\n".join(lines)
