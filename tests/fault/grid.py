"""Every case of the grids of trainers, adapters, losses, trackers and the like.

The suite has representatives.

    python tests/fault/grid.py                    all of them, many minutes of one processor
    python tests/fault/grid.py tests/test_peft.py -k lora

A grid is a test with the mark ``grid(n)``: its first n cases are in the suite. The words are those
of pytest, and so is the exit code.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def main(words: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "--grid", *words]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
