"""Tells in what two runs differ."""

import shutil
from pathlib import Path

from runner.command import CommandLine, read_options
from runner.io.terminal import print_visible
from runner.report.compare import sections_of
from runner.report.number import short
from runner.report.table import section_table
from runner.run.record import find_runs


def main(line: CommandLine) -> int:
    """Print the differences of the two runs that the command line names."""
    runs = find_runs(
        line.runs,
        "diff",
        2,
        Path(read_options(line.overrides, "diff").get("output_root", "outputs")),
    )
    sections, width = sections_of(*runs), shutil.get_terminal_size((80, 24)).columns
    names = [f"{short(str(run), width - 12 - len(run.standing))}  {run.standing}" for run in runs]
    lines = [f"A         {names[0]}", f"B         {names[1]}"]
    for title, unknown in (("same", False), ("not said", True)):
        if titles := [
            section.title for section in sections if not section.rows and section.unknown is unknown
        ]:
            lines.append(f"{title:<10}{', '.join(titles)}")
    for section in sections:
        lines += ["", *section_table(section, width)] if section.rows else []
    print_visible("\n".join(lines))
    return 0
