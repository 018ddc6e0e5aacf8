"""CPU seconds over size for rows, row length, runs in a report and jobs in a sweep.

They should grow linearly.

run: python tests/benchmark/growth.py                        every axis: a table, and nothing is
written
     python tests/benchmark/growth.py --axes rows jobs --picture growth.png

Of each size the CPU seconds of the command and all it starts, the median of ``--repeats``, less
those of the smallest size: what is left is what grows. The exponent is the slope through the
logarithms of sizes and these, 1 where it is linear. ``length`` has as many tokens at each size, in
fewer and longer rows, and should be flat but for attention.
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
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TOKENS = 65_536  # of a training at each length


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
    rows: (250, 1_000, 4_000, 16_000, 64_000),
    length: (64, 128, 256, 512, 1_024),
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


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """The slope of the line through the logarithms of the sizes and of the seconds above those of
    the first size.
    """
    grown = [
        (size - sizes[0], above - seconds[0])
        for size, above in zip(sizes[1:], seconds[1:], strict=True)
    ]
    points = [(math.log(size), math.log(above)) for size, above in grown if above > 0]
    return (
        statistics.linear_regression(*zip(*points, strict=True)).slope
        if len(points) > 1
        else math.nan
    )


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
                words = axes[axis](folder, size)
                extra = [] if axis == "runs" else [f"name={axis}-{size}"]
                times = [
                    measure([*words, *extra, *again], folder)
                    for again in seeds(axis, chosen.repeats)
                ]
                seconds.append(statistics.median(times))
                print(f"{axis:<8}{size:>8}{seconds[-1]:>9.2f} s", flush=True)
            measured[axis] = (sizes, seconds)
            print(f"{axis:<8}exponent {exponent(sizes, seconds):.2f}", flush=True)
    if chosen.picture:
        draw(measured, chosen.picture)


def seeds(axis: str, repeats: int) -> list[list[str]]:
    """A word for each repeat of a training, which would otherwise be finished already."""
    return [[f"seed={number}"] if axis in ("rows", "length") else [] for number in range(repeats)]


if __name__ == "__main__":
    main()
