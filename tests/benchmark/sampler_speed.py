"""CPU seconds and peak memory of whole runs of GRPO and RLOO: ours, with transformers, plain TRL.

Each side loads the same model (GPT-NeoX, random seeded weights, which stops at random) and the same
prompts, takes the same number of steps with the same arguments, saves the model, and has one
thread. The first two are the public command with ``trainer.sampler=``, the third a script with
TRL's trainer and nothing else. Beside the sampler, ours leaves out the padding of a batch. Seconds
are CPU seconds of the whole process, imports and all, so a busy machine disturbs them little.
``start`` is a run of one short step, so that the columns ``a step`` are what a longer run pays.

run: python tests/benchmark/sampler_speed.py
     python tests/benchmark/sampler_speed.py --shape short --size tiny --repeats 3
     python tests/benchmark/sampler_speed.py --turns

Prints one markdown table of medians: seconds of the run, seconds of a step, and memory, each also
as a share of plain TRL's. With ``--turns`` plain TRL takes every second step with our sampler, in
one process: for a machine so busy that runs one after the other say little. That table has the
seconds of a step, those of sampling, and the milliseconds that the hook adds to the sampler.

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
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from marks import Mark, add_option, note
from ppo_sides import ROOT, Models, write_apart, write_models

if TYPE_CHECKING:
    from transformers import Trainer

SIDES = ("runner", "transformers", "plain")
TRAINERS = ("grpo", "rloo")


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
    parser.add_argument("--trainer", nargs="+", choices=TRAINERS, default=TRAINERS[:1])
    parser.add_argument(
        "--side", nargs="+", choices=SIDES, default=SIDES, help="plain is one of them"
    )
    add_option(parser)
    parser.add_argument("--turns", action="store_true", help="step by step, in one process")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns:
        print(
            "| model | shape | s a step, TRL | ours | speed | sampling, TRL | ours | speed | hook |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for size in options.size:
            for name in options.shape:
                print(take_turns(size, name, SHAPES[name]), flush=True)
        return
    if options.plain:
        train_plainly(json.loads(options.plain))
        return
    cells = ["trainer", "model", "shape", "side", "s", "of TRL", "s a step", "of TRL", "MB"]
    print(f"| {' | '.join([*cells, 'of TRL'])} |\n|{'---|' * 10}", flush=True)
    for trainer in options.trainer:
        for size in options.size:
            for name in options.shape:
                compare(trainer, size, name, options)


def compare(trainer: str, size: str, name: str, options: argparse.Namespace) -> None:
    """Print the lines of the table for one shape, and its mark."""
    costs: dict[str, list[Cost]] = {side: [] for side in options.side}
    starts: dict[str, list[Cost]] = {side: [] for side in options.side}
    shape = SHAPES[name]
    steps = shape.steps[size]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        write_rows(place, size, shape)
        for repeat in range(options.repeats):
            for side in options.side:
                costs[side].append(run(trainer, side, place, shape, steps, repeat))
                # The same start with next to no step.
                short = replace(shape, response=1, rows=shape.generations)
                starts[side].append(run(trainer, side, place, short, 1, 1000 + repeat))
    plain = figures(costs["plain"], starts["plain"], steps)
    for side in options.side:
        cells = [trainer, size, name, side]
        for value, of_plain in zip(figures(costs[side], starts[side], steps), plain, strict=True):
            cells += [f"{value:.4g}", f"{value / of_plain:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    _, seconds, _ = figures(costs["runner"], starts["runner"], steps)
    mark = Mark(
        f"{trainer.upper()}, a step of {size}, {name}, beside TRL through transformers",
        plain[1] / seconds,
        1.5,
        ours=f"{seconds:.2f} s",
        beside=f"{plain[1]:.2f} s",
    )
    note(mark, options.marks)


def write_rows(place: Path, size: str, shape: Shape) -> None:
    """Write the model, and the rows with its prompts."""
    write_apart(write_models, place / "models", models_of(size, shape))
    prompts = json.loads((place / "models" / "prompts.json").read_text())
    texts = [" ".join(f"t{word}" for word in prompt) for prompt in prompts]
    rows = "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    (place / "rows.jsonl").write_text(rows)


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


def fields_of(shape: Shape, steps: int) -> dict[str, Any]:
    """The arguments of all sides."""
    return {
        "max_steps": steps,
        "per_device_train_batch_size": shape.rows,
        "num_generations": shape.generations,
        "max_completion_length": shape.response,
        "learning_rate": 1e-6,
        "logging_steps": 1,
        "save_strategy": "no",
        "gradient_checkpointing": False,
    }


def run(trainer: str, side: str, place: Path, shape: Shape, steps: int, seed: int) -> Cost:
    """The cost of one training on a side."""
    fields = fields_of(shape, steps)
    if side == "plain":
        task = {"place": str(place), "fields": fields, "seed": seed, "trainer": trainer}
        command = [sys.executable, __file__, "--plain", json.dumps(task)]
    else:
        words = [f"trainer.args.{field}={value}" for field, value in fields.items()]
        words += [
            f"trainer.sampler={side}",
            f"seed={seed}",
            f"output_root={place}/outputs/{trainer}",
        ]
        words += [
            f"trainer={trainer}",
            "model=hub",
            f"model.path={place}/models/policy",
            "metric=none",
        ]
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


def train_plainly(task: dict[str, Any]) -> None:
    """Train by TRL's trainer alone."""
    import trl

    trainer = build_plainly(getattr(trl, f"{task['trainer'].upper()}Trainer"), task)
    trainer.train()
    trainer.save_model()


