"""Shows runs, side by side or one by one: a table, a page, pictures and files beside the runs."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.command import CommandLine
from runner.command._listing import listing
from runner.command._option import read_options
from runner.command.report_options import Options
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import display_path
from runner.io.terminal import print_visible
from runner.report.compare import find_changed_keys
from runner.report.index import read_runs
from runner.report.run_page import write_run_report
from runner.report.selection import summarise
from runner.report.sweep_page import refuse_foreign_files, write_report
from runner.report.table import run_table, sweep_table
from runner.run.find import is_run, resolve_word, words_below
from runner.run.record import read_run


def main(line: CommandLine) -> int:
    """Report on each folder that the command line names, or list what there is."""
    options = read_options(line, Options)
    root = Path(options.output_root)
    choices = _choices_of(options)
    folders = [resolve_word(word, "report", root) for word in words_below(root, line.runs)]
    if not folders and choices:
        words = [f"{key}={value}" for key, value in choices.items()]
        raise ConfigError(
            Fault(
                where="command line",
                found=f"{' '.join(words)} without runs",
                expected="the folder of some",
                fix="python -m runner report  (lists them)",
            )
        )
    if not folders:
        print_visible(listing(root))
    for number, folder in enumerate(folders):
        # Among several folders that of one run is shown whole.
        is_one_of_several = is_run(folder) and len(folders) > 1
        text = report(folder) if is_one_of_several else report(folder, **choices)
        print_visible(f"\n{text}" if number else text)
    if len(folders) > 1:
        page = write_report(summarise(read_runs(folders), **choices))
        print_visible(f"\npage      {display_path(page)}  (all of these)")
    return 0


def _choices_of(options: Options) -> dict[str, Any]:
    """The options that were typed, apart from the folder of all runs."""
    values = asdict(options)
    del values["output_root"]
    return {key: value for key, value in values.items() if value is not None}


def report(folder: Path, **choices: Any) -> str:
    """The text for the terminal of the report of a run or of a group, which is written there.

    ``choices`` are those of ``summarise``, for a group alone.
    """
    width = shutil.get_terminal_size((80, 24)).columns
    if not is_run(folder):
        return _report_group(folder, choices, width)
    if choices:
        raise ConfigError(
            Fault(
                where=next(iter(choices)),
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


def _report_group(folder: Path, choices: dict[str, Any], width: int) -> str:
    """The table of the runs of a name, whose page and rows are written beside them."""
    refuse_foreign_files(folder)
    summary = summarise(folder, **choices)
    if summary.condition and not summary.runs:
        return f"report    {display_path(folder)}: none {summary.condition}; nothing was written"
    page = display_path(write_report(summary))
    rows = f"{page.removesuffix('report.html')}summary.csv"
    return f"{sweep_table(summary, width)}\nrows      {rows}\npage      {page}"
