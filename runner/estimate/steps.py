"""A trainer's settings and the lengths of its rows -> how many rows and steps a training takes, in what precision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.config.machines import processes_of
from runner.schema import upstream
from runner.schema.text import Config, Node
from runner.schema.upstream import batch_size, config_fields, setting

WHOLE_BATCHES = {upstream.NUM_GENERATIONS, "num_ppo_epochs"}  # fields of trainers that leave out a last batch not full
# The newer name counts before the older.
RECOMPUTE = (upstream.ACTIVATION_CHECKPOINTING, upstream.GRADIENT_CHECKPOINTING)


@dataclass(frozen=True)
class Rows:
    """The rows to train on: tokens of those that were looked at, and how many there are in all."""

    lengths: Sequence[int]  # of sequences as they are trained, or of prompts
    limit: int | None = None  # by which they are cut
    total: float | None = None  # None where nobody knows

    @property
    def longest(self) -> int:
        return max(self.lengths, default=1)

    @property
    def mean(self) -> float:
        return sum(self.lengths) / max(1, len(self.lengths))

    def padded(self, rows: int) -> float:
        """The mean width of batches of so many rows, each as wide as its longest."""
        groups = [self.lengths[start : start + rows] for start in range(0, len(self.lengths), rows)] or [[1]]
        return sum(map(max, groups)) / len(groups)


def autocasts(args: Node, gpu: bool) -> bool:
    """True where passes are under bf16 autocast: as it was typed, else on a GPU."""
    typed = args.get(upstream.BF16)
    return bool(gpu if typed is None else typed) and not args.get(upstream.FP16)


def recomputes(args: Node, gpu: bool) -> bool:
    """True where the backward pass recomputes activations: as it was typed, else on a GPU as the trainer has it."""
    typed = [value for name in RECOMPUTE if (value := args.get(name)) is not None]
    return any(typed[:1]) if typed or not gpu else any(setting(args, name, False) for name in RECOMPUTE)


def cycle_of(args: Node) -> int:
    """Optimizer steps from one generation to the next, from the arguments as they are written."""
    known = {name: setting(args, name, 1) for name in (upstream.GRADIENT_ACCUMULATION_STEPS, upstream.NUM_ITERATIONS)}
    steps, whole = args.get(upstream.STEPS_PER_GENERATION), args.get(upstream.GENERATION_BATCH_SIZE)
    steps = steps or (whole and max(1, whole // batch_size(args)))
    return upstream.cycle_steps(known | {upstream.STEPS_PER_GENERATION: steps})


def rows_per_step(args: Node) -> float:
    """Rows of the dataset that one process draws for an optimizer step, on average."""
    rows = batch_size(args) * setting(args, upstream.GRADIENT_ACCUMULATION_STEPS, 1)
    return rows / (setting(args, upstream.NUM_GENERATIONS, 1) * setting(args, upstream.NUM_ITERATIONS, 1))


def steps_of(cfg: Config, rows: Rows) -> int | None:
    """Optimizer steps of the whole training; None where nobody knows how many rows there are."""
    args = cfg["trainer"]["args"]
    if (most := setting(args, upstream.MAX_STEPS, -1)) > 0:
        return int(most)
    share = rows_per_step(args) * processes_of(cfg)
    if episodes := args.get("total_episodes"):
        return math.ceil(episodes / share)
    if rows.total is None:
        return None
    total = rows.total
    if setting(args, upstream.PACKING, False) and rows.limit:
        total = math.ceil(total * rows.mean / rows.limit)
    whole = math.floor if WHOLE_BATCHES & config_fields(args).keys() else math.ceil
    return math.ceil(whole(total / share) * float(setting(args, upstream.NUM_TRAIN_EPOCHS, 3.0)))
