"""Shows runs, side by side or one by one: a table here, a page, pictures and files beside the runs."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.command import CommandLine, read_options
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import display_path
from runner.io.terminal import print_visible
from runner.report.compare import find_changed_keys
from runner.report.index import read_group
from runner.report.number import short
from runner.report.page import write_report, write_run_report
from runner.report.selection import summarise
from runner.report.sweep import list_states
from runner.report.table import Column, format_table, run_table, sweep_table
from runner.run import foreign_faults
from runner.run.find import find_folders, is_run, resolve_word
from runner.run.record import RunRecord, read_run, read_state

# that a report of several runs writes
PAGES = ("report.html", "summary.csv", "summary.jsonl", "summary.parquet")


def main(line: CommandLine) -> int:
    """Report on each folder that the command line names, or list what there is; 0 when that could be done."""
    options = read_options(line.overrides, "report")
    root = Path(options.pop("output_root", "outputs"))
    folders = [resolve_word(word, "report", root) for word in line.runs]
    if not folders and options:
        words = " ".join(f"{key}={value}" for key, value in options.items())
        raise ConfigError(
            Fault(
                where="command line",
                found=f"{words} without runs",
                expected="the folder of some",
                fix="python -m runner report  (lists them)",
            )
        )
    if not folders:
        print_visible(listing(root))
    for number, folder in enumerate(folders):
        print_visible(
            ("\n" if number else "")
            + report(folder, **({} if is_run(folder) and folders[1:] else options))
        )
    if len(folders) > 1:
        read = (
            run for each in folders for run in read_group(each.parent if is_run(each) else each)
        )
        runs = {run.folder: run for run in read if {run.folder, run.folder.parent} & {*folders}}
        page = write_report(summarise(list(runs.values()), **options))
        print_visible(f"\npage      {display_path(page)}  (all of these)")
    return 0


def report(folder: Path, **options: Any) -> str:
    """Write the report of a run or of a group into its folder, and return what the terminal shows of it."""
    width = shutil.get_terminal_size((80, 24)).columns
    if is_run(folder):
        if options:
            raise ConfigError(
                Fault(
                    where=f"{next(iter(options))}",
                    found="one run, with nothing to compare it with",
                    expected="several runs",
                    fix=f"python -m runner report {folder.parent}",
                )
            )
        run = read_run(folder)
        FolderError.refuse(run.faults)
        changed = find_changed_keys(run)
        page = display_path(write_run_report(run, changed))
        return f"{run_table(run, changed, width)}\npage      {page}"
    plots = folder / "plots"  # the runs themselves may be links to where they are
    wrong = [path for name in PAGES if (path := folder / name).is_dir() and not path.is_symlink()]
    wrong += [plots] if plots.is_symlink() or (plots.exists() and not plots.is_dir()) else []
    FolderError.refuse(foreign_faults(wrong))
    summary = summarise(folder, **options)
    if summary.condition and not summary.runs:
        return f"report    {display_path(folder)}: none {summary.condition}; nothing was written"
    page = display_path(write_report(summary))
    return f"{sweep_table(summary, width)}\nrows      {page.removesuffix('report.html')}summary.csv\npage      {page}"


def find_names(folders: Iterable[Path]) -> list[tuple[Path, list[RunRecord]]]:
    """Those of some folders in which runs are, with the states of these, newest first."""
    names = [
        (path, runs)
        for path in folders
        if path.is_dir() and (runs := [*map(read_state, find_folders(path))])
    ]
    return sorted(
        names,
        key=lambda name: max(str(run.status.get("updated") or "") for run in name[1]),
        reverse=True,
    )


def listing(root: Path) -> str:
    """The names under a folder of outputs, newest first, with how many runs are in which state."""
    if not (rows := [(display_path(path), runs) for path, runs in find_names(root.glob("*"))]):
        return f"no runs under {display_path(root)}/ yet"
    columns = [
        Column("folder", [short(path, 50) for path, _ in rows], True, True),
        Column("runs", [str(len(runs)) for _, runs in rows], True),
        Column("states", [list_states(runs) for _, runs in rows], True, True),
    ]
    return "\n".join(
        [*format_table(columns, 80), f"\nnext      python -m runner report {rows[0][0]}"]
    )
