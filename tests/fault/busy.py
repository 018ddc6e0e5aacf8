"""The suite on a busy machine: green beside processes that spin, as often as requested.

    python tests/fault/busy.py                            the suite, twice, beside two processes
    python tests/fault/busy.py --runs 1 tests/test_x.py   words after the options go to pytest

The spinning processes end with this script, also when it is killed. Of each run it prints the exit
code, the CPU seconds with those of its children, and the last line; its own exit code is 1 unless
every run was green.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Ends when this script is gone, as its parent is then another one.
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"


@dataclass
class Outcome:
    """One run of the suite: its exit code, its CPU seconds with children, and its last line."""

    code: int
    seconds: float
    summary: str


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_suite(words: list[str]) -> Outcome:
    """The outcome of pytest with these words, in the environment of a newly opened terminal."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", *words]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    summary = ""
    for line in process.stdout or ():
        print(line, end="", flush=True)
        summary = line.strip() or summary
    code = process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(code, seconds, summary)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--spinning", type=int, default=2)
    arguments, words = parser.parse_known_args()
    outcomes = []
    with spinning(arguments.spinning):
        for _ in range(arguments.runs):
            outcomes.append(run_suite(words))
    for number, outcome in enumerate(outcomes, 1):
        print(
            f"run {number}: exit code {outcome.code}, "
            f"{outcome.seconds:.0f} CPU s, {outcome.summary}"
        )
    return int(any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
