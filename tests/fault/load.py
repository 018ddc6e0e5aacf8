"""Many of everything: memory, descriptors, processes and temporary folders do not grow.

    python tests/fault/load.py                            500 jobs, 2,000 reports: half an hour
    python tests/fault/load.py --jobs 50 --reports 200

A sweep of so many trained one-step jobs, two processes that train as one, and so many reports one
after another in one process. Of each it prints the memory and the descriptors of the driver early
and late, and what is left behind: of processes, in the folder for temporary files, and in shared
memory. The exit code is 1 where anything is left, or where memory grew by more than a tenth after
the first fifth, or descriptors at all.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent)]

from runner.__main__ import main as command

QUICK = (
    *(
        "trainer=sft",
        "metric=none",
        "trainer.args.max_steps=1",
        "trainer.args.per_device_train_batch_size=2",
    ),
    *("dataset.limit.train=16", "dataset.limit.eval=2", "trainer.args.save_strategy=no"),
)
GROWTH = 1.1
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Watched:
    """Figures of one process while it works: megabytes in memory, and open descriptors."""

    memory: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            self.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
            self.descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))

    def faults(self, what: str) -> list[str]:
        """Print the medians of the second fifth and of the last one, and list what grew."""
        fifth = max(1, len(self.memory) // 5)
        (memory, more), (descriptors, others) = (
            (median(growth[fifth : 2 * fifth]), median(growth[-fifth:]))
            for growth in (self.memory, self.descriptors)
        )
        print(
            f"{what}: {memory:.0f} -> {more:.0f} MB, {descriptors:.0f} -> {others:.0f} descriptors"
        )
        grown = [f"{what}: memory grows"] if more > GROWTH * memory else []
        return grown + ([f"{what}: descriptors grow"] if others > descriptors else [])


def run_watched(words: tuple[str, ...], folder: Path) -> tuple[Watched, list[str]]:
    """Run the public command in a session and a temporary folder of its own.

    Its figures and its faults.
    """
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    before = set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()
    environment = os.environ | {
        "TMPDIR": str(temporary),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(TESTS.parent),
    }
    watched = Watched()
    with (folder / "said").open("w") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", "runner", *words],
            cwd=folder,
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while started.poll() is None:
            watched.look(started.pid)
            time.sleep(1)
    faults = (
        [f"exit code {started.returncode}: {(folder / 'said').read_text()[-500:]}"]
        if started.returncode
        else []
    )
    processes = [
        stat.parent.name
        for stat in Path("/proc").glob("[0-9]*/stat")
        if _session(stat) == started.pid
    ]
    faults += [f"processes are left: {processes}"] if processes else []
    # one a user
    files = [
        name for name in sorted(os.listdir(temporary)) if not name.startswith("torchinductor_")
    ]
    faults += [f"temporary files are left: {files[:5]}"] if files else []
    remains = set(os.listdir(SHARED_MEMORY)) - before if SHARED_MEMORY.is_dir() else set()
    faults += [f"shared memory is left: {sorted(remains)[:5]}"] if remains else []
    return watched, faults


def _session(stat: Path) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(stat.read_text().rpartition(")")[2].split()[3])
    return -1


def try_sweep(jobs: int, folder: Path) -> list[str]:
    """So many trained jobs of one step each."""
    started = time.monotonic()
    watched, faults = run_watched((*QUICK, "-m", f"seed=range(0,{jobs})", "name=many"), folder)
    states = [
        path
        for path in folder.glob("outputs/many/*/status.json")
        if '"finished"' in path.read_text()
    ]
    print(
        f"sweep: {len(states)} of {jobs} jobs finished, "
        f"{(time.monotonic() - started) / jobs:.1f} s each"
    )
    faults += [] if len(states) == jobs else [f"{jobs - len(states)} jobs did not finish"]
    return faults + watched.faults("driver of the sweep")


def try_two_processes(folder: Path) -> list[str]:
    """Two processes that train as one, under torchelastic."""
    _, faults = run_watched((*QUICK, "launcher.num_processes=2", "name=two"), folder)
    print("two processes:", "; ".join(faults) or "nothing is left")
    return faults


def try_reports(count: int, folder: Path) -> list[str]:
    """So many reports in one process, each of which finds something new in the runs."""
    runs = sorted(folder.glob("outputs/many/*/metrics.jsonl"))[:5]
    few = folder / "few"
    few.mkdir()
    for path in runs:
        path.parent.rename(few / path.parent.name)
    watched = Watched()
    wrong = 0
    changed = few / runs[0].parent.name / "metrics.jsonl"
    for number in range(count):
        with changed.open("a") as file:
            file.write(f'{{"step": {number + 2}, "loss": {1 / (1 + number)}}}\n')
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            wrong += command(["report", str(few)]) != 0
        watched.look(os.getpid())
    return watched.faults(f"{count} reports") + ([f"{wrong} reports failed"] if wrong else [])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--reports", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        faults = (
            try_sweep(asked.jobs, folder)
            + try_two_processes(folder)
            + try_reports(asked.reports, folder)
        )
    print("\n".join(faults) or "nothing grew, and nothing is left")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
