"""Rows of unlike lengths, and the pass of the reference, beside a plain script with TRL's trainers.

    unlike      SFT, DPO, KTO and a reward model on rows of 20 to 1,000 tokens, lognormal as those
                of conversations: CPU seconds for a token that is learnt from, beside TRL at its
                default and with its packing or its padding-free batches; and how far the losses
                of the same updates are apart
    reference   three epochs of DPO and KTO with LoRA on rows of 64 tokens and answers of about
                64: the whole command beside the whole script, and the peak of memory

run: python tests/benchmark/unlike.py
     python tests/benchmark/unlike.py --only unlike --kinds SFT DPO --repeats 3

Each side is a process of its own with one thread; the sides take turns. Both load the same model
(Llama, random weights, 7 M or 2 M), read the same rows in the same order, log each step, and save
no checkpoint. Seconds of a step are those of the process; its first step is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from data import TINY, Bench, Spent, words_of
from marks import HEAD, Mark, add_option, note

PARTS = ("unlike", "reference")
KINDS = ("SFT", "DPO", "KTO", "Reward")
# The settings of TRL by which no padding is computed, where it has any.
WITHOUT_PADDING: dict[str, dict[str, dict[str, object]]] = {
    "SFT": {
        "packing": {"packing": True, "max_length": 1024},
        "padding-free": {"padding_free": True, "max_length": None},
    },
    "DPO": {"padding-free": {"padding_free": True}},
}
REFERENCED = ("DPO", "KTO")
BATCH = 8
STEPS = 4
SHORTEST, LONGEST = 20, 1_000
EPOCHS = 3
WIDTH = {"unlike": 384, "reference": 256}


@dataclass(frozen=True)
class Lengths:
    """Tokens of the prompts, and of the answers, which are lognormal between two bounds."""

    prompt: int
    median: int
    spread: float  # of their logarithms

    def drawn(self, draw: random.Random) -> int:
        length = draw.lognormvariate(0, self.spread) * self.median
        return int(min(LONGEST, max(SHORTEST, length)))


@dataclass(frozen=True)
class Measured:
    """One training of one side."""

    spent: Spent
    steps: list[float]  # CPU seconds of each step but the first
    losses: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--repeats", type=int, default=3)
    add_option(parser)
    chosen = parser.parse_args()
    print(HEAD, flush=True)
    for part in chosen.only:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder))
            for kind in chosen.kinds:
                if part == "unlike":
                    compare_lengths(bench, kind, chosen)
                elif kind in REFERENCED:
                    compare_reference(bench, kind, chosen)


# --- The parts ------------------------------------------------------------------------------------


def compare_lengths(bench: Bench, kind: str, chosen: argparse.Namespace) -> None:
    """The marks of one trainer on rows of unlike lengths."""
    model = write_model(bench.folder, kind, WIDTH["unlike"])
    rows, tokens = write_rows(bench.folder, kind, STEPS * BATCH, Lengths(8, 140, 1.0))
    args: dict[str, object] = {
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "logging_steps": 1,
        "learning_rate": 1e-4,
        "max_length": 1024,
    }
    # Both sides have the reference's pass in each step.
    words = ["trainer.args.precompute_ref_log_probs=false"] if kind in REFERENCED else []
    ways = {"at its default": {}} | WITHOUT_PADDING.get(kind, {})
    ours: list[Measured] = []
    theirs: dict[str, list[Measured]] = {way: [] for way in ways}
    for number in range(chosen.repeats):
        ours.append(train_ours(bench, kind, rows, f"ours{number}", model, args, *words))
        for way, settings in ways.items():
            theirs[way].append(
                train_theirs(bench, kind, rows, f"theirs{number}", model, args | settings)
            )
    seconds = seconds_of_step(ours)
    for way, runs in theirs.items():
        other = seconds_of_step(runs)
        if way == "packing":  # its steps have more tokens: as many as fill a batch
            packed = BATCH * 1024
            other *= tokens / STEPS / packed
        measured = Mark(
            f"{kind} on unlike lengths, beside TRL {way}",
            other / seconds,
            3.0 if way == "at its default" else 1.0,
            ours=f"{seconds:.2f} s a step",
            beside=f"{other:.2f} s for its tokens",
        )
        note(measured, chosen.marks)
    padded = theirs["at its default"][0]
    if kind == "KTO":  # whose rows TRL has in another order
        words.append("trainer.skip_padding=false")
        padded = train_ours(bench, kind, rows, "padded", model, args, *words)
    pairs = zip(ours[0].losses, padded.losses, strict=True)
    apart = max(abs(one - other) / abs(other) for one, other in pairs)
    mark = Mark(f"{kind}, losses of the same updates apart", apart, 1e-4, at_least=False)
    note(mark, chosen.marks)


def compare_reference(bench: Bench, kind: str, chosen: argparse.Namespace) -> None:
    """The marks of one trainer with LoRA, whose reference is the base of the adapter."""
    model = write_model(bench.folder, kind, WIDTH["reference"])
    rows, _ = write_rows(bench.folder, kind, 64, Lengths(64, 64, 0.5))
    args: dict[str, object] = {
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": EPOCHS,
        "logging_steps": 1,
        "learning_rate": 1e-4,
    }
    sides: dict[str, list[Measured]] = {"ours": [], "TRL": []}
    for number in range(chosen.repeats):
        ours = train_ours(bench, kind, rows, f"ours{number}", model, args, "peft=lora")
        theirs = train_theirs(bench, kind, rows, f"theirs{number}", model, args, adapter=True)
        sides["ours"].append(ours)
        sides["TRL"].append(theirs)
    seconds = {}
    memory = {}
    for side, runs in sides.items():
        seconds[side] = statistics.median(run.spent.cpu for run in runs)
        memory[side] = statistics.median(run.spent.own for run in runs)
    work = f"{kind} with LoRA, {EPOCHS} epochs, beside TRL"
    ratio = seconds["TRL"] / seconds["ours"]
    note(
        Mark(
            f"{work}: the whole command",
            ratio,
            1.3,
            ours=f"{seconds['ours']:.1f} s",
            beside=f"{seconds['TRL']:.1f} s",
        ),
        chosen.marks,
    )
    note(
        Mark(
            f"{work}: peak memory",
            memory["ours"] / memory["TRL"],
            1.0,
            at_least=False,
            ours=f"{memory['ours']:.0f} MB",
            beside=f"{memory['TRL']:.0f} MB",
        ),
        chosen.marks,
    )


# --- One training ---------------------------------------------------------------------------------


def train_ours(
    bench: Bench,
    kind: str,
    rows: Path,
    cache: str,
    model: Path,
    args: dict[str, object],
    *words: str,
) -> Measured:
    """One command of ours, with an empty cache."""
    arguments = words_of(**args)
    if "max_steps" not in args:
        arguments.append("trainer.args.max_steps=-1")
    spent, meter = bench.ours(kind, rows, cache, *arguments, *words, model=model)
    return Measured(spent, meter["steps"], meter["losses"])


def train_theirs(
    bench: Bench,
    kind: str,
    rows: Path,
    cache: str,
    model: Path,
    args: dict[str, object],
    *,
    adapter: bool = False,
) -> Measured:
    """One script with TRL's trainer, with an empty cache."""
    spent, meter = bench.theirs(kind, rows, cache, model=model, adapter=adapter, **args)
    return Measured(spent, meter["steps"], meter["losses"])


