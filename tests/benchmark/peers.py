"""CPU seconds of ours beside a plain TRL script, TRL's command, LLaMA-Factory and ms-swift.

Each is called by its public command: ours once with all that it does by default beside the steps
(held-out scores of 100 rows before and after, curves, a manifest with the hashes of what it wrote),
and once without any score; the others evaluate nothing. All of them tokenise the same rows in the
same words, train all weights of the tiny model in float32 with the same batch, steps, rate and
schedule, log each tenth step, and save the model; all but the script a checkpoint too. The mean
loss says that it is the same work: rows come in an order of each one's own, and ms-swift logs the
first step as well.

run: python tests/benchmark/peers.py                 10 steps of DPO: 5 minutes on one core, and the
                                                     installation at first
     python tests/benchmark/peers.py --kinds sft dpo --steps 20 --batch 32          20 minutes

Each of them has an environment of its own under ``~/.cache`` with the release named below and what
that asks for, and the torch that is installed here; ours and TRL's have the versions that are
installed here. So nobody imports what only another one needs, such as bitsandbytes. Of one that
cannot be installed, or fails, the line says why. Torchvision and torchaudio are left out, because
there is no build of them for a CPU's torch; an empty module stands for the latter, which
LLaMA-Factory imports and uses for sound alone. So it starts a little sooner than with both.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import marks
from overhead import MODEL, PACKAGES, ROOT, Measure, ours, processor, theirs
from packaging.requirements import Requirement
from ppo_sides import installed, python_with

LLAMA_FACTORY = "0.9.5"
SWIFT = "4.6.0"
KINDS = ("sft", "dpo")
RATE = 1e-4
BETA = 0.1
# Of TRL's command what it needs itself.
OF_TRL = ("trl", "transformers", "torch", "datasets", "accelerate")
LENGTH = 1024
# Settings of all sides, under the names of transformers' arguments.
SHARED = {
    "learning_rate": RATE,
    "lr_scheduler_type": "linear",
    "weight_decay": 0.0,
    "gradient_accumulation_steps": 1,
}
SHARED |= {"logging_steps": 10, "bf16": False, "fp16": False, "use_cpu": True, "report_to": "none"}


@dataclass
class Side:
    """One of the tools, with a function that makes its command for a kind and its sizes."""

    name: str
    command: Callable[[str, int, int], list[object]]
    mark: float | None = None  # the most that ours may take, as a part of its CPU seconds
    why: str = ""  # it could not be installed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["dpo"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    marks.add_option(parser)
    chosen = parser.parse_args()
    compileall.compile_dir(ROOT / "runner", quiet=1)
    print(
        f"{datetime.date.today()}, {os.cpu_count()} cores, {processor()}, {platform.platform()}, ",
        end="",
    )
    print(
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure = Measure(folder, chosen.repeats)
        write_rows(folder)
        sides = [side(folder) for side in (bare, runner, script, trl, llama_factory, swift)]
        head = " | ".join(f"{kind}: CPU s | ours / it | mean loss" for kind in chosen.kinds)
        print(
            f"\n{chosen.steps} steps of {chosen.batch}, medians of {chosen.repeats}\n"
            f"\n| | {head} |\n|---|{'---|' * 3 * len(chosen.kinds)}"
        )
        parts = [compare(measure, sides, kind, chosen) for kind in chosen.kinds]
        columns = [to_cells(sides, figures) for figures in parts]
        for side, *cells in zip(sides, *columns, strict=True):
            print(f"| {side.name} | {' | '.join(cells)} |")
        print(f"\n{marks.HEAD}")
        for kind, figures in zip(chosen.kinds, parts, strict=True):
            work = f"{kind}, {chosen.steps} steps of {chosen.batch}"
            note_marks(work, sides, figures, chosen.marks)


@dataclass
class Figures:
    """What was measured of one side."""

    seconds: float  # the median; not a number where it could not be run
    loss: str
    why: str  # it could not be run


def compare(
    measure: Measure, sides: list[Side], kind: str, chosen: argparse.Namespace
) -> list[Figures]:
    """The figures of each side, measured in turns; for one that fails, its last words."""
    costs: list[list[float]] = [[] for _ in sides]
    whys = [side.why for side in sides]
    losses = [""] * len(sides)
    for number, side in [*enumerate(sides)] * chosen.repeats:
        if not whys[number]:
            try:
                costs[number].append(measure.cost([side.command(kind, chosen.steps, chosen.batch)]))
                losses[number] = mean_loss(measure.states)
            except SystemExit as error:
                whys[number] = next(
                    line for line in reversed(str(error).splitlines()) if line.strip()
                )[:200]
    medians = [statistics.median(seconds or [math.nan]) for seconds in costs]
    return [Figures(*of_side) for of_side in zip(medians, losses, whys, strict=True)]


def to_cells(sides: list[Side], figures: list[Figures]) -> list[str]:
    """The cells of each side in the table, beside the first side, which is ours."""
    cells = []
    for side in figures:
        text = f"{side.seconds:.1f} | {figures[0].seconds / side.seconds:.2f} | {side.loss}"
        cells.append(f"{side.why} | |" if side.why else text)
    return cells


def note_marks(work: str, sides: list[Side], figures: list[Figures], file: Path | None) -> None:
    """Say each mark: ours without held-out rows, which no other side has, beside that side."""
    ours_seconds = figures[0].seconds
    for side, measured in zip(sides, figures, strict=True):
        if side.mark is not None:
            figure = marks.Mark(
                work=f"{work}, by command",
                measured=ours_seconds / measured.seconds,
                mark=side.mark,
                at_least=False,
                ours=f"{ours_seconds:.1f} s",
                beside=f"{measured.seconds:.1f} s: {side.name}",
            )
            marks.note(figure, file)


def mean_loss(states: list[str]) -> str:
    """The mean of the logged losses in the last checkpoint."""
    if not states:
        return ""
    last = max(map(json.loads, states), key=lambda state: state["global_step"])
    return f"{statistics.fmean(line['loss'] for line in last['log_history'] if 'loss' in line):.3f}"


def write_rows(folder: Path) -> None:
    """The same rows in the form of each tool, one file for each kind."""
    lines = (folder / "rows" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    forms: dict[str, list[dict]] = {}
    for row in map(json.loads, lines):
        prompt = row["prompt"]
        chosen = row["chosen"]
        rejected = row["rejected"]
        texts = {key: row[key][0]["content"] for key in ("prompt", "chosen", "rejected")}
        turns = [
            {"role": "user", "content": texts["prompt"]},
            {"role": "assistant", "content": texts["chosen"]},
        ]
        row_of_form = {
            "trl/sft": {"prompt": prompt, "completion": chosen},
            "trl/dpo": {"prompt": prompt, "chosen": chosen, "rejected": rejected},
            "lf/sft": texts,
            "lf/dpo": texts,
            "swift/sft": {"messages": turns},
            "swift/dpo": {"messages": turns, "rejected_response": texts["rejected"]},
        }
        for form, row_in_form in row_of_form.items():
            forms.setdefault(form, []).append(row_in_form)
    for name, form in forms.items():
        (folder / name).mkdir(parents=True)
        lines = [json.dumps(row) + "\n" for row in form]
        (folder / name / "train.jsonl").write_text("".join(lines))
    columns = {"sft": {"prompt": "prompt", "response": "chosen"}}
    columns["dpo"] = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    described = {
        kind: {"file_name": f"{kind}/train.jsonl", "ranking": kind == "dpo", "columns": names}
        for kind, names in columns.items()
    }
    (folder / "lf" / "dataset_info.json").write_text(json.dumps(described))


# --- The sides ------------------------------------------------------------------------------------


def runner(folder: Path) -> Side:
    settings = [f"learning_rate={RATE}", "output_root=made", "dataset.limit.eval=100"]
    return Side("ours", lambda *how: [*ours(*how, own_python()), *settings])


def bare(folder: Path) -> Side:
    settings = [
        f"learning_rate={RATE}",
        "output_root=made",
        "metric=none",
        "dataset.split.eval=null",
    ]
    return Side("ours, no held-out rows", lambda *how: [*ours(*how, own_python()), *settings])


@cache
def own_python() -> Path:
    """The interpreter of an environment with what this package needs, and no extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [Requirement(line).name for line in project["dependencies"]]
    return python_with("ours", [f"{name}=={installed(name)}" for name in names])


