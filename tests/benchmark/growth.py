"""CPU seconds over size: rows and their length, tokens, processes, calls of a reward, runs, jobs.

They should grow linearly, or slower.

run: python tests/benchmark/growth.py                        every axis: a table and marks, and
                                                             nothing is written; 8 minutes
     python tests/benchmark/growth.py --axes rows jobs --picture growth.png

Of each size the CPU seconds of the command and all it starts, the median of ``--repeats``, less
those of the smallest size: what is left is what grows. The exponent is the slope through the
logarithms of sizes and these, 1 where it is linear.

    rows        rows that are read, checked and tokenised
    tokens      tokens that are trained on, in ever more rows of one length
    row_length  tokens of a row, of as many rows at each size, so that tokens grow with it
    length      tokens of a row, with as many tokens at each size: it should be flat but for
                attention, so that its exponent is that of all seconds
    processes   processes (gloo), each with as much work as one alone: what further steps cost
    calls       requests to a server that rewards completions; the server also tells how many it
                was answering at once
    runs, jobs  runs of a report; jobs of a sweep
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import marks

ROOT = Path(__file__).parent.parent.parent
TOKENS = 65_536  # of a training at each length
EXPONENT = 1.05  # that no axis may pass
TOKENS_ROW = 128  # of the rows of the axis of tokens
ROWS = 64  # of the axis of their length
PARALLEL = 16  # requests at once
SECONDS_ANSWER = 0.2  # that the server takes for each
STEPS = (4, 84)  # of the two trainings whose difference is what steps cost
WITHOUT_START = ("processes",)  # axes of seconds in which no start is
FLAT = ("length",)  # axes that should not grow at all


def write_rows(path: Path, count: int, length: int) -> None:
    """Write rows of about so many tokens of the tiny model: a digit and a blank are one."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            digits = " ".join(
                str((number * 7 + place * place) % 10) for place in range(max(1, length - 12))
            )
            file.write(json.dumps({"prompt": f"Copy {number}:", "completion": digits}) + "\n")


def rows(folder: Path, size: int) -> list[str]:
    """A training of two steps, whose cost is reading, checking and tokenising its rows."""
    write_rows(path := folder / f"rows-{size}.jsonl", size, 24)
    return train(path, "trainer.args.max_steps=2", "trainer.args.per_device_train_batch_size=8")