def seconds_of_step(runs: list[Measured]) -> float:
    """The mean of a step's seconds, as its batches are unlike; the median of the trainings."""
    return statistics.median(statistics.fmean(run.steps) for run in runs)


# --- Models and rows ------------------------------------------------------------------------------


def write_model(folder: Path, kind: str, width: int) -> Path:
    """A Llama with random weights and the words of the tiny model."""
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        set_seed,
    )

    place = folder / f"model-{kind}-{width}"
    if place.exists():
        return place
    set_seed(0)
    config = AutoConfig.from_pretrained(TINY)
    heads = width // 64
    config.update(
        {
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_hidden_layers": 4,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": 64,
            "vocab_size": 4_096,
            "max_position_embeddings": 2_048,
        }
    )
    if kind == "Reward":
        config.num_labels = 1
        model = AutoModelForSequenceClassification.from_config(config)
    else:
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(place)
    return place


def write_rows(folder: Path, kind: str, count: int, lengths: Lengths) -> tuple[Path, int]:
    """Rows with answers of unlike lengths, and the tokens of all answers."""
    draw = random.Random(0)
    lines = []
    tokens = 0

    def answer() -> str:
        nonlocal tokens
        length = lengths.drawn(draw)
        tokens += length
        return digits(draw, length)

    for _ in range(count):
        lines.append(row_of(kind, digits(draw, lengths.prompt), answer, draw))
    path = folder / f"{kind}-{lengths.median}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    return path, tokens


def row_of(kind: str, prompt: str, answer, draw: random.Random) -> dict[str, object]:
    """A row in the form of a trainer."""
    if kind == "SFT":
        return {"prompt": prompt, "completion": answer()}
    if kind == "KTO":
        return {"prompt": prompt, "completion": answer(), "label": draw.random() < 0.5}
    return {"prompt": prompt, "chosen": answer(), "rejected": answer()}


def digits(draw: random.Random, count: int) -> str:
    """A text of so many tokens of the tiny model: a digit with the blank before it is one."""
    return "".join(f" {draw.randrange(10)}" for _ in range(count))


if __name__ == "__main__":
    main()
