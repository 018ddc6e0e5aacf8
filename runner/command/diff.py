"""Tells in what two runs differ."""

import shutil
from pathlib import Path

from runner.command import CommandLine
from runner.command._option import read_options
from runner.command.diff_options import Options
from runner.io.terminal import print_visible
from runner.report.compare import sections_of
from runner.report.number import short
from runner.report.table import section_table
from runner.run.record import find_runs


def main(line: CommandLine) -> int:
    """Print the differences of the two runs that the command line names."""
    options = read_options(line, Options)
    runs = find_runs(line.runs, "diff", 2, Path(options.output_root))
    width = shutil.get_terminal_size((80, 24)).columns
    lines = []
    for letter, run in zip("AB", runs, strict=True):
        name = short(str(run), width - 12 - len(run.standing))
        lines.append(f"{letter}         {name}  {run.standing}")
    sections = sections_of(*runs)
    same = []
    unknown = []
    for section in sections:
        if section.unknown and not section.rows:
            unknown.append(section.title)
        elif not section.rows:
            same.append(section.title)
    if same:
        lines.append(f"same      {', '.join(same)}")
    if unknown:
        lines.append(f"not said  {', '.join(unknown)}")
    for section in sections:
        if section.rows:
            lines.append("")
            lines += section_table(section, width)
    print_visible("\n".join(lines))
    return 0
