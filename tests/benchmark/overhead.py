"""CPU seconds of the runner beside a plain TRL script and TRL's own command, for the same work.

startup   what only composes and checks, beside a bare Hydra application's ``--cfg job``
fixed     10 steps of SFT and of DPO beside a script that also scores 100 held-out rows before and
          after, saves a checkpoint and the model, and draws the same curves (``plain_run.py``); the
          losses and the scores must be the same
run       one run of SFT and of DPO: ours with held-out scores of 100 rows before and after, a
          sealed checkpoint, curves and a manifest; the script and the command load, train and save;
          and 10 steps of DPO

What each further step costs is measured by ``step.py``, a sweep by ``sweep.py``.

run: python tests/benchmark/overhead.py                  all of it: 25 minutes on two cores
     python tests/benchmark/overhead.py --only startup fixed       6 minutes
     python tests/benchmark/overhead.py --only startup run --repeats 3

Seconds are those of all processes together, user and system; each figure is the median of the
repeats, whose sides take turns. No process gets more than one thread. Modules are compiled
beforehand, as they are from the second start on.
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
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import marks

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "runner" / "model" / "tiny"
ROWS = ROOT / "runner" / "dataset" / "toy_sort"
PARTS = ("startup", "fixed", "run")
PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "hydra-core")
# The steps and the batch of a run.
STEPS = 20
BATCH = 32
PAIRS = 8  # of a batch
COUNT = 512  # rows of a run that is a small one
WITH_SCORES = ("learning_rate=1e-4", "output_root=made", "dataset.limit.eval=100")
# Commands that only show or refuse something, each with its mark, and True for those that fail.
STARTS = (
    (["--help"], 0.5, False),
    (["--cfg", "job"], 1.6, False),
    (["--cfg", "job", "trainer=ppo"], 1.6, False),
    (["trainer.args.bad_key=1"], 1.6, True),
    (["trainer=dpo", "trainer.args.bad_key=1"], 1.6, True),
    (["tracker=comet_ml"], 2.1, True),  # which is not installed
)
Scores = dict[str, Any]
HYDRA = "import hydra\nhydra.main(version_base='1.3', config_path=None)(lambda cfg: None)()\n"
SCRIPT = """
import sys
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
import trl
kind, model, rows, steps, batch, folder = sys.argv[1:]
config, trainer = getattr(trl, kind + "Config"), getattr(trl, kind + "Trainer")
data = load_dataset("json", data_files=rows, split="train").remove_columns("digits")
if kind == "SFT":
    data = data.rename_column("chosen", "completion").remove_columns("rejected")
args = config(folder, max_steps=int(steps), per_device_train_batch_size=int(batch),
              learning_rate=1e-4, use_cpu=True, bf16=False, gradient_checkpointing=False,
              report_to="none", save_strategy="no", disable_tqdm=True)
policy = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
made = trainer(policy, args=args, train_dataset=data,
               processing_class=AutoTokenizer.from_pretrained(model))
