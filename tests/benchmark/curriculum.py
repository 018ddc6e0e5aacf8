"""Completions until GRPO reaches a score, where two thirds of the rows teach nothing.

    python tests/benchmark/curriculum.py             about six minutes of one processor
    python tests/benchmark/curriculum.py --seeds 1

The toy has the digits to sort of ``toy_sort``. Of its rows a third earns what is right, a third
always 1 and a third always 0, as tasks do that are too easy or too hard. Each run is measured on
held-out rows every ten steps; it has reached the score where two measurements in a row have.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from runner.io.files import PACKAGE, read_rows, write_text

SCORE = 0.7
STEPS = 200
ROWS = 120  # so that each is seen several times
COMPLETIONS = 32  # of a step
VARIANTS = {
    "none": [],
    "rows": ["trainer.curriculum=rows"],
    "kind": ["trainer.curriculum=kind"],
}
REWARD = """
from runner.reward.rule import text_of


def reward(completions, reference, kind):
    earned = []
    for completion, answer, row_kind in zip(completions, reference, kind):
        if row_kind == "learn":
            earned.append(float(text_of(completion).strip() == answer.strip()))
        else:
            earned.append(float(row_kind == "always"))
    return earned
"""
WORDS = [
    "trainer=grpo",
    "model=tiny",
    "dataset=local",
    "dataset.path=rows",
    "dataset.split.eval=eval",
    "dataset.limit.eval=100",
    "metric=exact",
    "reward=none",
    "reward.toy._target_=toy.reward",
    "allow=[toy]",
    "trainer.evaluates=false",
    "learning_rate=3e-4",
    f"trainer.args.max_steps={STEPS}",
    "trainer.args.max_completion_length=16",
    "trainer.args.eval_strategy=steps",
    "trainer.args.eval_steps=10",
    "tolerate.no_signal=true",
]


def write_toy(folder: Path) -> None:
    """Write the rows of the toy and its reward."""
    kinds = ("learn", "always", "never")
    for name, count in (("train", ROWS), ("eval", 100)):
        lines = []
        for number, row in enumerate(read_rows(PACKAGE / "dataset" / "toy_sort" / f"{name}.jsonl")):
            if number == count:
                break
            kind = kinds[number % 3] if name == "train" else "learn"
            answer = row["chosen"][0]["content"]
            line = {"prompt": row["prompt"], "reference": answer, "kind": kind}
            lines.append(json.dumps(line) + "\n")
        write_text(folder / "rows" / f"{name}.jsonl", "".join(lines))
    write_text(folder / "toy.py", REWARD)


def train(folder: Path, variant: str, seed: int) -> list[tuple[int, float]]:
    """The held-out scores of a run, each with its step."""
    name = f"{variant}-{seed}"
    words = [*WORDS, *VARIANTS[variant], f"seed={seed}", f"name={name}"]
    command = [sys.executable, "-m", "runner", *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    [metrics] = (folder / "outputs" / name).glob("*/metrics.jsonl")
    scores = []
    for line in read_rows(metrics):
        if "eval_exact" in line:
            scores.append((line["step"], line["eval_exact"]))
    return scores


def steps_to(scores: list[tuple[int, float]]) -> int | None:
    """The step of the first of two scores in a row that are high enough."""
    for (step, score), (_, next_score) in pairwise(scores):
        if min(score, next_score) >= SCORE:
            return step
    return None


def main() -> None:
    """Print a table: a line for each variant, a column for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"completions until eval_exact {SCORE}", *[f"seed {seed}" for seed in seeds], "median")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_toy(folder)
        for variant in VARIANTS:
            counts = []
            texts = []
            for seed in seeds:
                scores = train(folder, variant, seed)
                step = steps_to(scores)
                counts.append(COMPLETIONS * (step or STEPS))
                last = f"{scores[-1][1]:.2f}"
                texts.append(f"{counts[-1] if step else 'not'} (ends {last})")
            print(variant, *texts, median(counts), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
