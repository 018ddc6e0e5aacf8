"""A Python script or a notebook -> its syntax tree. Nothing of it is run.

The cells of a notebook are joined in the order of the file, whatever order they were run in. Lines
for the shell, and cells in another language, are left out. Lines are numbered in the joined cells.
"""

import ast
import json
import re
import warnings
from pathlib import Path

from runner.errors import ConfigError, Fault
from runner.importers.foreign_config import NOTEBOOK

PYTHON_TYPES = (".py", NOTEBOOK)
# Lines of a notebook that are none of Python: commands of the shell and of the notebook itself.
MAGIC_LINE = re.compile(r"^(\s*)[!%].*$")
# A cell that is a program of another language as a whole.
OTHER_LANGUAGE = re.compile(
    r"\s*%%(bash|sh|shell|script|html|javascript|js|latex|writefile|markdown)\b"
)


def parse_python(path: Path, text: str) -> ast.Module:
    """The syntax tree of a script, or of the joined cells of a notebook.

    Raises ConfigError with the first line that is not Python.
    """
    source = join_cells(path, text) if path.suffix == NOTEBOOK else text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of escapes in their texts
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        found = f"not Python: {getattr(error, 'msg', error)}"
        raise ConfigError(
            Fault(
                where=f"{path}, line {line}" if line else str(path),
                found=found,
                expected="a Python script, or a notebook of Python",
                fix="mend that line, or import another file",
            )
        ) from None


def join_cells(path: Path, text: str) -> str:
    """The code cells of a notebook as one text, without what is not Python."""
    cells = _read_cells(path, text)
    lines: list[str] = []
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        if isinstance(source, list):
            source = "".join(map(str, source))
        if OTHER_LANGUAGE.match(source):
            continue
        lines += _python_lines(source)
    return "\n".join(lines) + "\n"


def _read_cells(path: Path, text: str) -> list[object]:
    """The cells of a notebook; ConfigError for a file that is none."""
    try:
        notebook = json.loads(text)
        cells = notebook["cells"]
    except (ValueError, KeyError, TypeError, RecursionError):
        cells = None
    if not isinstance(cells, list):
        raise ConfigError(
            Fault(
                where=str(path),
                found="no cells",
                expected="a notebook",
                fix="python -m runner import <another file>",
            )
        )
    return cells


def _python_lines(source: str) -> list[str]:
    """The lines of a cell, ``pass`` in place of each command of the notebook.

    A command may go on over several lines, each of which ends with a backslash.
    """
    lines = []
    is_command = False
    for line in source.splitlines():
        magic = MAGIC_LINE.match(line)
        if magic and not is_command:
            lines.append(f"{magic[1]}pass")
        elif not is_command:
            lines.append(line)
        is_command = line.endswith("\\") and bool(magic or is_command)
    return lines
