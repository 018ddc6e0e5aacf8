"""CPU seconds and peak memory of whole runs of GRPO: our sampler, that of transformers, plain TRL.

Each side loads the same model (GPT-NeoX, random seeded weights, which stops at random) and the same
prompts, takes the same number of steps with the same arguments, saves the model, and has one
thread. The first two are the public command with ``trainer.sampler=``, the third a script with
TRL's trainer and nothing else. Seconds are CPU seconds of the whole process, imports and all, so a
busy machine disturbs them little. ``start`` is a run of one short step, so that the columns
``a step`` are what a longer run pays.

run: python tests/benchmark/sampler_speed.py
     python tests/benchmark/sampler_speed.py --shape short --size tiny --repeats 3

Prints one markdown table of medians: seconds of the run, seconds of a step, and memory, each also
as a share of plain TRL's. The sides take turns.

Left out on purpose: cards, several processes, and what is learnt: lengths are drawn, so the steps
of two samplers are alike on average only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from ppo_sides import ROOT, Models, write_apart, write_models

SIDES = ("runner", "transformers", "plain")


@dataclass(frozen=True)
class Shape:
    """The rows of a step: prompts, completions of each, tokens, and when these stop on average."""

    prompt: tuple[int, int]
    rows: int
    generations: int
    response: int
    mean: int
    steps: dict[str, int]  # by the size of the model


SHAPES = {
    "short": Shape((8, 32), 32, 8, 64, 12, {"tiny": 40, "30M": 6}),
    "long": Shape((16, 64), 16, 8, 256, 128, {"tiny": 12, "30M": 2}),
    "groups": Shape((64, 192), 64, 16, 48, 12, {"tiny": 12, "30M": 2}),
}
SIZES = {  # vocabulary, hidden, layers, heads
    "tiny": (512, 128, 4, 4),
    "30M": (8192, 512, 7, 8),
}


@dataclass(frozen=True)
class Cost:
    """The cost of one process."""

    seconds: float
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        train_plainly(json.loads(options.plain))
        return
    print("| model | shape | side | s | of TRL | s a step | of TRL | MB | of TRL |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|")
    for size in options.size:
        for name in options.shape:
            for line in compare(size, name, SHAPES[name], options.repeats):
                print(line, flush=True)


def compare(size: str, name: str, shape: Shape, repeats: int) -> list[str]:
    """The lines of the table for one shape."""
    costs: dict[str, list[Cost]] = {side: [] for side in SIDES}
    starts: dict[str, list[Cost]] = {side: [] for side in SIDES}
    steps = shape.steps[size]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        write_apart(write_models, place / "models", models_of(size, shape))
        prompts = json.loads((place / "models" / "prompts.json").read_text())
        texts = [" ".join(f"t{word}" for word in prompt) for prompt in prompts]
        rows = "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
        (place / "rows.jsonl").write_text(rows)
        for repeat in range(repeats):
            for side in SIDES:
                costs[side].append(run(side, place, shape, steps, repeat))
                # The same start with next to no step.
                short = replace(shape, response=1, rows=shape.generations)
                starts[side].append(run(side, place, short, 1, 1000 + repeat))
    lines = []
    plain = figures(costs["plain"], starts["plain"], steps)
    for side in SIDES:
        cells = []
        for value, of_plain in zip(figures(costs[side], starts[side], steps), plain, strict=True):
            cells += [f"{value:.4g}", f"{value / of_plain:.2f}"]
        lines.append(f"| {' | '.join([size, name, side, *cells])} |")
    return lines


def figures(costs: list[Cost], starts: list[Cost], steps: int) -> tuple[float, float, float]:
    """Seconds of a run, seconds of a step, and megabytes."""
    seconds = median(cost.seconds for cost in costs)
    start = median(cost.seconds for cost in starts)
    megabytes = median(cost.megabytes for cost in costs)
    return seconds, (seconds - start) / steps, megabytes


def models_of(size: str, shape: Shape) -> Models:
    vocabulary, hidden, layers, heads = SIZES[size]
    return Models(
        vocabulary=vocabulary,
        hidden=hidden,
        layers=layers,
        heads=heads,
        prompt_lengths=shape.prompt,
        prompts=256,
        mean_response=shape.mean,
        scored=False,
    )


def run(side: str, place: Path, shape: Shape, steps: int, seed: int) -> Cost:
    """The cost of one training on a side."""
    fields = {
        "max_steps": steps,
        "per_device_train_batch_size": shape.rows,
        "num_generations": shape.generations,
        "max_completion_length": shape.response,
        "learning_rate": 1e-6,
        "logging_steps": 1,
        "save_strategy": "no",
        "gradient_checkpointing": False,
    }
    if side == "plain":
        task = {"place": str(place), "fields": fields, "seed": seed}
        command = [sys.executable, __file__, "--plain", json.dumps(task)]
    else:
        words = [f"trainer.args.{field}={value}" for field, value in fields.items()]
        words += [f"trainer.sampler={side}", f"seed={seed}", f"output_root={place}/outputs"]
        words += ["trainer=grpo", "model=hub", f"model.path={place}/models/policy", "metric=none"]
        words += ["dataset=local", f"dataset.path={place}/rows.jsonl", "dataset.form=prompt"]
        words += ["dataset.split.eval=null", "reward=distinct_characters", "tolerate.loss=false"]
        command = [sys.executable, "-m", "runner", *words]
    settings = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HOME": str(place / "hf"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "PYTHONWARNINGS": "ignore",
    }
    log = place / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=place, env=settings, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(
            f"{' '.join(command)}\nended with {process.returncode}:\n{log.read_text()[-3000:]}"
        )
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def count_characters(completions: list[str], **_: object) -> list[float]:
    """The reward of both sides: the number of different characters."""
    return [float(len(set(completion))) for completion in completions]


def train_plainly(task: dict) -> None:
    """Train by TRL's trainer alone."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
    from trl import GRPOConfig, GRPOTrainer

    place = Path(task["place"])
    set_seed(task["seed"])
    policy = place / "models" / "policy"
    args = GRPOConfig(
        output_dir=str(place / "plain"),
        seed=task["seed"],
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        **task["fields"],
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy),
        processing_class=AutoTokenizer.from_pretrained(policy),
        args=args,
        train_dataset=load_dataset("json", data_files=str(place / "rows.jsonl"), split="train"),
        reward_funcs=count_characters,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
