"""CPU seconds of the runner beside a plain TRL script and TRL's own command, for the same work.

startup   what only composes and checks, beside a bare Hydra application run       one run of SFT
and of DPO: ours with held-out scores of 100 rows before and after, a sealed checkpoint, curves
          and a manifest; the script and the command load, train and save; and 10 steps of DPO
What each further step costs is measured by ``step.py``, a sweep by ``sweep.py``.

run: python tests/benchmark/overhead.py                             all of it: 20 minutes on two
cores
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

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "runner" / "model" / "tiny"
ROWS = ROOT / "runner" / "dataset" / "toy_sort"
PARTS = ("startup", "run")
PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "hydra-core")
# The steps and the batch of a run.
STEPS = 20
BATCH = 32
PAIRS = 8  # of a batch
COUNT = 512  # rows of a run that is a small one
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
        for part in chosen.only:
            {"startup": startup, "run": run}[part](measure)


class Measure:
    """A folder in which commands are run, and their cost there."""

    def __init__(self, folder: Path, repeats: int):
        self.folder = folder
        self.repeats = repeats
        self.states: list[str] = []  # left by the trainer in the checkpoints of the last command
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
        leftovers = ("made",) if keeps_cache else ("hf", "made")
        for leftover in leftovers:
            shutil.rmtree(self.folder / leftover, ignore_errors=True)
        return seconds

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
    runner = [sys.executable, "-m", "runner"]
    app = measure.medians({"ours": [[sys.executable, "app.py"]]})
    print_row("a bare Hydra application, in the place of ours", app)
    for words in (["--help"], ["--cfg", "job"], ["--cfg", "job", "trainer=ppo"]):
        print_row(f"`{' '.join(words)}`", measure.medians({"ours": [[*runner, *words]]}))
    for words in (["trainer.args.bad_key=1"], ["trainer=dpo", "trainer.args.bad_key=1"]):
        print_row(
            f"`{' '.join(words)}`", measure.medians({"ours": [[*runner, *words]]}, fails=True)
        )


def run(measure: Measure) -> None:
    for kind in ("sft", "dpo"):
        print_row(
            f"{kind}, {STEPS} steps of {BATCH}",
            measure.medians(sides_of(kind, STEPS, BATCH, measure.folder)),
        )
    ten = sides_of("dpo", 10, PAIRS, measure.folder)
    print_row(f"dpo, 10 steps of {PAIRS}", measure.medians(ten))


# --- The commands of each side --------------------------------------------------------------------


def sides_of(
    kind: str, steps: int, batch: int, folder: Path, *, logs: bool = False
) -> dict[str, list[list[object]]]:
    """The command of each side; ours evaluates nothing if ``logs`` says that only steps count."""
    command = [*ours(kind, steps, batch), "learning_rate=1e-4", "output_root=made"]
    command += ["metric=none", "dataset.split.eval=null"] if logs else ["dataset.limit.eval=100"]
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
    return (
        sides
        if logs or kind == "sft"
        else sides | {"trl": [theirs(kind, steps, batch, folder / "rows", 1e-4, 0.1)]}
    )


def ours(kind: str, steps: int, batch: int) -> list[object]:
    sizes = [f"trainer.args.max_steps={steps}", f"trainer.args.per_device_train_batch_size={batch}"]
    return [sys.executable, "-m", "runner", f"trainer={kind}", "model=tiny", *sizes]


def theirs(
    kind: str, steps: int, batch: int, rows: Path, rate: float, coefficient: float
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
        Path(sys.executable).parent / "trl",
        kind,
        *itertools.chain(*((f"--{key}", value) for key, value in flags.items())),
    ]


if __name__ == "__main__":
    main()
