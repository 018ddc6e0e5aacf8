"""CPU seconds per PPO update and peak memory, ours against TRL 1.12.0's PPOTrainer.

Both sides load the same models (GPT-NeoX, random seeded weights) and the same prompts, take the
same number of updates of the same batch with 4 epochs each, and use one thread. Each training is a
process of its own, and the two take turns, update by update. Seconds are process CPU seconds over
``trainer.train()``, so a busy machine disturbs them little; memory is the peak above what the
process held before it loaded the models, without the pages of library code that it read in
meanwhile (37 MB on either side). TRL runs in an environment of its own, made at first use
(``ppo_sides.trl_python``).

run: python tests/benchmark/ppo_speed.py                 the shapes that have marks, 10 CPU minutes
     python tests/benchmark/ppo_speed.py --shape all
     python tests/benchmark/ppo_speed.py --peft --shape stops tldr_stops
     python tests/benchmark/ppo_speed.py --critic head
     python tests/benchmark/ppo_speed.py --shape stops worst --repeats 5

By default it uses full fine-tuning and a critic model on both sides. With ``--peft`` both use LoRA
of rank 8 and our critic is an adapter, with ``--critic head`` a head on the policy; TRL's critic is
always a model.

Prints one markdown table: medians, the speed ratio of each repeat, and the shares of our time that
sampling, scoring and updating take. Then the marks, which are for full fine-tuning with a critic
model on both sides. The tldr shapes take two minutes a repeat.

Left out on purpose: what is learnt (``ppo_parity.py``), cards (``card.py``), several processes,
and gradient checkpointing, which TRL's trainer ignores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import marks
from ppo_sides import TRL, Models, Result, Training, run_both, write_apart, write_models

PHASES = ("time/rollout", "time/score", "time/update")


@dataclass(frozen=True)
class Shape:
    """The shape of a run; responses that stop do so after a quarter of the limit on average."""

    prompts: tuple[int, int]
    response: int
    stops: bool
    vocabulary: int = 2048
    hidden: int = 128
    layers: int = 4
    batch: int = 32
    micro_batch: int = 8  # TRL's memory is about proportional to it
    updates: int = 8


SHAPES = {
    "stops": Shape((8, 64), 64, stops=True, updates=16),
    "stops_long": Shape((8, 64), 128, stops=True, vocabulary=8192, updates=4),
    "stops_wide": Shape((8, 64), 64, stops=True, vocabulary=8192, hidden=256, layers=6),
    "tldr": Shape(
        (200, 512),
        53,
        stops=False,
        vocabulary=32000,
        hidden=256,
        batch=16,
        micro_batch=4,
        updates=2,
    ),
    "tldr_stops": Shape(
        (200, 512), 53, stops=True, vocabulary=32000, hidden=256, batch=16, micro_batch=4, updates=2
    ),
    "no_stops": Shape((8, 64), 64, stops=False),
    "worst": Shape((64, 64), 64, stops=False, updates=4),  # no padding, so no waste
}


@dataclass(frozen=True)
class Wanted:
    """The marks of a shape beside TRL, and how often it is measured unless asked otherwise."""

    speed: float
    repeats: int
    memory: float | None = None


WANTED = {
    "stops": Wanted(speed=3.0, repeats=3, memory=0.35),
    "tldr": Wanted(speed=2.5, repeats=1),
    "worst": Wanted(speed=1.25, repeats=3),
}


def main() -> None:
    options = read_arguments()
    rows = []
    reached = []
    for name in list(SHAPES) if options.shape == ["all"] else options.shape:
        repeats = options.repeats
        if repeats is None:
            repeats = WANTED[name].repeats if name in WANTED else 1
        results = compare(SHAPES[name], options, repeats)
        rows.append(to_row(name, SHAPES[name].updates, results))
        print(rows[-1], file=sys.stderr)
        if name in WANTED and not options.peft and options.critic in (None, "model"):
            reached += to_marks(name, results)
    print(title(options), "", *header(), *rows, "", marks.HEAD, sep="\n")
    for mark in reached:
        marks.note(mark, options.marks)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--shape",
        nargs="+",
        choices=[*SHAPES, "all"],
        default=list(WANTED),
        metavar="SHAPE",
        help=f"{', '.join(SHAPES)}, or all",
    )
    parser.add_argument("--peft", action="store_true", help="LoRA of rank 8")
    parser.add_argument(
        "--critic", choices=("model", "adapter", "head"), help="ours; TRL's is always a model"
    )
    parser.add_argument("--repeats", type=int, help="the default depends on the shape")
    marks.add_option(parser)
    return parser.parse_args()


def compare(shape: Shape, options: argparse.Namespace, repeats: int) -> dict[str, list[Result]]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "models"
        write_apart(write_models, folder, models_of(shape))
        return run_both(training_of(shape, folder, options), repeats)


def models_of(shape: Shape) -> Models:
    return Models(
        vocabulary=shape.vocabulary,
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.hidden // 32,
        prompt_lengths=shape.prompts,
        # A batch more than is used: TRL steps after every micro-batch in the last batch of an
        # epoch.
        prompts=shape.batch * (shape.updates + 1),
        mean_response=shape.response // 4 if shape.stops else None,
    )


def training_of(shape: Shape, folder: Path, options: argparse.Namespace) -> Training:
    return Training(
        side="ours",
        models=str(folder),
        updates=shape.updates,
        batch=shape.batch,
        micro_batch=shape.micro_batch,
        response_length=shape.response,
        stops=shape.stops,
        lora_rank=8 if options.peft else None,
        critic=options.critic or ("adapter" if options.peft else "model"),
    )


def title(options: argparse.Namespace) -> str:
    policy = "LoRA of rank 8" if options.peft else "full fine-tuning"
    critic = options.critic or ("adapter" if options.peft else "model")
    return f"{policy}, our critic: {critic}, TRL's critic: model, medians"


def header() -> list[str]:
    columns = [
        "shape",
        "TRL s/update",
        "ours s/update",
        "speed",
        "each repeat",
        "TRL MB",
        "ours MB",
        "memory",
    ]
    columns += [phase.removeprefix("time/") for phase in PHASES]
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


@dataclass(frozen=True)
class Comparison:
    """The medians of both sides of a shape, and their ratios."""

    our_seconds: float  # per update
    trl_seconds: float
    our_bytes: float
    trl_bytes: float
    ratios: list[float]  # TRL's seconds by ours, of each repeat

    @property
    def speed(self) -> float:
        return median(self.ratios)

    @property
    def memory(self) -> float:
        return self.our_bytes / self.trl_bytes


def compare_medians(updates: int, results: dict[str, list[Result]]) -> Comparison:
    ours = [result.cpu_seconds / updates for result in results["ours"]]
    trl = [result.cpu_seconds / updates for result in results["trl"]]
    return Comparison(
        our_seconds=median(ours),
        trl_seconds=median(trl),
        our_bytes=median(result.peak_bytes for result in results["ours"]),
        trl_bytes=median(result.peak_bytes for result in results["trl"]),
        ratios=[theirs / own for own, theirs in zip(ours, trl, strict=True)],
    )


def to_row(name: str, updates: int, results: dict[str, list[Result]]) -> str:
    """One line of the table: the speed-up, the ratio of each repeat, the share of the memory."""
    sides = compare_medians(updates, results)
    cells = [name, f"{sides.trl_seconds:.2f}", f"{sides.our_seconds:.2f}", f"x{sides.speed:.2f}"]
    cells += [" ".join(f"{ratio:.2f}" for ratio in sides.ratios)]
    cells += [f"{sides.trl_bytes / 1e6:.0f}", f"{sides.our_bytes / 1e6:.0f}"]
    cells += [f"{sides.memory:.2f}", *shares(results["ours"])]
    return f"| {' | '.join(cells)} |"


def to_marks(name: str, results: dict[str, list[Result]]) -> list[marks.Mark]:
    """The marks of a shape, with what it reached."""
    wanted = WANTED[name]
    sides = compare_medians(SHAPES[name].updates, results)
    speed = marks.Mark(
        work=f"PPO, {name}: times as fast",
        measured=sides.speed,
        mark=wanted.speed,
        ours=f"{sides.our_seconds:.2f} s an update",
        beside=f"TRL {TRL}: {sides.trl_seconds:.2f} s",
    )
    if wanted.memory is None:
        return [speed]
    memory = marks.Mark(
        work=f"PPO, {name}: peak memory",
        measured=sides.memory,
        mark=wanted.memory,
        at_least=False,
        ours=f"{sides.our_bytes / 1e6:.0f} MB",
        beside=f"TRL {TRL}: {sides.trl_bytes / 1e6:.0f} MB",
    )
    return [speed, memory]


def shares(results: list[Result]) -> list[str]:
    """The parts of our updates that each phase takes, over all repeats."""
    phases = [sum(entry[phase] for result in results for entry in result.log) for phase in PHASES]
    return [f"{seconds / sum(phases):.0%}" for seconds in phases]


if __name__ == "__main__":
    main()
