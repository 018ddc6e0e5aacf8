"""Every measurement that needs no card, on one page of tables with date, versions and machine.

run: python tests/benchmark/suite.py                             all of it: hours on two cores
     python tests/benchmark/suite.py --only overhead growth > page.md

Of a script that fails its exit code stands in place of the rest, and ours is 1. What each measures,
its own head says. Left out on purpose: what needs a card (``card.py``), and what is tried,
not measured (``sweep_chaos.py``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

SCRIPTS = {
    "overhead": ["overhead.py"],
    "counts": ["step_counts.py"],
    "peers": ["peers.py"],
    "data": ["data.py"],
    "growth": ["growth.py"],
    "sampler": ["sampler_speed.py"],
    "ppo": ["ppo_speed.py"],
    "ppo_lora": ["ppo_speed.py", "--peft"],
    "parity": ["ppo_parity.py"],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    code = 0
    for name in parser.parse_args().only:
        script, *words = SCRIPTS[name]
        print(f"## `python tests/benchmark/{' '.join(SCRIPTS[name])}`\n", flush=True)
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name(script)), *words],
            stdout=subprocess.PIPE,
            text=True,
        )
        failed = f"\nended with {done.returncode}" if done.returncode else ""
        print(f"{done.stdout}{failed}\n", flush=True)
        code = code or int(bool(failed))
    return code


if __name__ == "__main__":
    sys.exit(main())
