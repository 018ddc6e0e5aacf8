"""One folder, one run; and nothing is left running.

    python tests/fault/folder.py                  everything, about fifteen minutes of one processor
    python tests/fault/folder.py pairs driver     some of: pairs starts again driver

pairs    the same command twice at once: one starts, the other leaves with 4 and names pid, host and
since when; the
         first is killed with SIGKILL, or not, and the next start goes on without an unlock
starts   many commands at the same instant, each with a seed of its own, and each twice: one folder
for each seed, with
         its own files
again    finished runs, each started ten times more: no byte and no time of a file changes driver
the driver of a sweep is killed with SIGKILL at a random moment: of what it has started nothing
lives after
         10 s, and a stranger beside it that looks like a run gets no signal

Prints a line for each kind with how many held, and each that did not; the exit code is 1 where one
did not. The control of pairs is TRL's own trainer, of which both start in one folder.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]

import psutil
from kill import TRAINERS, WORDS, Place
from warm import Started, Warm

from runner.launch.plan import state_of
from runner.run import Run
from runner.run.key import key_of

COUNTS = {"pairs": 50, "starts": 50, "again": 10, "driver": 50}
QUICK = (
    *WORDS[:4],
    "trainer=sft",
    "metric=none",
    "trainer.args.max_steps=1",
    "dataset.limit={train: 16, eval: 1}",
)
HELD = ("callback.held._target_=mine.Held", "allow=[mine]")
SWEEP = (
    "-m",
    *QUICK,
    "trainer.args.max_steps=3",
    "trainer.args.save_steps=1",
    "seed=0,1,2",
    "launcher.jobs=2",
)
MINE = '''
import os, time
from transformers import TrainerCallback
from runner.run import Run, locked

class Held(TrainerCallback):
    """Waits before the first step as long as there is a file of that name."""
    def on_train_begin(self, args, state, control, **kwargs):
        while os.path.exists("held"):
            time.sleep(0.01)

def note(folder, num_processes=1, debug=False):
    """A launcher that holds the folder as a worker does, and trains nothing."""
    with locked(Run(folder)):
        with open(folder / "noted", "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(1)
    return 0
'''
# Looks like a run, in the group of the driver; writes down each signal that it can catch.
STRANGER = """
import signal, sys, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, lambda number, frame: open(sys.argv[1], "a").write(f"{number}\\n"))
print("ready", flush=True)
while True:
    time.sleep(1)
