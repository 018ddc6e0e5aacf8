"""Tells in what two runs differ."""

import shutil
from pathlib import Path

from runner.command import CommandLine, read_options
from runner.io.terminal import print_visible
from runner.report.compare import sections_of
from runner.report.number import short
from runner.report.table import section_table
from runner.run.read import RunRecord, find_runs


def main(line: CommandLine) -> int:
    """Print the differences of the two runs that the command line names."""
    options = read_options(line.overrides, "diff")
    first, second = find_runs(line.runs, "diff", 2, Path(options.get("output_root", "outputs")))
    print_visible(diff(first, second, shutil.get_terminal_size((80, 24)).columns))
    return 0


def diff(first: RunRecord, second: RunRecord, width: int = 80) -> str:
    """The differences of two runs as text."""
    sections = sections_of(first, second)
    lines = [f"A         {_named(first, width)}", f"B         {_named(second, width)}"]
    for title, unknown in (("same", False), ("not said", True)):
        if names := [section.title for section in sections if not section.rows and section.unknown is unknown]:
            lines.append(f"{title:<10}{', '.join(names)}")
    for section in sections:
        lines += ["", *section_table(section, width)] if section.rows else []
    return "\n".join(lines)


def _named(run: RunRecord, width: int) -> str:
    return f"{short(str(run), width - 12 - len(run.standing))}  {run.standing}"