made.train()
made.save_model(folder)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=5)
    marks.add_option(parser)
    chosen = parser.parse_args()
    compileall.compile_dir(ROOT / "runner", quiet=1)
    cores = os.cpu_count()
    kernel = platform.platform()
    print(
        f"{datetime.date.today()}, {cores} cores, {processor()}, "
        f"{kernel}, Python {platform.python_version()}"
    )
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES) + "\n")
    print(
        "| CPU seconds | ours | plain script | `trl` | "
        "ours less the script | ours / `trl` |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as name:
        measure = Measure(Path(name), chosen.repeats)
        parts = {"startup": startup, "fixed": measure_fixed_cost, "run": run}
        try:
            for part in chosen.only:
                parts[part](measure)
        finally:
            print(f"\n{marks.HEAD}")
            for figure in measure.marks:
                marks.note(figure, chosen.marks)


class Measure:
    """A folder in which commands are run, and their cost there."""

    def __init__(self, folder: Path, repeats: int):
        self.folder = folder
        self.repeats = repeats
        self.marks: list[marks.Mark] = []
        self.states: list[str] = []  # left by the trainer in the checkpoints of the last command
        self.scores: Scores = {}  # of the last command
        (folder / "script.py").write_text(SCRIPT)
        (folder / "app.py").write_text(HYDRA)
        for count, rows in ((2000, "rows"), (COUNT, "few")):
            (folder / rows).mkdir()
            lines = (
                (ROWS / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:count]
            )
            (folder / rows / "train.jsonl").write_text("".join(lines), encoding="utf-8")

    def cost(
        self,
        commands: Sequence[Sequence[object]],
        *,
        fails: bool = False,
        keeps_cache: bool = False,
    ) -> float:
        """CPU seconds of these commands one after the other.

        Those of another call do not find what they wrote, but for the cache of rows if it is kept.
        """
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        environment |= {"HF_HOME": str(self.folder / "hf"), "TRL_EXPERIMENTAL_SILENCE": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        before = spent()
        for command in commands:
            words = list(map(str, command))
            done = subprocess.run(
                words, cwd=self.folder, env=environment, capture_output=True, text=True
            )
            if (done.returncode != 0) != fails:
                raise SystemExit(f"{' '.join(words)}\n{done.stdout}\n{done.stderr}")
        seconds = spent() - before
        self.states = [
            path.read_text() for path in (self.folder / "made").rglob("trainer_state.json")
        ]
        self.scores = read_scores(self.folder / "made")
        leftovers = ("made",) if keeps_cache else ("hf", "made")
        for leftover in leftovers:
            shutil.rmtree(self.folder / leftover, ignore_errors=True)
        return seconds

    def keep_mark(self, work: str, costs: tuple[float, float], beside: str, mark: float) -> None:
        """Keep a ratio of our CPU seconds to those of another side as a mark."""
        ours, theirs = costs
        ratio = ours / theirs if theirs else math.nan
        figure = marks.Mark(
            work=work,
            measured=ratio,
            mark=mark,
            at_least=False,
            ours=f"{ours:.2f} s",
            beside=f"{theirs:.2f} s: {beside}",
        )
        self.marks.append(figure)

    def medians(self, sides: dict[str, list[list[object]]], **how: bool) -> dict[str, float]:
        """The median cost of each side; the sides take turns."""
        costs: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(self.repeats):  # the sides take turns
            for name, commands in sides.items():
                costs[name].append(self.cost(commands, **how))
        return {name: statistics.median(seconds) for name, seconds in costs.items()}


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def print_row(name: str, costs: dict[str, float], digits: int = 2) -> None:
    ours, plain, command = (costs.get(side) for side in ("ours", "plain", "trl"))
    cells = [
        f"{value:.{digits}f}" if value is not None else "-" for value in (ours, plain, command)
    ]
    cells.append(f"{ours - plain:+.{digits}f}, {ours / plain - 1:+.0%}" if ours and plain else "-")
    cells.append(f"{ours / command:.2f}" if ours and command else "-")
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


# --- The parts ------------------------------------------------------------------------------------


def startup(measure: Measure) -> None:
    """Commands that only show or refuse something; the bare application takes a turn with each."""
    bare = [[sys.executable, "app.py", "--cfg", "job"]]
    for words, mark, fails in STARTS:
        command = [[sys.executable, "-m", "runner", *words]]
        costs: dict[str, list[float]] = {"ours": [], "plain": []}
        for _ in range(measure.repeats):
            costs["plain"].append(measure.cost(bare))
            costs["ours"].append(measure.cost(command, fails=fails))
        medians = {side: statistics.median(seconds) for side, seconds in costs.items()}
        print_row(f"`{' '.join(words)}`, beside a bare Hydra application", medians)
        pair = (medians["ours"], medians["plain"])
        measure.keep_mark(
            f"`{' '.join(words)}`", pair, "a bare Hydra application's `--cfg job`", mark
        )


def measure_fixed_cost(measure: Measure) -> None:
    """A short run beside a script that does all of the same, and whether it was the same."""
    folder = measure.folder
    shutil.copy(ROWS / "eval.jsonl", folder / "rows" / "eval.jsonl")
    for kind in ("sft", "dpo"):
        sizes = (10, PAIRS, "made")
        script = [sys.executable, ROOT / "tests/benchmark/plain_run.py", kind, MODEL]
        sides = {
            "ours": [*ours(kind, 10, PAIRS), *WITH_SCORES],
            "plain": [*script, folder / "rows", *sizes],
        }
        costs: dict[str, list[float]] = {side: [] for side in sides}
        scores: dict[str, Scores] = {}
        for _ in range(measure.repeats):
            for side, command in sides.items():
                costs[side].append(measure.cost([command]))
                scores[side] = measure.scores
        check_same(scores["ours"], scores["plain"])
        medians = {side: statistics.median(seconds) for side, seconds in costs.items()}
        name = f"{kind}, 10 steps of {PAIRS}, scored, saved and plotted"
        print_row(name, medians)
        pair = (medians["ours"], medians["plain"])
        measure.keep_mark(name, pair, "a plain script that does the same", 0.9)


def read_scores(folder: Path) -> Scores:
    """The held-out figures before and after, and the logged losses, of the run in a folder."""
    for file in folder.rglob("scores.json"):
        scores: Scores = json.loads(file.read_text())
        lines = file.with_name("metrics.jsonl")
        if lines.exists():
            rows = map(json.loads, lines.read_text().splitlines())
            scores["losses"] = [row["loss"] for row in rows if "loss" in row]
        return scores
    return {}


def check_same(ours: Scores, plain: Scores) -> None:
    """Leave with a message where the two sides did not do the same work."""
    pairs = {"last loss": (ours["losses"][-1], plain["losses"][-1])}
    for time in ("before", "after"):
        pairs[f"eval_loss {time}"] = ours[time]["eval_loss"], plain[time]["eval_loss"]
        # Answers are drawn, so that the share of right ones scatters by a twentieth.
        right = ours[time]["eval_exact"], plain[time]["eval_exact"]
        if abs(right[0] - right[1]) > 0.2:
            raise SystemExit(f"right answers {time}: {right[0]} of ours, {right[1]} of the script")
    for name, losses in pairs.items():
        # The trainers shuffle the rows, each by itself, and average unlike batches.
        if not math.isclose(*losses, rel_tol=0.1):
            raise SystemExit(f"{name}: {losses[0]} of ours, {losses[1]} of the script")


def run(measure: Measure) -> None:
    for kind in ("sft", "dpo"):
        print_row(
            f"{kind}, {STEPS} steps of {BATCH}",
            measure.medians(sides_of(kind, STEPS, BATCH, measure.folder)),
        )
    ten = sides_of("dpo", 10, PAIRS, measure.folder)
    print_row(f"dpo, 10 steps of {PAIRS}", measure.medians(ten))


# --- The commands of each side --------------------------------------------------------------------


def sides_of(kind: str, steps: int, batch: int, folder: Path) -> dict[str, list[list[object]]]:
    """The command of each side; ours scores held-out rows."""
    command = [*ours(kind, steps, batch), *WITH_SCORES]
    script = [
        sys.executable,
        "script.py",
        kind.upper(),
        MODEL,
        folder / "rows" / "train.jsonl",
        steps,
        batch,
        "made",
    ]
    sides = {"ours": [command], "plain": [script]}
    if kind == "dpo":
        sides["trl"] = [theirs(kind, steps, batch, folder / "rows", 1e-4, 0.1)]
    return sides


def ours(kind: str, steps: int, batch: int, python: str | Path = sys.executable) -> list[object]:
    sizes = [f"trainer.args.max_steps={steps}", f"trainer.args.per_device_train_batch_size={batch}"]
    return [python, "-m", "runner", f"trainer={kind}", "model=tiny", *sizes]


def theirs(
    kind: str,
    steps: int,
    batch: int,
    rows: Path,
    rate: float,
    coefficient: float,
    python: str | Path = sys.executable,
) -> list[object]:
    flags = {
        **{
            "model_name_or_path": MODEL,
            "dataset_name": rows,
            "eval_strategy": "no",
            "output_dir": "made/trl",
        },
        **{
            "max_steps": steps,
            "per_device_train_batch_size": batch,
            "learning_rate": rate,
            "beta": coefficient,
        },
        **{
            "report_to": "none",
            "dtype": "float32",
            "use_cpu": True,
            "bf16": False,
            "activation_checkpointing": False,
        },
    }
    return [
        Path(python).parent / "trl",
        kind,
        *itertools.chain(*((f"--{key}", value) for key, value in flags.items())),
    ]


if __name__ == "__main__":
    main()
