"""python tests/picture/make.py

Makes the picture of README.md anew: the first command is run in a terminal of 100 columns, in a
folder of its own, and what stands on that terminal at the end is drawn as ``terminal.svg``, without
fonts from elsewhere.
"""

import os
import pty
import re
import struct
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
COLUMNS = 100
COMMAND = ("python", "-m", "runner")


def terminal_output(command: tuple[str, ...], folder: str) -> str:
    """The output of a command on a terminal of its own."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder)
        os.environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        os.execv(sys.executable, [sys.executable, *command[1:]])
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
    except OSError:  # the other end is closed
        pass
    if os.waitpid(pid, 0)[1]:
        raise SystemExit(written.decode())
    return written.decode()


def left_standing(output: str) -> str:
    """The lines as they stand at the end: the text after the last return of each."""
    lines = output.replace("\r\n", "\n").split("\n")
    return "\n".join(
        re.sub(r"\x1b\[[0-9;]*[A-HJKf]", "", line.rstrip("\r").rpartition("\r")[2])
        for line in lines
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = left_standing(terminal_output(COMMAND, folder))
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text(f"$ {' '.join(COMMAND)}", style="bold"))
        console.print(Text.from_ansi(output.rstrip()))
    svg = re.sub(r"\s*@font-face \{.*?\}\n", "\n", console.export_svg(title="runner"), flags=re.S)
    (Path(__file__).parent / "terminal.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