@cache
def trl_python() -> Path:
    """The interpreter of an environment with TRL and what it needs."""
    wanted = [f"{name}=={installed(name)}" for name in OF_TRL]
    return python_with(f"trl-{installed('trl')}", wanted)


def script(folder: Path) -> Side:
    rows = folder / "rows" / "train.jsonl"
    return Side(
        "plain script",
        lambda kind, *how: [own_python(), "script.py", kind.upper(), MODEL, rows, *how, "made"],
    )


def trl(folder: Path) -> Side:
    def command(kind: str, steps: int, batch: int) -> list[object]:
        words = theirs(kind, steps, batch, folder / "trl" / kind, RATE, BETA, trl_python())
        if kind == "sft":
            del words[(place := words.index("--beta")) : place + 2]
        return words

    return Side(f"`trl` {version('trl')}", command, mark=0.55)


def llama_factory(folder: Path) -> Side:
    def command(kind: str, steps: int, batch: int) -> list[object]:
        settings = SHARED | {
            "model_name_or_path": str(MODEL),
            "stage": kind,
            "finetuning_type": "full",
            "do_train": True,
        }
        settings |= {
            "dataset": kind,
            "dataset_dir": str(folder / "lf"),
            "template": "chatml",
            "cutoff_len": LENGTH,
        }
        settings |= {
            "disable_gradient_checkpointing": True,
            "max_steps": steps,
            "per_device_train_batch_size": batch,
        }
        settings |= {"output_dir": "made/lf"} | ({"pref_beta": BETA} if kind == "dpo" else {})
        (folder / f"{kind}.yaml").write_text(json.dumps(settings))  # which is YAML too
        return [python.with_name("llamafactory-cli"), "train", f"{kind}.yaml"]

    side = Side(f"LLaMA-Factory {LLAMA_FACTORY}", command, mark=0.85)
    if python := install(side, "llamafactory", LLAMA_FACTORY, ["torchvision", "torchaudio"]):
        place = subprocess.run(
            [python, "-c", "import torch; print(torch.__path__[0])"], capture_output=True, text=True
        )
        (Path(place.stdout.strip()).parent / "torchaudio.py").touch()
    return side