def length(folder: Path, size: int) -> list[str]:
    """A training on as many tokens as at each other length."""
    write_rows(path := folder / f"length-{size}.jsonl", TOKENS // size, size)
    batch = max(1, 2_048 // size)
    steps = f"trainer.args.max_steps={TOKENS // size // batch}"
    return train(
        path,
        steps,
        f"trainer.args.per_device_train_batch_size={batch}",
        "trainer.args.max_length=1024",
    )


def tokens(folder: Path, size: int) -> list[str]:
    """A training on ever more rows of one length, 16 at a time."""
    write_rows(path := folder / f"tokens-{size}.jsonl", size // TOKENS_ROW, TOKENS_ROW)
    steps = f"trainer.args.max_steps={size // TOKENS_ROW // 16}"
    return train(path, steps, "trainer.args.per_device_train_batch_size=16")


def row_length(folder: Path, size: int) -> list[str]:
    """A training on as many rows, whose length grows."""
    write_rows(path := folder / f"row-length-{size}.jsonl", ROWS, size)
    batch = "trainer.args.per_device_train_batch_size=8"
    steps = f"trainer.args.max_steps={2 * ROWS // 8}"
    return train(path, steps, batch, "trainer.args.max_length=1024")


def processes(folder: Path, size: int) -> list[str]:
    """A training by so many processes, each of which takes eight rows in a step."""
    write_rows(path := folder / "processes.jsonl", 1_024, TOKENS_ROW)
    batch = "trainer.args.per_device_train_batch_size=8"
    return train(path, batch, f"launcher.num_processes={size}")


def calls(folder: Path, size: int) -> list[str]:
    """Two steps of GRPO, in each of which half of the calls reward one completion each."""
    (path := folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Copy {number}:"}) + "\n" for number in range(512))
    )
    words = ["trainer=grpo", "dataset=local", f"dataset.path={path}", "dataset.split.eval=null"]
    words += ["metric=none", "reward=remote", "reward.remote.batch_size=1"]
    words += [f"reward.remote.parallel={PARALLEL}", "trainer.args.max_completion_length=4"]
    words += ["trainer.args.num_generations=4", "trainer.args.max_steps=2"]
    return [*words, f"trainer.args.per_device_train_batch_size={size // 2}"]


def train(path: Path, *words: str) -> list[str]:
    return [
        "trainer=sft",
        "dataset=local",
        f"dataset.path={path}",
        "dataset.split.eval=null",
        "metric=none",
        *words,
    ]


def runs(folder: Path, size: int) -> list[str]:
    """A report over so many runs of one name, each a copy of a real one with a seed of its own."""
    source = next((folder / "outputs" / "source").glob("*-*"))
    name = f"runs-{size}"
    for number in range(size):
        copy = folder / "outputs" / name / f"seed-{number}-{number:010x}"
        shutil.copytree(
            source, copy, ignore=shutil.ignore_patterns("checkpoints", "model", "plots")
        )
        config = (copy / "config.yaml").read_text(encoding="utf-8")
        (copy / "config.yaml").write_text(
            config.replace("seed: 0\n", f"seed: {number}\n"), encoding="utf-8"
        )
    return ["report", f"outputs/{name}"]


def jobs(folder: Path, size: int) -> list[str]:
    """The plan of a sweep: its jobs composed and checked, and none started."""
    return [
        "-m",
        f"learning_rate={','.join(f'{number + 1}e-6' for number in range(size))}",
        "--dry-run",
    ]


SIZES: dict[Callable[[Path, int], list[str]], tuple[int, ...]] = {
    rows: (1_000, 8_000, 16_000, 64_000),
    tokens: (16_384, 65_536, 262_144),
    row_length: (64, 256, 512, 1_024),
    length: (64, 256, 1_024),
    processes: (1, 2, 4),
    calls: (16, 64, 128, 256),
    runs: (10, 50, 200, 800),
    jobs: (10, 50, 200, 800),
}


def measure(words: list[str], folder: Path) -> float:
    """CPU seconds of one command and all that it starts."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    # or the second would find the rows of the first
    environment["HF_HOME"] = tempfile.mkdtemp(dir=folder)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "runner", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-500:]}{done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def exponent(sizes: tuple[int, ...], seconds: list[float], *, is_whole: bool = False) -> float:
    """The slope of the line through the logarithms of the sizes and of the seconds above those of
    the first size, or of the whole seconds.
    """
    if is_whole:
        whole = zip(sizes, seconds, strict=True)
        logarithms = [(math.log(size), math.log(spent)) for size, spent in whole]
        return statistics.linear_regression(*zip(*logarithms, strict=True)).slope
    grown = [
        (size - sizes[0], above - seconds[0])
        for size, above in zip(sizes[1:], seconds[1:], strict=True)
    ]
    points = [(math.log(size), math.log(above)) for size, above in grown if above > 0]
    if len(points) < 2:  # hardly any growth
        return exponent(sizes, seconds, is_whole=True)
    return statistics.linear_regression(*zip(*points, strict=True)).slope


# --- A server that rewards ----------------------------------------------------------------------
@dataclass
class Requests:
    """The requests that a server has answered, as times of their beginnings and ends."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def at_once(self) -> float:
        """The number of requests that were waiting at once, on average while any was."""
        busy = 0.0
        last = 0.0
        for begun, ended in sorted(self.spans):
            busy += max(0.0, ended - max(begun, last))
            last = max(last, ended)
        return sum(ended - begun for begun, ended in self.spans) / busy if busy else math.nan


@contextmanager
def server() -> Iterator[tuple[str, Requests]]:
    """The address of a server that thinks about each completion, and what it was asked."""
    requests = Requests()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            begun = time.monotonic()
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(SECONDS_ANSWER)
            rewards = [float(len(str(completion)) % 7) for completion in asked["completions"]]
            body = json.dumps({"rewards": rewards}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            requests.spans.append((begun, time.monotonic()))

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    httpd = Server(("127.0.0.1", 0), Answers)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}/", requests
    httpd.shutdown()


def draw(measured: dict[str, tuple[tuple[int, ...], list[float]]], path: Path) -> None:
    """Seconds against size from 0 on, with the straight line from the first size to the last."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(measured), figsize=(4 * len(measured), 3.6), squeeze=False, layout="constrained"
    )
    for axis, (name, (sizes, seconds)) in zip(axes[0], measured.items(), strict=True):
        per_unit = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        axis.plot(
            sizes,
            [seconds[0] + per_unit * (size - sizes[0]) for size in sizes],
            "--",
            color="0.6",
            label="linear",
        )
        axis.plot(sizes, seconds, "o-", label="measured")
        axis.set(
            title=f"exponent {exponent(sizes, seconds):.2f}",
            xlabel=name,
            ylabel="CPU seconds",
            ylim=(0, None),
        )
        axis.locator_params(axis="x", nbins=5)
        axis.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    axes = {axis.__name__: axis for axis in SIZES}
    parser.add_argument("--axes", nargs="+", choices=axes, default=list(axes))
    parser.add_argument("--most", type=int, default=10**9, help="the largest size")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--picture", type=Path, help="a PNG, outside of the repository")
    marks.add_option(parser)
    chosen = parser.parse_args()
    measured = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "runs" in chosen.axes:
            write_rows(folder / "source.jsonl", 64, 24)
            measure(
                [*train(folder / "source.jsonl", "trainer.args.max_steps=10"), "name=source"],
                folder,
            )
        for axis in chosen.axes:
            sizes = tuple(size for size in SIZES[axes[axis]] if size <= chosen.most)
            seconds = []
            for size in sizes:
                seconds.append(of_size(axis, axes[axis], folder, size, chosen))
                print(f"{axis:<12}{size:>8}{seconds[-1]:>9.2f} s", flush=True)
            measured[axis] = (sizes, seconds)
            slope = exponent(sizes, seconds, is_whole=axis in (*WITHOUT_START, *FLAT))
            grown = f"{seconds[0]:.1f} to {seconds[-1]:.1f} s"
            beside = f"{sizes[0]:,} to {sizes[-1]:,}"
            work = f"growth over {axis.replace('_', ' ')}"
            mark = marks.Mark(work, slope, EXPONENT, at_least=False, ours=grown, beside=beside)
            marks.note(mark, chosen.marks)
    if chosen.picture:
        draw(measured, chosen.picture)


def of_size(
    axis: str,
    make: Callable[[Path, int], list[str]],
    folder: Path,
    size: int,
    chosen: argparse.Namespace,
) -> float:
    """The median of the CPU seconds of a size."""
    words = make(folder, size)
    times = []
    for number in range(chosen.repeats):
        # A training would else be finished already.
        again = [] if axis in ("runs", "jobs") else [f"seed={number}"]
        named = [] if axis == "runs" else [f"name={axis}-{size}"]
        if axis == "processes":
            few, many = (
                measure([*words, *again, f"name={axis}-{size}-{steps}", *steps_of(steps)], folder)
                for steps in STEPS
            )
            times.append(many - few)
        elif axis == "calls":
            with server() as (address, requests):
                asked = [*words, *named, *again, f"reward.remote.url={address}"]
                times.append(measure(asked, folder))
            if size == max(SIZES[make]):
                note_calls(requests, chosen.marks)
        else:
            times.append(measure([*words, *named, *again], folder))
    return statistics.median(times)


def steps_of(count: int) -> list[str]:
    return [f"trainer.args.max_steps={count}"]


def note_calls(requests: Requests, file: Path | None) -> None:
    """The mark of requests that wait side by side: of those at once, as many as are allowed."""
    ours = f"{requests.at_once():.1f} of {len(requests.spans)} requests at once"
    share = requests.at_once() / PARALLEL
    beside = f"{PARALLEL} allowed"
    marks.note(marks.Mark("calls of a reward, side by side", share, 0.8, True, ours, beside), file)


if __name__ == "__main__":
    main()
