"""The rows of a training and the steps that it makes of them, counted as its trainer counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.config.experiment import Experiment
from runner.schema import upstream
from runner.schema.text import Node
from runner.schema.upstream import batch_size, config_fields, setting

# Trainers with one of these fields leave out a last batch that is not full.
WHOLE_BATCHES = {"num_generations", "num_ppo_epochs"}


@dataclass(frozen=True)
class Rows:
    """The rows to train on: the tokens of the first ones, and how many there are in all."""

    lengths: Sequence[int]  # of sequences as they are trained, or of prompts
    limit: int | None = None  # by which they are cut
    total: float | None = None  # None where nobody knows

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self.lengths, default=1)

    @property
    def mean(self) -> float:
        """Tokens of a row on average."""
        return sum(self.lengths) / max(1, len(self.lengths))

    def padded(self, rows: int) -> float:
        """The mean width of batches of so many rows, each as wide as its longest."""
        widths = []
        for start in range(0, len(self.lengths), rows):
            widths.append(max(self.lengths[start : start + rows]))
        return sum(widths) / len(widths) if widths else 1.0


def cycle_of(args: Node) -> int:
    """Optimizer steps from one generation to the next, from the arguments as they are written."""
    steps = args.get("steps_per_generation")
    generated = args.get("generation_batch_size")
    if not steps and generated:
        steps = max(1, generated // batch_size(args))
    return upstream.cycle_steps(
        {
            "gradient_accumulation_steps": setting(args, "gradient_accumulation_steps", 1),
            "num_iterations": setting(args, "num_iterations", 1),
            "steps_per_generation": steps,
        }
    )


def rows_per_step(args: Node) -> float:
    """Rows of the dataset that one process draws for an optimizer step, on average."""
    rows = float(batch_size(args) * setting(args, "gradient_accumulation_steps", 1))
    uses = setting(args, "num_generations", 1) * setting(args, "num_iterations", 1)
    return rows / float(uses)


def steps_of(experiment: Experiment, rows: Rows) -> int | None:
    """Optimizer steps of the whole training; None where nobody knows how many rows there are."""
    args = experiment.trainer.args
    max_steps = int(setting(args, "max_steps", -1))
    if max_steps > 0:
        return max_steps
    step_rows = rows_per_step(args) * experiment.launcher.all_processes
    episodes = args.get("total_episodes")
    if episodes:
        return math.ceil(int(episodes) / step_rows)
    total = rows.total
    if total is None:
        return None
    if setting(args, "packing", False) and rows.limit:
        total = math.ceil(total * rows.mean / rows.limit)
    steps = total / step_rows
    if WHOLE_BATCHES & config_fields(args).keys():
        steps = math.floor(steps)
    else:
        steps = math.ceil(steps)
    return math.ceil(steps * float(setting(args, "num_train_epochs", 3.0)))
