"""CPU seconds of a sweep against as many separate commands, ours and TRL's own command line.

Each side trains DPO on the tiny model for 20 steps of 8 pairs, once for each learning rate and each kl_coef, and
saves the model; nothing is evaluated. Ours also checks the configurations, seals a checkpoint and draws the curves.

run: python tests/benchmark/sweep_speed.py                              16 runs on each of the three sides
     python tests/benchmark/sweep_speed.py --values 2 --sides sweep trl

Prints CPU seconds, seconds, the ratio of each side to the sweep, and whether each run of the sweep has the weights of
the same run alone, byte for byte. Seconds are wall time of one job after the other, also in the sweep.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MODEL, ROWS = ROOT / "runner" / "model" / "tiny", ROOT / "runner" / "dataset" / "toy_sort" / "train.jsonl"
STEPS, PAIRS, COUNT = 20, 8, 512
RATES, COEFFICIENTS = (1e-5, 3e-5, 1e-4, 3e-4), (0.05, 0.1, 0.2, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=4, choices=(1, 2, 3, 4), help="values of each of the two keys")
    parser.add_argument("--sides", nargs="+", default=["sweep", "separate", "trl"])
    chosen = parser.parse_args()
    rates, coefficients = RATES[: chosen.values], COEFFICIENTS[: chosen.values]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        rows = ROWS.read_text(encoding="utf-8").splitlines(keepends=True)[:COUNT]
        (folder / "rows" / "train.jsonl").write_text("".join(rows), encoding="utf-8")
        commands = {side: list(commands_of(side, rates, coefficients, folder)) for side in chosen.sides}
        measured = {side: measure(commands[side], folder) for side in chosen.sides}
        print_table(measured, len(rates) * len(coefficients))
        if {"sweep", "separate"} <= set(chosen.sides):
            print_equality(folder)


def commands_of(
    side: str, rates: tuple[float, ...], coefficients: tuple[float, ...], folder: Path
) -> Iterator[list[str]]:
    """The commands that one side needs for all the runs."""
    if side == "sweep":
        axes = [f"learning_rate={','.join(map(str, rates))}", f"kl_coef={','.join(map(str, coefficients))}"]
        yield [*ours(folder), "-m", *axes, "name=sweep"]
        return
    for rate, coefficient in itertools.product(rates, coefficients):
        if side == "separate":
            yield [*ours(folder), f"learning_rate={rate}", f"kl_coef={coefficient}", "name=separate"]
        else:
            yield theirs(folder, rate, coefficient)


def ours(folder: Path) -> list[str]:
    rows = ["dataset=local", f"dataset.path={folder / 'rows' / 'train.jsonl'}", "dataset.split.eval=null"]
    steps = [f"trainer.args.max_steps={STEPS}", f"trainer.args.per_device_train_batch_size={PAIRS}"]
    return [sys.executable, "-m", "runner", "trainer=dpo", "model=tiny", *rows, *steps, "metric=none"]


def theirs(folder: Path, rate: float, coefficient: float) -> list[str]:
    flags = {
        **{"model_name_or_path": MODEL, "dataset_name": folder / "rows", "eval_strategy": "no"},
        **{"max_steps": STEPS, "per_device_train_batch_size": PAIRS, "learning_rate": rate, "beta": coefficient},
        **{"output_dir": folder / "trl" / f"{rate}-{coefficient}", "report_to": "none", "dtype": "float32"},
        **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    }
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    return [str(Path(sys.executable).parent / "trl"), "dpo", *words]


def measure(commands: list[list[str]], folder: Path) -> tuple[float, float]:
    """CPU seconds and seconds of these commands, one after the other; raises where one fails."""
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | dict(os.environ)
    environment["HF_HOME"] = str(folder / "hf")
    before, began = cpu_seconds(), time.monotonic()
    for command in commands:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    spent = cpu_seconds() - before, time.monotonic() - began
    shutil.rmtree(folder / "hf", ignore_errors=True)  # no side finds what another has tokenised
    return spent


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def print_table(measured: dict[str, tuple[float, float]], runs: int) -> None:
    base = measured.get("sweep", (float("nan"),))[0]
    print(f"\n| {runs} runs | CPU seconds | a run | seconds | the sweep's share |\n|---|---|---|---|---|")
    for side, (cpu, wall) in measured.items():
        print(f"| {side} | {cpu:.1f} | {cpu / runs:.2f} | {wall:.1f} | {base / cpu:.2f} |")


def print_equality(folder: Path) -> None:
    weights = [
        {
            path.parent.parent.name[-10:]: path.read_bytes()
            for path in (folder / "outputs" / name).glob("*/model/*.safetensors")
        }
        for name in ("sweep", "separate")
    ]
    same = sum(weights[0][key] == weights[1][key] for key in weights[0])
    print(f"\nweights equal to those of the same run alone: {same} of {len(weights[0])}")


if __name__ == "__main__":
    main()