def swift(folder: Path) -> Side:
    def command(kind: str, steps: int, batch: int) -> list[object]:
        settings = SHARED | {
            "model": MODEL,
            "model_type": "llama",
            "template": "chatml",
            "tuner_type": "full",
        }
        settings |= {
            "torch_dtype": "float32",
            "dataset": folder / "swift" / kind / "train.jsonl",
            "max_length": LENGTH,
        }
        settings |= {
            "gradient_checkpointing": False,
            "max_steps": steps,
            "per_device_train_batch_size": batch,
        }
        settings |= {
            "output_dir": "made/swift",
            "warmup_ratio": 0,
            "adam_beta2": 0.999,
            "use_hf": True,
        }
        words = ["rlhf", "--rlhf_type", "dpo", "--beta", BETA] if kind == "dpo" else ["sft"]
        return [
            python.with_name("swift"),
            *words,
            *itertools.chain(*((f"--{key}", value) for key, value in settings.items())),
        ]

    side = Side(f"ms-swift {SWIFT}", command, mark=0.6)
    python = install(side, "ms-swift", SWIFT)
    return side


def install(
    side: Side, package: str, release: str, without: list[str] | None = None
) -> Path | None:
    try:
        return python_with(
            f"{package}-{release}",
            [f"torch=={installed('torch')}", f"{package}=={release}"],
            without or [],
        )
    except subprocess.CalledProcessError as error:
        side.why = (
            f"not installed: {' '.join(map(str, error.cmd[1:]))} ended with {error.returncode}"
        )
        return None


if __name__ == "__main__":
    sys.exit(main())
