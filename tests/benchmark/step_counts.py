"""How much a training step does, ours beside TRL's, in counts that no busy machine changes.

The experiments train 24 narrow layers on the CPU, with the same arguments, rows and order on both
sides. Of one step are counted: the operators that PyTorch runs, the operations of its matrix
products, the passes through the model, the numbers that the host reads from tensors (on a card each
read waits until it has done all that it was given), and Python's function calls.

run: python tests/benchmark/step_counts.py
     python tests/benchmark/step_counts.py --experiment dpo --words speed=max

Prints one markdown table. CPU milliseconds are the median of the other steps: they depend on the
machine. Left out on purpose: what a card takes (``card.py``), and starting (``overhead.py``).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from card_sides import (
    QWEN,
    SMALL,
    WARM_STEPS,
    our_side,
    plain_side,
    words_of,
    write_model,
    write_rows,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

# Each with words that make a step short, and its rows the same ones on both sides.
EXPERIMENTS = {
    "dpo": ("dpo_qwen_descriptiveness", {}),
    "sft": ("sft_qwen_tldr", {"trainer.args.train_sampling_strategy": "random"}),
    "grpo": ("grpo_qwen_tldr", {"trainer.args.max_completion_length": 8}),
}
STEPS = 10
COUNTED_STEP = 4  # operators of this step, and Python's calls of the next
READS = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero")
COLUMNS = ("operators", "GFLOP", "passes", "reads", "Python calls", "CPU ms")


class Operators(TorchDispatchMode):
    """The operators that run inside, by their names, and the reads by the host."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.reads = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().partition(".")[0]
        self.counts[name] += 1
        self.reads += name in READS
        return func(*args, **(kwargs or {}))


class Counts(TrainerCallback):
    """Counts what one step does, from its begin to the begin of the next."""

    def __init__(self, result: str, baton: int | None = None, first: bool = True):
        self.result = Path(result)
        self.starts: list[float] = []
        self.figures: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.operators = Operators()
        self.products = FlopCounterMode(display=False)
        self.profile = cProfile.Profile()
        to_list = torch.Tensor.tolist

        def counted_list(tensor: torch.Tensor) -> Any:
            # On the CPU a list is made of a tensor without an operator.
            self.operators.reads += self.is_counting
            return to_list(tensor)

        self.is_counting = False
        torch.Tensor.tolist = counted_list

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if step == COUNTED_STEP:
            self.is_counting = True
            self.operators.__enter__()
            self.products.__enter__()
        elif step == COUNTED_STEP + 1:
            self.products.__exit__(None, None, None)
            self.operators.__exit__(None, None, None)
            self.is_counting = False
            self.profile.enable()
        elif step == COUNTED_STEP + 2:
            self.profile.disable()
        self.starts.append(time.process_time())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seconds = []
        for step in range(WARM_STEPS, len(self.starts) - 1):
            if step not in (COUNTED_STEP, COUNTED_STEP + 1):
                seconds.append(self.starts[step + 1] - self.starts[step])
        figures = {
            "operators": sum(self.operators.counts.values()),
            "GFLOP": self.products.get_total_flops() / 1e9,
            "passes": self.operators.counts["aten::embedding"],
            "reads": self.operators.reads,
            "Python calls": pstats.Stats(self.profile).total_calls,
            "CPU ms": 1000 * median(seconds),
        }
        self.result.write_text(json.dumps(figures))


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--experiment", nargs="+", choices=EXPERIMENTS, default=["dpo", "sft"])
    parser.add_argument("--layers", type=int, default=24, help="of the model")
    parser.add_argument("--words", nargs="*", default=[], help="further words of our command")
    options = parser.parse_args(words)
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HOME": f"{name}/hf"}
        os.environ.update(variables)
        write_model(scratch / "qwen", {**QWEN, **SMALL, "num_hidden_layers": options.layers})
        for kind in options.experiment:
            lines += count(scratch, kind, options.words)
    print(*lines, sep="\n")


def count(scratch: Path, kind: str, further: list[str]) -> list[str]:
    """The lines of the table for one experiment, of our side and of TRL's."""
    experiment, words = EXPERIMENTS[kind]
    rows = scratch / f"{kind}.jsonl"
    write_rows(rows, experiment, 500)
    words = words_of(experiment, scratch / "qwen", rows, scratch / "made", STEPS) | words
    words |= {"trainer.skip_padding": "false"}  # as it is on a card
    words |= dict(word.split("=", 1) for word in further)
    sides = [
        our_side(words, scratch / f"{kind}-ours.json", "step_counts.Counts"),
        plain_side(words, scratch / f"{kind}-trl.json", callback="step_counts.Counts"),
    ]
    lines = []
    for side in sides:
        side.start()
        figures = side.wait()
        if figures is None:
            raise SystemExit(1)
        cells = [f"{kind}, {side.name}"]
        for column in COLUMNS:
            cells.append(f"{figures[column]:,.{1 if column == 'GFLOP' else 0}f}")
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr)
    return lines


if __name__ == "__main__":
    main(sys.argv[1:])
