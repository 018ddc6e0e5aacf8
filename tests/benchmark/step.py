"""What a step of the public command costs beside a plain TRL script, with nothing but the step.

Both sides train the same small model on the same rows in the same order, with the same arguments,
each in a process of its own. They take turns step by step, so that a machine that is slow for a
moment is slow for both. A figure is the CPU time from the begin of a step to the begin of the next,
with its logs, its callbacks and its rows. Logs come every tenth step, as by default, so that ten
steps are measured as one, and a figure is the median of these tens. Losses are equal to the bit, or
the script ends.

run: python tests/benchmark/step.py                          five minutes on one core
     python tests/benchmark/step.py --only sft --repeats 5

Left out on purpose: rows of unlike lengths, of which a batch has padding (``data.py``); what a step
does, in counts (``step_counts.py``); and GRPO with the runner's own sampler (``sampler_speed.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import marks
from card_sides import Side, our_side, plain_side, stop, write_model
from transformers import TrainerCallback

LOGGING_STEPS = 10  # TRL's own default
WARM_TENS = 2  # that no figure counts
MARK = 1.02
HEAD = "| | CPU ms, ours | plain script | times | steps |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Kind:
    """A training whose steps are measured."""

    row: dict[str, int]  # the letters of each column, of one token each
    steps: int  # by default
    words: dict[str, object]  # of our command
    layers: int = 2


KINDS = {
    "sft": Kind(
        {"prompt": 24, "completion": 8}, 420, {"trainer.args.per_device_train_batch_size": 8}
    ),
    "dpo": Kind(
        {"prompt": 24, "chosen": 8, "rejected": 8},
        220,
        {
            "trainer.args.per_device_train_batch_size": 4,
            "trainer.args.precompute_ref_log_probs": "false",
        },
    ),
    "grpo": Kind(
        {"prompt": 24},
        120,
        {
            "trainer.sampler": "transformers",
            "trainer.args.max_completion_length": 8,
            "trainer.args.per_device_train_batch_size": 8,
            "reward": "distinct_characters",
        },
    ),
}
SMALL = {
    "model_type": "llama",
    "vocab_size": 640,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}


class Meter(TrainerCallback):
    """The CPU seconds of each step and the logged losses; with a ``baton`` in turns."""

    def __init__(self, result: str, baton: int | None = None, first: bool = True):
        self.result = Path(result)
        self.baton = None if baton is None else socket.socket(fileno=baton)
        self.is_waiting = not first and baton is not None
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.started: float | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.started is not None:
            self.seconds.append(time.process_time() - self.started)
        if self.baton is not None:
            with contextlib.suppress(ConnectionError):  # the other side has ended
                if self.started is not None:
                    self.baton.sendall(b".")
                    self.is_waiting = True
                if self.is_waiting:
                    self.baton.recv(1)
        self.started = time.process_time()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.baton is not None:
            self.baton.close()
        self.result.write_text(json.dumps({"seconds": self.seconds, "losses": self.losses}))


@dataclass
class Cost:
    """CPU milliseconds of a step, of both sides in turns, over several trainings."""

    ours: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # of each training

    def add(self, ours: Sequence[float], plain: Sequence[float]) -> None:
        """Add the steps of one training."""
        our_tens = tens_of(ours)
        plain_tens = tens_of(plain)
        self.ours += our_tens
        self.plain += plain_tens
        ratios = [mine / theirs for mine, theirs in zip(our_tens, plain_tens, strict=True)]
        self.ratios.append(median(ratios))


def tens_of(seconds: Sequence[float]) -> list[float]:
    """The milliseconds of a step, as means from a log to the next."""
    tens = []
    first = WARM_TENS * LOGGING_STEPS
    for start in range(first, len(seconds) - LOGGING_STEPS + 1, LOGGING_STEPS):
        tens.append(1000 * sum(seconds[start : start + LOGGING_STEPS]) / LOGGING_STEPS)
    return tens


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--repeats", type=int, default=3, help="trainings of each kind")
    parser.add_argument("--steps", type=int, help="of a training")
    parser.add_argument("--words", nargs="*", default=[], help="further words of our command")
    marks.add_option(parser)
    options = parser.parse_args(words)
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HOME": f"{name}/hf"}
        os.environ.update(variables)
        noted = []
        for kind in options.only:
            noted.append(measure(scratch, kind, options))
    print(f"\n{marks.HEAD}")
    for mark in noted:
        marks.note(mark, options.marks)


def measure(scratch: Path, name: str, options: argparse.Namespace) -> marks.Mark:
    """Print the line of one kind, and return its mark."""
    kind = KINDS[name]
    steps = options.steps or kind.steps
    folder = scratch / name
    folder.mkdir()
    write_model(folder / "model", {**SMALL, "num_hidden_layers": kind.layers})
    write_rows(folder / "rows.jsonl", kind, steps)
    cost = Cost()
    for repeat in range(options.repeats):
        words = words_of(name, folder, steps, repeat)
        words |= dict(word.split("=", 1) for word in options.words)
        ours, plain = take_turns(words, words, folder / str(repeat))
        if ours["losses"] != plain["losses"] or not ours["losses"]:
            raise SystemExit(f"{name}: the losses differ:\n{ours['losses']}\n{plain['losses']}")
        cost.add(ours["seconds"], plain["seconds"])
        print(name, [f"{ratio:.3f}" for ratio in cost.ratios], file=sys.stderr)
    ours_ms = median(cost.ours)
    plain_ms = median(cost.plain)
    times = median(cost.ratios)
    measured = len(cost.ours) * LOGGING_STEPS
    print(f"| {name} | {ours_ms:.2f} | {plain_ms:.2f} | {times:.3f} | {measured} |", flush=True)
    return marks.Mark(
        work=f"a step of {name}",
        measured=times,
        mark=MARK,
        at_least=False,
        ours=f"{ours_ms:.2f} ms",
        beside=f"a plain script {plain_ms:.2f} ms",
    )


def write_rows(path: Path, kind: Kind, steps: int) -> None:
    """Write rows of equal length, as many as the steps read."""
    draw = random.Random(0)
    batch = kind.words["trainer.args.per_device_train_batch_size"]
    lines = []
    for _ in range(steps * int(str(batch))):
        row = {}
        for column, letters in kind.row.items():
            row[column] = "".join(draw.choices("0123456789", k=letters))
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))


def words_of(name: str, folder: Path, steps: int, seed: int) -> dict[str, object]:
    """The words of our command by their keys."""
    return {
        "trainer": name,
        "model": "tiny",
        "model.path": folder / "model",
        "dataset": "local",
        "dataset.path": folder / "rows.jsonl",
        "dataset.split": "{train: train, eval: null}",
        "dataset.shuffle": "false",  # both sides see the rows in one order
        "metric": "none",
        "seed": seed,
        "output_root": folder / "made",
        "trainer.skip_padding": "false",  # the completions of a step may be of unlike lengths
        "trainer.args.max_steps": steps,
        "trainer.args.save_strategy": "no",
        **KINDS[name].words,
    }


def take_turns(
    our_words: dict[str, object], plain_words: dict[str, object], scratch: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the meters of both sides have seen of one training."""
    scratch.mkdir()
    ends = socket.socketpair()
    sides: list[Side] = [
        our_side(our_words, scratch / "ours.json", "step.Meter", ends[0]),
        plain_side(plain_words, scratch / "plain.json", callback="step.Meter", baton=ends[1]),
    ]
    for side, end in zip(sides, ends, strict=True):
        side.start([end])
    for end in ends:
        end.close()  # only the sides hold them now, so that the end of one shows on the other
    results = []
    for side in sides:
        result = side.wait()
        if result is None:
            for started in sides:
                stop(started)
            raise SystemExit(1)
        results.append(result)
    return results[0], results[1]


if __name__ == "__main__":
    main(sys.argv[1:])