"""
SECONDS = 60  # that the children of a dead driver may live


def make_place(root: Path, name: str, warm: Warm, door: str = "runner.__main__:main") -> Place:
    place = Place(root / name, root, warm, door)
    (place.folder / "mine.py").write_text(MINE)
    return place


# --- Pairs ----------------------------------------------------------------------------------------


def misses_of_pairs(root: Path, warm: Warm, count: int, chance: random.Random) -> Iterator[str]:
    """Each pair of which not exactly one starts, or whose loser or next start behaves wrongly."""
    for number in range(count):
        place = make_place(root, f"pair-{number}", warm)
        yield from (
            f"pair {number}: {miss}" for miss in misses_of_pair(place, kills=bool(number % 2))
        )
        shutil.rmtree(place.folder)


def misses_of_pair(place: Place, kills: bool) -> Iterator[str]:
    (place.folder / "held").touch()
    words = (*QUICK, *HELD)
    began = datetime.now(UTC) - timedelta(seconds=1)
    pair = [place.start(words), place.start(words)]
    loser = first_ended(pair)
    (winner,) = [start for start in pair if start is not loser]
    done = loser.wait()
    wanted = rf"held by pid {winner.pid} on {re.escape(socket.gethostname())} since (\S+)"
    match = re.search(wanted, done.stderr)
    if done.returncode != 4 or not match:
        yield (
            f"the second left with {done.returncode} and said "
            f"{done.stderr[-300:]!r}; the first was {winner.pid}"
        )
    elif not began <= datetime.fromisoformat(match[1]) <= datetime.now(UTC):
        yield f"since {match[1]}, and it began at {began}"
    if winner.ended():
        yield f"neither goes on: {winner.wait().stderr[-300:]}"
    if kills:
        winner.send(9)
        winner.wait()
    (place.folder / "held").unlink()
    code = winner.wait().returncode
    after = place.start(words).wait()
    if code != (-9 if kills else 0) or after.returncode:
        yield (
            f"the first left with {code}, "
            f"and the next start with {after.returncode}: {after.stderr[-300:]}"
        )
    if len(folders := runs_in(place)) != 1 or state_of(folders[0]) != "finished":
        yield f"left {folders}"


def first_ended(pair: list[Started]) -> Started:
    while True:
        for start in pair:
            if start.ended():
                return start
        time.sleep(0.02)


def runs_in(place: Place) -> list[Path]:
    return sorted(path.parent for path in place.folder.glob("outputs/*/*/config.yaml"))


def control(root: Path, warm: Warm) -> int:
    """The number of plain trainers that are refused, of two in one folder."""
    place = make_place(root, "plain", warm, "plain:main")
    return sum(process.wait().returncode != 0 for process in [place.start(()), place.start(())])


# --- Starts ---------------------------------------------------------------------------------------


def misses_of_starts(root: Path, warm: Warm, count: int, chance: random.Random) -> Iterator[str]:
    """Each seed without a single folder of its own files, started by exactly one of its two
    commands.
    """
    place = make_place(root, "starts", warm, "folder:when_all_may")
    words = (*QUICK, "launcher._target_=mine.note", "allow=[mine]")
    started = []
    for seed in range(count):
        command = (*words, f"seed={seed}")
        started += [(seed, place.start(command)), (seed, place.start(command))]
    (place.folder / "go").touch()
    codes: dict[int, list[int]] = {}
    for seed, process in started:
        codes.setdefault(seed, []).append(process.wait().returncode)
    run_of_seed = {Run(folder).cfg["seed"]: Run(folder) for folder in runs_in(place)}
    if len(runs_in(place)) != count or set(run_of_seed) != set(range(count)):
        yield f"{len(runs_in(place))} folders, of the seeds {sorted(run_of_seed)}"
    for seed, run in run_of_seed.items():
        noted = (run.folder / "noted").read_text().split()
        named = (
            run.folder.name.endswith(key_of(run.cfg))
            and f"seed={seed}" in run.manifest()["command"]
        )
        if not named or len(noted) != codes[seed].count(0) or not noted:
            yield f"seed {seed}: {run}, exit codes {codes[seed]}, started by {noted}"
    shutil.rmtree(place.folder)


def when_all_may(words: list[str]) -> int:
    """Start the command as soon as there is a file ``go``.

    All that wait for it start at almost the same time.
    """
    from runner.__main__ import main

    while not os.path.exists("go"):
        time.sleep(0.01)
    return main(words)


# --- Again ----------------------------------------------------------------------------------------


def misses_of_again(root: Path, warm: Warm, count: int, chance: random.Random) -> Iterator[str]:
    """The changes that the same command makes to a finished run."""
    for trainer in ("sft", "ppo"):
        place = make_place(root, f"again-{trainer}", warm)
        words = (*WORDS, *TRAINERS[trainer], "trainer.args.max_steps=2")
        first = place.start(words).wait()
        if first.returncode:
            yield f"{trainer}: exit code {first.returncode}: {first.stderr[-300:]}"
        before = contents(place.run.folder)
        for number in range(count):
            done = place.start(words).wait()
            now = contents(place.run.folder)
            changed = sorted(
                str(path) for path in before | now if before.get(path) != now.get(path)
            )
            if done.returncode or changed:
                yield f"{trainer}, start {number}: exit code {done.returncode}, changed {changed}"


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths
    }


# --- Driver ---------------------------------------------------------------------------------------


def misses_of_driver(root: Path, warm: Warm, count: int, chance: random.Random) -> Iterator[str]:
    """Each killed driver that leaves something alive, and what a stranger notices of it."""
    place = make_place(root, "driver", warm)
    before = set(below(warm))
    began = time.monotonic()
    done = place.start(SWEEP).wait()
    seconds = time.monotonic() - began
    if done.returncode:
        yield f"undisturbed it left with {done.returncode}: {done.stderr[-300:]}"
    told = root / "stranger"
    command = [
        sys.executable,
        "-c",
        STRANGER,
        str(told),
        "-m",
        "runner.launch",
        "outputs/run/default-0123456789",
    ]
    stranger = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert stranger.stdout.readline() == b"ready\n"
    for number in range(count):
        place = make_place(root, f"driver-{number}", warm)
        workers = (f"trainer.args.dataloader_num_workers={number % 2}",)
        driver = place.start((*SWEEP, *workers))
        time.sleep(moment := chance.uniform(0, seconds))
        driver.send(9)
        driver.wait()
        if remains := left_of(warm, before):
            yield f"driver {number}, killed after {moment:.2f} s: {remains} live on"
        if number == count - 1 and (done := place.start((*SWEEP, *workers)).wait()).returncode:
            yield f"started again it left with {done.returncode}: {done.stderr[-300:]}"
        shutil.rmtree(place.folder)
    if stranger.poll() is not None or told.exists():
        yield (
            f"a stranger got a signal: {told.read_text() if told.exists() else stranger.returncode}"
        )
    stranger.kill()
    stranger.communicate()


def below(warm: Warm) -> list[psutil.Process]:
    """All processes that this one has forked or adopted."""
    return psutil.Process(warm.process.pid).children(recursive=True)


def left_of(warm: Warm, before: set[psutil.Process]) -> list[str]:
    """The processes below this one that still live after their time, except those in ``before``."""
    deadline = time.monotonic() + SECONDS
    while living := [
        process for process in below(warm) if process not in before and lives(process)
    ]:
        if time.monotonic() > deadline:
            return [" ".join(process.cmdline()) for process in living if lives(process)]
        time.sleep(0.05)
    return []


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


KINDS: dict[str, Callable[[Path, Warm, int, random.Random], Iterator[str]]] = {
    "pairs": misses_of_pairs,
    "starts": misses_of_starts,
    "again": misses_of_again,
    "driver": misses_of_driver,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--count", type=int, help="of each kind, instead of 50, 50, 10 and 50")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        warm = Warm(Path(folder) / "warm")
        chance = random.Random(asked.seed)
        for kind in asked.kind or KINDS:
            count = asked.count or COUNTS[kind]
            misses = list(KINDS[kind](Path(folder), warm, count, chance))
            failed += bool(misses)
            print(
                f"{kind:<8} {count:>4} {'held' if not misses else f'{len(misses)} missed'}",
                flush=True,
            )
            print("".join(f"         {miss}\n" for miss in misses), end="", flush=True)
        refused = control(Path(folder), warm)
        print(f"control     2 of which {refused} were refused")
        warm.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU seconds, {os.getloadavg()[0]:.1f} load")
    return 1 if failed or refused else 0


if __name__ == "__main__":
    sys.exit(main())