def take_turns(size: str, name: str, shape: Shape) -> str:
    """The line of one shape, of whose steps every second one is sampled by the runner."""
    import torch
    from transformers import PrinterCallback
    from trl import GRPOTrainer

    from runner.generate import generate_call
    from runner.io.temporary import temporarily
    from runner.training.trainer_sampler import TrainerSampler

    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"step 0": [], "step 1": [], "call 0": [], "call 1": []}
    seconds["sampler"] = []
    sampler = TrainerSampler(seed=0)

    def timed(key: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            result = function(*args, **kwargs)
            seconds[key].append(time.process_time() - start)
            return result

        return call

    class Turns(GRPOTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            turn = self.state.global_step % 2
            context = sampler.sampling(self, False) if turn else nullcontext()
            with context:
                generate = vars(self.model).get("generate")
                self.model.generate = timed(f"call {turn}", self.model.generate)
                try:
                    return timed(f"step {turn}", super().training_step)(*args, **kwargs)
                finally:
                    del self.model.generate
                    if generate is not None:
                        self.model.generate = generate

    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        write_rows(place, size, shape)
        fields = fields_of(shape, 2 * max(2, shape.steps[size] // 2))
        trainer = build_plainly(
            Turns, {"place": str(place), "fields": fields, "seed": 0, "trainer": "grpo"}
        )
        trainer.remove_callback(PrinterCallback)
        with temporarily(generate_call, sample=timed("sampler", generate_call.sample)):
            trainer.train()
    first = {key: mean(values[1:]) for key, values in seconds.items()}  # the first is slower
    hook = 1000 * (first["call 1"] - first["sampler"])
    cells = [size, name]
    for part in ("step", "call"):
        library, ours = first[f"{part} 0"], first[f"{part} 1"]
        cells += [f"{library:.3g}", f"{ours:.3g}", f"x{library / ours:.2f}"]
    return f"| {' | '.join(cells)} | {hook:.1f} ms |"


def build_plainly(kind: type[Trainer], task: dict[str, Any]) -> Trainer:
    """TRL's trainer of a task."""
    import trl
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    place = Path(task["place"])
    set_seed(task["seed"])
    policy = place / "models" / "policy"
    config = getattr(trl, f"{task['trainer'].upper()}Config")
    args = config(
        output_dir=str(place / "plain"),
        seed=task["seed"],
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        **task["fields"],
    )
    return kind(
        model=AutoModelForCausalLM.from_pretrained(policy),
        processing_class=AutoTokenizer.from_pretrained(policy),
        args=args,
        train_dataset=load_dataset("json", data_files=str(place / "rows.jsonl"), split="train"),
        reward_funcs=count_characters,
    )


if __name__ == "__main__":
    main()
