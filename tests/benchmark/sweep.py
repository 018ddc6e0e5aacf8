"""CPU seconds of 16 runs of DPO as one sweep, beside as many separate commands and ``trl dpo``.

run: python tests/benchmark/sweep.py                            five minutes on one core
     python tests/benchmark/sweep.py --values 2 --repeats 1     a sweep of 4 runs, and a quick look

The runs differ in the learning rate and the KL coefficient; nothing is evaluated. Each of them
saves its model. The sweep is measured whole, with its report at the end. Of the commands, which all
do the same work, as many as ``--sampled`` are run, and the median of one stands for each of the 16.
The sides take turns, and each figure is the median of the repeats. A run of each side before them
has filled the caches of rows. The weights of a run in the
sweep must be those of the same run alone, byte for byte; exits 1 where they are not.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import marks
from overhead import PAIRS, ROOT, Measure, ours, theirs

RATES = (1e-5, 3e-5, 1e-4, 3e-4)
COEFFICIENTS = (0.05, 0.1, 0.2, 0.5)
STEPS = 20
OF_SEPARATE = 0.30
OF_TRL = 0.15


@dataclass
class Costs:
    """CPU seconds: of whole sweeps, and of single commands."""

    sweep: list[float] = field(default_factory=list)
    separate: list[float] = field(default_factory=list)
    trl: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--values", type=int, default=4, choices=(1, 2, 3, 4), help="of each key")
    parser.add_argument("--sampled", type=int, default=2, help="commands of each side in a repeat")
    marks.add_option(parser)
    chosen = parser.parse_args()
    compileall.compile_dir(ROOT / "runner", quiet=1)
    pairs = list(itertools.product(RATES[: chosen.values], COEFFICIENTS[: chosen.values]))
    with tempfile.TemporaryDirectory() as name:
        measure = Measure(Path(name), chosen.repeats)
        folder = measure.folder
        costs = Costs()
        sampled = itertools.cycle(pairs)  # in each repeat other runs, as far as there are some
        for repeat in range(chosen.repeats + 1):
            words = _sweep_words(chosen.values)
            sweep = [*_base(folder), *words, f"name=sweep-{repeat}"]
            if repeat:  # before that, the caches are filled
                costs.sweep.append(measure.cost([sweep], keeps_cache=True))
            for number in range(chosen.sampled if repeat else 1):
                rate, coefficient = next(sampled)
                alone = [*_base(folder), f"learning_rate={rate}", f"kl_coef={coefficient}"]
                alone += [f"name=alone-{repeat}-{number}"]
                command = theirs("dpo", STEPS, PAIRS, folder / "few", rate, coefficient)
                separate_seconds = measure.cost([alone], keeps_cache=True)
                trl_seconds = measure.cost([command], keeps_cache=True)
                if repeat:
                    costs.separate.append(separate_seconds)
                    costs.trl.append(trl_seconds)
        in_sweep = weights_by_key(folder / "outputs", "sweep-1")
        alone_weights = weights_by_key(folder / "outputs", "alone-*")
    _note_marks(costs, len(pairs), chosen.marks)
    same = sum(in_sweep[key] == weights for key, weights in alone_weights.items())
    print(f"\nWeights of the same bytes as those of the run alone: {same} of {len(alone_weights)}")
    return int(same < len(alone_weights))


def _base(folder: Path) -> list[object]:
    """The command of a run, without what the runs differ in."""
    rows = [
        "dataset=local",
        f"dataset.path={folder / 'few' / 'train.jsonl'}",
        "dataset.split.eval=null",
        "metric=none",
    ]
    return [*ours("dpo", STEPS, PAIRS), *rows]


def _sweep_words(values: int) -> list[object]:
    """The words that make a sweep of a command."""
    rates = ",".join(map(str, RATES[:values]))
    coefficients = ",".join(map(str, COEFFICIENTS[:values]))
    return ["-m", f"learning_rate={rates}", f"kl_coef={coefficients}"]


def _note_marks(costs: Costs, runs: int, file: Path | None) -> None:
    """Print the table, and say it to the file of marks."""
    sweep = statistics.median(costs.sweep)
    print(marks.HEAD)
    for side, seconds, most in (
        ("`trl dpo`", costs.trl, OF_TRL),
        ("our own separate commands", costs.separate, OF_SEPARATE),
    ):
        beside = runs * statistics.median(seconds)
        mark = marks.Mark(
            work=f"sweep of {runs} DPO runs, CPU",
            measured=sweep / beside,
            mark=most,
            at_least=False,
            ours=f"{sweep:.1f} s",
            beside=f"{beside:.1f} s, {runs} x {side}",
        )
        marks.note(mark, file)


def weights_by_key(root: Path, name: str) -> dict[str, bytes]:
    """The saved weights of each run of the names that a pattern matches, by the run's key."""
    weights = {}
    for path in root.glob(f"{name}/*/model/*.safetensors"):
        weights[path.parts[-3][-10:]] = path.read_bytes()
    return weights


if __name__ == "__main__":
    sys.exit(main())
