"""Every mark of speed, measured beside the other side, on one page of tables.

run: python tests/benchmark/suite.py > page.md                  all of it, in under an hour
     python tests/benchmark/suite.py --only startup unlike      some of it
     python tests/benchmark/suite.py --one-by-one               one script at a time, for two hours

Two scripts run at a time, each of which has one thread: what is measured are CPU seconds, of all
processes of a command. Other tools are installed at first use, into ``~/.cache``. The page begins
with the table of marks, and has the output of each script below it. A script that fails has its
exit code in the place of its marks, and ours is 1; a mark that is missed is none.

Left out on purpose: what needs a card (``card.py``), what is tried and not measured
(``sweep_chaos.py``), and what no mark stands for (``step_counts.py``, ``ppo_parity.py``,
``forecast.py``, ``imports.py``).
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from marks import HEAD, read
from overhead import PACKAGES, processor

# The words of each script, in the order in which two at a time end soonest.
SCRIPTS = {
    "ppo": ["ppo_speed.py"],
    "use": ["use.py"],
    "rows": ["rows.py", "--kinds", "sft", "--sizes", "20000", "200000", "--repeats", "1"],
    "pairs": ["rows.py", "--kinds", "dpo", "--repeats", "1"],
    "growth": ["growth.py"],
    "unlike": ["unlike.py", "--repeats", "1"],
    "online": [
        *["sampler_speed.py", "--size", "tiny", "--shape", "short", "groups"],
        *["--trainer", "grpo", "rloo", "--side", "runner", "plain"],
    ],
    "sweep": ["sweep.py"],
    "runs": ["many_runs.py", "1000", "10000"],
    "start": ["overhead.py", "--only", "startup", "fixed"],
    "peers": ["peers.py"],
    "step": ["step.py"],
    "speed_max": ["speed_max.py"],
}


@dataclass(frozen=True)
class Done:
    """The end of one script."""

    name: str
    text: str
    code: int
    seconds: float
    marks: Path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--one-by-one", action="store_true", help="on a machine with one core")
    chosen = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:

        def run(name: str) -> Done:
            return run_script(name, Path(folder) / f"{name}.jsonl")

        with ThreadPoolExecutor(1 if chosen.one_by_one else 2) as pool:
            ends = list(pool.map(run, chosen.only))
        print_page(ends, time.monotonic() - start)
    return int(any(end.code for end in ends))


def run_script(name: str, marks: Path) -> Done:
    """Run one script to its end."""
    script, *words = SCRIPTS[name]
    start = time.monotonic()
    command = [sys.executable, str(Path(__file__).with_name(script)), *words]
    process = subprocess.run(
        [*command, "--marks", str(marks)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    seconds = time.monotonic() - start
    print(f"{name} took {seconds / 60:.1f} minutes", file=sys.stderr, flush=True)
    return Done(name, process.stdout, process.returncode, seconds, marks)


def print_page(ends: list[Done], seconds: float) -> None:
    """Print the table of marks, and below it what each script has printed."""
    libraries = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    machine = f"{os.cpu_count()} cores, {processor()}, Python {platform.python_version()}"
    print(
        f"# Marks\n\n{datetime.date.today()}, {machine}, {libraries}; {seconds / 60:.0f} minutes\n"
    )
    print(HEAD)
    for end in ends:
        for mark in read(end.marks):
            print(mark.line())
        if end.code:
            print(f"| {end.name} | ended with {end.code} | | | | **failed** |")
    for end in ends:
        words = " ".join(SCRIPTS[end.name])
        print(f"\n## `python tests/benchmark/{words}`\n\n{end.text.strip()}")
        print(f"\n{end.seconds / 60:.1f} minutes")


if __name__ == "__main__":
    sys.exit(main())
