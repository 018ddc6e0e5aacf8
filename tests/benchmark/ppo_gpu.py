"""PPO in bf16 on one CUDA card with the architecture of pythia-1b, ours beside TRL 1.12.0's
PPOTrainer.

GPT-NeoX with 16 layers of width 2048 and 50304 words; the weights are random, but the logits of an
eighth of the words rise and fall together, as those of related words do in a trained model, and the
reward is the share of those words in a completion. Four trainings a side: all weights, LoRA on a
policy in float32, in bfloat16, and in 4 bits (bitsandbytes). Our critic is a model of its own, then
an adapter; TRL's is a model of its own in float32, always. ``bf16=True`` has no effect on TRL's
trainer by itself; it gets its mixed precision through the environment, as ``accelerate launch``
would set it.

run: python tests/benchmark/ppo_gpu.py                    needs 8 GB of disk, and a card of 80 GB
     python tests/benchmark/ppo_gpu.py --setup lora 4bit --updates 10 --batch 32

Prints one markdown table: episodes per second of wall clock after the first update, the peak of
memory that PyTorch allocated on the card, the reward of the first update and of the last three, and
the seconds of our phases. Without a CUDA card it says so and ends; where TRL 1.12.0 cannot be
installed, ours runs alone.

Left out on purpose: real weights (nothing is downloaded but TRL and what it needs), several cards,
and a text's end: every completion is as long as it may be, so this is the shape in which we gain
the least.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean

from ppo_sides import (
    Models,
    Result,
    Training,
    installed,
    run_apart,
    trl_python,
    write_apart,
    write_models,
)

WORDS = 50304
LAST = 3
PHASES = ("rollout", "score", "update")  # seconds of each in one update of ours

PYTHIA_1B = Models(
    vocabulary=WORDS,
    hidden=2048,
    layers=16,
    heads=8,
    prompt_lengths=(64, 256),
    prompts=2048,
    lean=0.5,
    scored=False,
)
COMMON = Training(
    side="ours",
    models="",
    updates=20,
    batch=64,
    micro_batch=16,
    response_length=64,
    kl_coef=0.02,
    targets=WORDS // 8,
    device="cuda",
)
LORA = replace(COMMON, learning_rate=1e-4, lora_rank=16, critic="adapter")
SETUPS = {
    "full": replace(COMMON, learning_rate=1e-5),
    "lora": LORA,
    "lora_bf16": replace(LORA, policy_dtype="bfloat16"),
    "4bit": replace(LORA, four_bit=True, policy_dtype="bfloat16"),
}


def main() -> None:
    options = read_arguments()
    if not has_card():
        print("no CUDA card: nothing to measure")
        return
    if "4bit" in options.setup and not installed("bitsandbytes"):
        print("without bitsandbytes there is no 4bit: pip install bitsandbytes", file=sys.stderr)
        options.setup.remove("4bit")
    print(*compare(PYTHIA_1B, options, available_sides()), sep="\n")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--setup", nargs="+", choices=SETUPS, default=list(SETUPS))
    parser.add_argument("--updates", type=int, default=COMMON.updates, help="at least 2")
    parser.add_argument(
        "--batch", type=int, default=COMMON.batch, help=f"a multiple of {COMMON.micro_batch}"
    )
    return parser.parse_args()


def has_card() -> bool:
    import torch

    return torch.cuda.is_available()


def available_sides() -> list[str]:
    try:
        trl_python()
    except subprocess.CalledProcessError:
        print("TRL 1.12.0 cannot be installed here: ours runs alone", file=sys.stderr)
        return ["ours"]
    return ["ours", "trl"]


def compare(models: Models, options: argparse.Namespace, sides: list[str]) -> list[str]:
    """The table: a line for each setup on each side."""
    columns = ["setup", "side", "episodes/s", "peak GB", "reward at start", "at end", *PHASES]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "models"
        write_apart(write_models, folder, models)
        for setup in options.setup:
            asked = replace(
                SETUPS[setup], models=str(folder), updates=options.updates, batch=options.batch
            )
            for side in sides:
                lines.append(
                    to_row(setup, side, options.batch, run_apart(replace(asked, side=side)))
                )
                print(lines[-1], file=sys.stderr)
    return lines


def to_row(setup: str, side: str, batch: int, result: Result) -> str:
    ends = result.update_ends
    scores = [entry["objective/scores"] for entry in result.log]
    rate = batch * (len(ends) - 1) / (ends[-1] - ends[0])
    cells = [setup, side, f"{rate:.1f}", f"{result.peak_bytes / 1e9:.1f}"]
    cells += [f"{scores[0]:.3f}", f"{mean(scores[-LAST:]):.3f}"]
    cells += [
        f"{mean(entry.get(f'time/{name}', math.nan) for entry in result.log[1:]):.2f}"
        for name in PHASES
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
