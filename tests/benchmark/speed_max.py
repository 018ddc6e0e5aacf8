"""``speed=max`` beside TRL's own trainers at their defaults, on rows of unlike lengths, on a CPU.

Both sides train the same model on each of the same rows once, in batches of the same size, in turns
step by step (``step.py``). A figure is how many times as many tokens of those rows are trained on
in a CPU second. In which order the rows come, and how a batch is computed, is each side's own: that
is what ``speed=max`` is about. Trainers that sample have prompts of unlike lengths, and the sampler
that each side has by default.

run: python tests/benchmark/speed_max.py                         five minutes on one core
     python tests/benchmark/speed_max.py --only sft --repeats 3

Left out on purpose: PPO, which TRL no longer has (``ppo_speed.py``), and what ``speed=max`` does on
a card (``card.py``): bf16, TF32, packing, Liger's kernels and workers that load rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import marks
from card_sides import write_model
from step import SMALL, take_turns

BATCH = 4
# The lengths of texts are lognormal, in tokens.
SHORTEST = 20
LONGEST = 600
MEDIAN = 80
SPREAD = 1.0
HEAD = "| | CPU s, `speed=max` | TRL | times |\n|---|---|---|---|"


@dataclass(frozen=True)
class Kind:
    """The rows of a trainer, and further words of our command."""

    columns: Sequence[str]  # of texts; the first is a short prompt
    rows: int
    words: dict[str, object] = field(default_factory=dict)


# Before the first step nothing is computed that no clock would see.
REFERENCE: dict[str, object] = {"trainer.args.precompute_ref_log_probs": "false"}
SAMPLING: dict[str, object] = {
    "reward": "distinct_characters",
    "trainer.args.max_completion_length": 16,
    "trainer.args.per_device_train_batch_size": 8,
}
KINDS = {
    "sft": Kind(("prompt", "completion"), 240),
    "reward": Kind(("prompt", "chosen", "rejected"), 120),
    "dpo": Kind(("prompt", "chosen", "rejected"), 120, REFERENCE),
    "orpo": Kind(("prompt", "chosen", "rejected"), 120),
    "cpo": Kind(("prompt", "chosen", "rejected"), 120),
    "kto": Kind(("prompt", "completion"), 160, REFERENCE),
    # A step is 8 completions: of 1 prompt with GRPO, of 4 with RLOO.
    "grpo": Kind(("prompt",), 64, SAMPLING),
    "rloo": Kind(("prompt",), 256, SAMPLING),
}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--repeats", type=int, default=1, help="trainings of each kind")
    marks.add_option(parser)
    options = parser.parse_args(words)
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HOME": f"{name}/hf"}
        os.environ.update(variables)
        write_model(scratch / "model", {**SMALL, "num_hidden_layers": 2})
        noted = []
        for kind in options.only:
            noted.append(measure(scratch, kind, options.repeats))
    print(f"\n{marks.HEAD}")
    for mark in noted:
        marks.note(mark, options.marks)


def measure(scratch: Path, name: str, repeats: int) -> marks.Mark:
    """Print the line of one trainer, and return its mark."""
    folder = scratch / name
    folder.mkdir()
    write_rows(folder / "rows.jsonl", name)
    ours: list[float] = []
    plain: list[float] = []
    for repeat in range(repeats):
        words = words_of(scratch, name, repeat)
        our_figures, plain_figures = take_turns(
            words | {"speed": "max"}, words, folder / str(repeat)
        )
        ours.append(sum(our_figures["seconds"]))
        plain.append(sum(plain_figures["seconds"]))
        steps = len(our_figures["seconds"]), len(plain_figures["seconds"])
        if steps[0] != steps[1]:
            raise SystemExit(f"{name}: not as many steps on both sides: {steps}")
    times = median(theirs / mine for mine, theirs in zip(ours, plain, strict=True))
    print(f"| {name} | {median(ours):.2f} | {median(plain):.2f} | {times:.2f} |", flush=True)
    return marks.Mark(
        work=f"speed=max, {name} on unlike lengths, tokens a CPU second",
        measured=times,
        mark=1.0,
        ours=f"{median(ours):.2f} CPU s",
        beside=f"TRL at its default {median(plain):.2f} CPU s",
    )


def write_rows(path: Path, name: str) -> None:
    """Write rows of digits, one token each, with texts of unlike lengths."""
    kind = KINDS[name]
    draw = random.Random(0)
    lines = []
    for number in range(kind.rows):
        row: dict[str, object] = {}
        for column in kind.columns:
            length = draw.lognormvariate(0, SPREAD) * MEDIAN
            if column == "prompt":
                length /= 4
            letters = int(min(max(length, SHORTEST), LONGEST))
            row[column] = "".join(draw.choices("0123456789", k=letters))
        if name == "kto":
            row["label"] = number % 2 == 0
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))


def words_of(scratch: Path, name: str, seed: int) -> dict[str, object]:
    """The words of our command by their keys, but for ``speed``."""
    return {
        "trainer": name,
        "model": "tiny",
        "model.path": scratch / "model",
        "dataset": "local",
        "dataset.path": scratch / name / "rows.jsonl",
        "dataset.split": "{train: train, eval: null}",
        "metric": "none",
        "seed": seed,
        "output_root": scratch / "made",
        "trainer.args.num_train_epochs": 1,
        "trainer.args.max_steps": -1,
        "trainer.args.per_device_train_batch_size": BATCH,
        "trainer.args.save_strategy": "no",
        **KINDS[name].words,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
