"""What it would bring PPO to sample the completions of an update while it computes the one before.

The runner does not do so. This script says why: it trains in four ways, (a) as the runner does, on
one thread; (b) the same on two; (c) with completions that are sampled one update ahead, in a forked
process, and losses weighted by the ratio of the policy's probabilities to those of sampling; (d)
the same without weights, where the probabilities of sampling are the old ones of PPO's own ratio,
which spares a pass over the completions. Each training is a process of its own, and they take
turns, update by update. The trainers of (c) and (d) are in ``ppo_ahead_trainer.py``.

run: python tests/benchmark/ppo_ahead.py                                   every shape
     python tests/benchmark/ppo_ahead.py --shape stops --epochs 1
     python tests/benchmark/ppo_ahead.py --learn 3                         the scores of three seeds

Prints one markdown table of medians per update: the seconds that passed; the CPU seconds of the
main thread, which are those that would pass on two cores without other work, since the sampling
process has always ended before the update; CPU seconds of the training and of the sampling process;
and the seconds that were waited for the latter. With ``--learn`` it is the toy of
``ppo_parity.py``, and the table shows the mean score of the last 5 updates and of all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import ppo_parity
import ppo_speed
from ppo_sides import ROOT, Training, prepare_ours, write_apart, write_models
from ppo_speed import Shape

SHAPES = {
    "stops": ppo_speed.SHAPES["stops"],
    "long": Shape((8, 32), 256, stops=True, vocabulary=8192),
    "wide": Shape((16, 48), 64, stops=True, vocabulary=16000, hidden=384, layers=6, batch=16),
}
COSTS = ("wall", "main_thread_cpu", "trainer_cpu", "sampler_cpu", "waited")


@dataclass(frozen=True)
class Way:
    """How completions are sampled."""

    trainer: str  # a class of ppo_ahead_trainer
    threads: int = 1


WAYS = {
    "in step": Way("MeasuredTrainer"),
    "in step, two threads": Way("MeasuredTrainer", threads=2),
    "ahead, weighted": Way("WeightedAhead"),
    "ahead, not weighted": Way("UnweightedAhead"),
}


@dataclass(frozen=True)
class Task:
    """What the process of one training needs to know."""

    training: Training
    way: str
    result: str
    before: int  # the pipe by which this training gets its turn
    behind: int  # the one by which it hands it on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--epochs", nargs="+", type=int, default=[4, 1], help="num_ppo_epochs")
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--learn", type=int, metavar="SEEDS", help="the scores of so many seeds")
    options = parser.parse_args()
    if options.learn:
        learn(options.learn)
    else:
        measure(options.shape, options.epochs, options.updates)


def measure(shapes: list[str], epochs: list[int], updates: int) -> None:
    columns = ["shape", "epochs", "way", "wall", "main thread", "training", "sampling", "waited"]
    print(f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), sep="\n")
    for name in shapes:
        shape = replace(SHAPES[name], updates=updates)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "models"
            write_apart(write_models, folder, ppo_speed.models_of(shape))
            alone = argparse.Namespace(peft=False, critic=None)
            training = ppo_speed.training_of(shape, folder, alone)
            for count in epochs:
                results = take_turns(replace(training, epochs=count), list(WAYS))
                for way, result in results.items():
                    # The first update warms up, and samples in step; beside the last one nothing
                    # is sampled.
                    costs = result["costs"][1:-1]
                    medians = [median(cost[key] for cost in costs) for key in COSTS]
                    cells = [name, str(count), way, *(f"{value:.2f}" for value in medians)]
                    print(f"| {' | '.join(cells)} |", flush=True)


def learn(seeds: int) -> None:
    columns = ["way", "last scores of each seed", "mean", "whole run"]
    print(f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), sep="\n")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "models"
        write_apart(ppo_parity.write_toy, folder)
        setup = ppo_parity.SETUPS[0]
        training = ppo_parity.training_of(setup, folder, updates=40)
        ways = [way for way in WAYS if WAYS[way].threads == 1]
        curves: dict[str, list[list[float]]] = {way: [] for way in ways}
        for seed in range(seeds):
            results = take_turns(replace(training, seed=seed), ways)
            for way, result in results.items():
                curves[way].append(result["scores"])
    for way, scores in curves.items():
        ends = [mean(curve[-ppo_parity.LAST :]) for curve in scores]
        whole = mean(mean(curve) for curve in scores)
        cells = [way, " ".join(f"{end:.3f}" for end in ends), f"{mean(ends):.3f}", f"{whole:.3f}"]
        print(f"| {' | '.join(cells)} |")


def take_turns(training: Training, ways: list[str]) -> dict[str, dict[str, Any]]:
    """The costs and scores of each way, whose processes take turns, update by update."""
    pipes = [os.pipe() for _ in ways]
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        processes = []
        for number, way in enumerate(ways):
            behind = pipes[(number + 1) % len(ways)][1]
            result = folder / f"{number}.json"
            task = Task(training, way, str(result), pipes[number][0], behind)
            command = [sys.executable, __file__, json.dumps(asdict(task))]
            threads = {"OMP_NUM_THREADS": str(WAYS[way].threads), "GOMP_SPINCOUNT": "1000"}
            quiet = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT)}
            with (folder / f"{number}.txt").open("w") as log:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=os.environ | threads | quiet,
                    stdout=log,
                    stderr=log,
                    pass_fds=[task.before, task.behind],
                )
            processes.append(process)
        os.write(pipes[0][1], b".")
        # From here on the processes alone hold the pipes, so that one that ends holds up no other.
        for ends in pipes:
            os.close(ends[0])
            os.close(ends[1])
        for number, way in enumerate(ways):
            if code := processes[number].wait():
                log_text = (folder / f"{number}.txt").read_text()
                sys.exit(f"{way} ended with {code}:\n{log_text[-4000:]}")
            results[way] = json.loads((folder / f"{number}.json").read_text())
    return results


# ---- one training, seen from its process -------------------------------------------------------


def train(task: Task) -> None:
    """Train, and write costs and scores."""
    import ppo_ahead_trainer
    import torch
    from transformers import TrainerCallback, set_seed

    class Turns(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            os.read(task.before, 1)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            with contextlib.suppress(BrokenPipeError):  # that one has ended
                os.write(task.behind, b".")
            os.read(task.before, 1)

    way = WAYS[task.way]
    torch.set_num_threads(way.threads)
    set_seed(task.training.seed)
    trainer_class = getattr(ppo_ahead_trainer, way.trainer)
    trainer = prepare_ours(task.training, trainer_class)(callbacks=[Turns()])
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "objective/scores" in entry]
    result = {
        "costs": [asdict(cost) for cost in trainer.costs],
        "scores": [entry["objective/scores"] for entry in log],
    }
    Path(task.result).write_text(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        asked = json.loads(sys.argv[1])
        train(Task(**asked | {"training": Training(**asked["training"])}))
    else:
        main()
