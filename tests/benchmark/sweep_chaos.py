"""A sweep survives at full size.

50 jobs of which 19 misbehave, and a driver that is killed 20 times.

run: python tests/benchmark/sweep_chaos.py                 both, about five minutes on two idle
cores
     python tests/benchmark/sweep_chaos.py --kills 5 --seed 7

First part: 10 jobs raise, 5 are killed, 2 crash the interpreter, 1 calls sys.exit(0), 1 hangs; the
other 31 must finish, each cause must be told, the same command must then start exactly the 19, and
a third time nothing. Second part: the driver is killed at a random moment again and again; nothing
of it may be alive after 10 seconds, and in the end each job must be finished once, with each of its
steps logged once and the weights of an undisturbed sweep.

The tests have a small version of both (``tests/test_sweep.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from runner.run import Run, held  # noqa: E402

CHAOS = """
import ctypes, os, signal, sys, time
from transformers import TrainerCallback


class Chaos(TrainerCallback):
    def __init__(self, job: int):
        self.job = job

    def on_step_begin(self, args, state, control, **kwargs):
        if os.path.exists("healed"):
            return
        if self.job < 10:
            raise RuntimeError(f"job {self.job} raises")
        if self.job < 15:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.job < 17:
            ctypes.string_at(0)
        if self.job == 17:
            sys.exit(0)
        if self.job == 18:
            time.sleep(3600)
"""
QUICK = ("model=tiny", "dataset.limit.eval=2", "metric=none", "launcher.jobs=2")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["PYTHONPATH"] = str(ROOT)
        misbehave()
        kill_drivers(chosen.kills, random.Random(chosen.seed))


def sweep(*words: str) -> tuple[str, int, float]:
    """The output of the command, its exit code and its seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "runner", "-m", *words], capture_output=True, text=True
    )
    return done.stdout, done.returncode, time.monotonic() - began


def misbehave() -> None:
    Path("chaos.py").write_text(CHAOS)
    words = (
        "allow=[chaos]",
        "callback.chaos._target_=chaos.Chaos",
        "callback.chaos.job=range(0,50)",
        *QUICK,
    )
    words = (
        *words,
        "trainer.args.max_steps=1",
        "dataset.limit.train=8",
        "launcher.timeout_seconds=30",
        "name=chaos",
    )
    for title in ("with 19 sick jobs", "healed, the same command", "once more"):
        text, code, seconds = sweep(*words)
        failed = [
            line.split("  ")[-1]
            for line in text.splitlines()
            if line.startswith("failed    chaos.job-")
        ]
        started = text.count("start     ")
        print(
            f"{title}: {text.splitlines()[-1]}, "
            f"{started} started, exit code {code}, {seconds:.1f} s"
        )
        for cause, count in Counter(
            cause if "raises" not in cause else "... raises" for cause in failed
        ).items():
            print(f"    {count:>2} x {cause}")
        Path("healed").touch()


def kill_drivers(kills: int, chance: random.Random) -> None:
    steps = (
        "trainer.args.max_steps=6",
        "trainer.args.save_steps=2",
        "trainer.args.logging_steps=1",
    )
    words = ("seed=range(0,8)", "dataset.limit.train=64", *steps, *QUICK)
    _, _, calm_seconds = sweep(*words, "name=calm")
    running = 0
    killed = 0
    longest = 0.0
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", "-m", *words, "name=killed"], stdout=subprocess.DEVNULL
        )
        try:
            process.wait(chance.uniform(0.2, calm_seconds / 2))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
            process.wait()
        began = time.monotonic()
        while any_held("killed") and time.monotonic() - began < 10:
            time.sleep(0.05)
        longest = max(longest, time.monotonic() - began)
        running += any_held("killed")
    text, code, _ = sweep(*words, "name=killed")
    print(
        f"{killed} of {kills} drivers killed; alive after 10 s: "
        f"{running}; longest goodbye {longest:.1f} s"
    )
    print(f"then: {text.splitlines()[-1]}, exit code {code}")
    calm = run_files("calm")
    disturbed = run_files("killed")
    print(
        "same weights and each step once: "
        f"{sum(disturbed[key] == calm[key] for key in calm)} of {len(calm)}"
    )


def any_held(name: str) -> bool:
    return any(held(Run(paper.parent)) for paper in Path("outputs", name).glob("*/config.yaml"))


def run_files(name: str) -> dict[str, tuple[list[int], bytes]]:
    """The logged steps and the weights of each run, by its key."""
    outcomes = {}
    for config in Path("outputs", name).glob("*/config.yaml"):
        folder = config.parent
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line)["step"] for line in lines]
        weights = (folder / "model" / "model.safetensors").read_bytes()
        outcomes[folder.name[-10:]] = (steps, weights)
    return outcomes


if __name__ == "__main__":
    main()
