"""A first start on many rows beside a plain script: `datasets`, and TRL's own preparation.

Each row is a chat of about 1 KB, or a pair of chats, so that a million are 1 GB of JSON lines. Both
sides read the same file with empty caches, prepare all of its rows, and train one step on eight of
them. What a row costs is the difference between two sizes, so that imports and the step do not
count. Ours is the command with its defaults: it also scans the file for faults, checks each row,
shuffles, and keeps fingerprints. The script is at its best settings, which ``--processes`` tries
(``dataset_num_proc``; CPU seconds are those of all processes).

run: python tests/benchmark/rows.py                          about 8 minutes on one core
     python tests/benchmark/rows.py --sizes 100000 1000000 --repeats 1
     python tests/benchmark/rows.py --processes 1 2 --kinds sft --repeats 1

Memory is the peak of what no file stands behind, of the largest process. Flat is the memory of the
larger size over that of the smaller. Both sides have the same losses, and as many rows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import marks
import psutil

ROOT = Path(__file__).parent.parent.parent
TINY = ROOT / "runner" / "model" / "tiny"
SYLLABLES = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("", "n", "r", "s", "l")]
LETTERS_ROW = 900  # of its texts; keys, roles and quotes make it 1 KB
TOKENS = 8_000  # that the tokenizer knows, so that a word is one or two
SEED = 0
OURS = "ours"
BESIDE_TRL = 1.1  # that a row may take
FLAT = 1.05  # that the memory may grow
PLAIN = """
import json, sys
import trl
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

settings = json.loads(sys.argv[1])
rows = load_dataset("json", data_files=settings["rows"], split="train")
model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(settings["model"])
kind = settings["kind"].upper()
args = getattr(trl, kind + "Config")(settings["out"], use_cpu=True, bf16=False, report_to="none",
    save_strategy="no", seed=0, **settings["args"])
trainer = getattr(trl, kind + "Trainer")(
    model=model, args=args, train_dataset=rows, processing_class=tokenizer)
trainer.train()
prepared = len(trainer.train_dataset)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(json.dumps({"rows": prepared, "losses": losses}))
"""


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a command with all that it starts, and MB of its largest process."""

    cpu: float
    memory: float


@dataclass(frozen=True)
class Side:
    """A way of preparing rows: ours, or the plain script with so many processes."""

    name: str
    processes: int | None = None  # of the script; None is ours


# --- Rows ---------------------------------------------------------------------------------------
def sentences() -> list[str]:
    """Sentences of invented words, few of which are frequent, as in any language."""
    draw = random.Random(SEED)
    words = []
    for _ in range(6_000):
        words.append("".join(draw.choices(SYLLABLES, k=draw.choice((1, 2, 2, 3)))))
    shares = [1 / (rank + 10) for rank in range(len(words))]
    made = []
    for _ in range(20_000):
        chosen = draw.choices(words, shares, k=draw.randint(6, 20))
        made.append(f"{' '.join(chosen).capitalize()}.")
    return made


def turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def write_rows(path: Path, kind: str, count: int, lines: list[str]) -> None:
    """Write so many rows of a kind, each of another text."""
    draw = random.Random(SEED)

    def text(letters: float) -> str:
        chosen: list[str] = []
        length = 0
        while length < letters:
            chosen.append(lines[int(draw.random() * len(lines))])
            length += len(chosen[-1])
        return " ".join(chosen)

    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            question = turn("user", f"{text(LETTERS_ROW * 0.3)} {number}?")
            if kind == "sft":
                answer = turn("assistant", text(LETTERS_ROW * 0.7))
                row = {"messages": [question, answer]}
            else:
                good, bad = (turn("assistant", text(LETTERS_ROW * 0.3)) for _ in range(2))
                row = {"prompt": [question], "chosen": [good], "rejected": [bad]}
            file.write(json.dumps(row) + "\n")


def write_model(folder: Path, lines: list[str]) -> None:
    """Write a small model whose tokenizer has learnt the sentences; three letters are a token."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer = tokenizer.train_new_from_iterator(lines, TOKENS)
    # As any template that does not ship with us, this one is tried on each row.
    tokenizer.chat_template = f"{{#- of these rows #}}{tokenizer.chat_template}"
    tokenizer.save_pretrained(folder)
    config = AutoConfig.from_pretrained(TINY)
    config.update({"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id})
    config.update({"pad_token_id": tokenizer.pad_token_id})
    torch.manual_seed(SEED)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


# --- Both sides ---------------------------------------------------------------------------------
def spend(command: list[str], folder: Path) -> tuple[Spent, str]:
    """Run a command with empty caches, and return what it cost and printed."""
    cache = Path(tempfile.mkdtemp(dir=folder))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        peak = Peak(process.pid)
        watch = threading.Thread(target=peak.watch)
        watch.start()
        _, code, used = os.wait4(process.pid, 0)
        peak.is_over = True
        watch.join()
    shutil.rmtree(cache)
    if code:
        raise SystemExit(f"{' '.join(command)}\n{log.read_text()[-3000:]}")
    return Spent(used.ru_utime + used.ru_stime, peak.kilobytes / 1024), log.read_text()


@dataclass
class Peak:
    """The most memory without a file behind it that a process or one that it started had."""

    pid: int
    kilobytes: int = 0
    is_over: bool = False

    def watch(self) -> None:
        while not self.is_over:
            with contextlib.suppress(psutil.Error, OSError):
                process = psutil.Process(self.pid)
                for member in (process, *process.children(recursive=True)):
                    self.kilobytes = max(self.kilobytes, anonymous(member.pid))
            time.sleep(0.2)


def anonymous(pid: int) -> int:
    """Resident kilobytes of a process that no file stands behind."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    return 0


def start(side: Side, kind: str, rows: Path, folder: Path, *words: str) -> tuple[Spent, float]:
    """What a first start costs, and the loss of its step; ours is given further words."""
    args = {"max_steps": 1, "per_device_train_batch_size": 8, "logging_steps": 1}
    if side.processes is None:
        command = [sys.executable, "-m", "runner", f"trainer={kind}", "dataset=local"]
        command += [f"dataset.path={rows}", f"model.path={folder / 'model'}", "model.dtype=float32"]
        command += [f"output_root={folder / 'outputs'}"]
        command += [f"trainer.args.{name}={value}" for name, value in args.items()]
        spent, _ = spend([*command, *words], folder)
        run = next((folder / "outputs").glob("*/*/metrics.jsonl"))
        lines = [json.loads(line) for line in run.read_text().splitlines()]
        losses = [line["loss"] for line in lines if "loss" in line]
        shutil.rmtree(folder / "outputs")
        return spent, losses[0]
    args["dataset_num_proc"] = side.processes if side.processes > 1 else None
    settings = {
        "rows": str(rows),
        "model": str(folder / "model"),
        "kind": kind,
        "out": str(folder / "out"),
        "args": args,
    }
    spent, printed = spend([sys.executable, "-c", PLAIN, json.dumps(settings)], folder)
    told = json.loads(printed.splitlines()[-1])
    return spent, told["losses"][0]


@dataclass
class Work:
    """Starts on two sizes of rows of one kind, each by both sides in turns."""

    kind: str
    files: dict[int, Path]  # by their number of rows
    sides: list[Side]
    spent: dict[tuple[str, int], list[Spent]] = field(default_factory=dict)

    def measure(self, folder: Path, repeats: int) -> None:
        for _ in range(repeats):
            for count, path in self.files.items():
                for side in self.sides:
                    spent, _ = start(side, self.kind, path, folder)
                    self.spent.setdefault((side.name, count), []).append(spent)
                    print(self.kind, f"{count:,}", side.name, spent, file=sys.stderr, flush=True)

    def seconds(self, side: str, count: int) -> float:
        return statistics.median(spent.cpu for spent in self.spent[side, count])

    def megabytes(self, side: str, count: int) -> float:
        return statistics.median(spent.memory for spent in self.spent[side, count])

    def per_row(self, side: str) -> float:
        """Milliseconds of each further row."""
        few, many = self.files
        return 1_000 * (self.seconds(side, many) - self.seconds(side, few)) / (many - few)

    def line(self, side: str) -> str:
        few, many = self.files
        cells = [f"{self.kind}, {side}"]
        cells += [f"{self.seconds(side, count):.1f}" for count in (few, many)]
        cells.append(f"{self.per_row(side):.3f}")
        cells += [f"{self.megabytes(side, count):.0f}" for count in (few, many)]
        return f"| {' | '.join(cells)} |"


def check_same(work: Work, folder: Path) -> None:
    """End where the first batch in the order of the file has another loss on the other side."""
    path = next(iter(work.files.values()))
    losses = []
    for side in work.sides[:2]:
        _, loss = start(side, work.kind, path, folder, "dataset.shuffle=false")
        losses.append(loss)
    if not math.isclose(*losses, rel_tol=1e-6):
        raise SystemExit(f"{work.kind}: losses {losses}")


def note_marks(work: Work, file: Path | None) -> None:
    """The marks of the time of a row, beside the fastest of the scripts, and of the memory."""
    few, many = work.files
    flat = work.megabytes(OURS, many) / work.megabytes(OURS, few)
    shown = [f"{work.megabytes(OURS, count):.0f} MB" for count in (many, few)]
    name = f"memory of {many:,} rows, {work.kind}"
    beside = f"{shown[1]} with {few:,}"
    marks.note(marks.Mark(name, flat, FLAT, at_least=False, ours=shown[0], beside=beside), file)
    scripts = [side.name for side in work.sides if side.name != OURS]
    if not scripts:
        return
    best = min(scripts, key=work.per_row)
    ratio = work.per_row(OURS) / work.per_row(best)
    ours = f"{work.per_row(OURS):.3f} ms a row"
    beside = f"{work.per_row(best):.3f} ms, {best}"
    name = f"reading, checking and tokenising rows of 1 KB, {work.kind}"
    marks.note(marks.Mark(name, ratio, BESIDE_TRL, at_least=False, ours=ours, beside=beside), file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=("sft", "dpo"), default=["sft", "dpo"])
    parser.add_argument("--sizes", nargs=2, type=int, default=[2_000, 20_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", nargs="+", type=int, default=[1], help="of the script")
    parser.add_argument("--ours-only", action="store_true")
    marks.add_option(parser)
    chosen = parser.parse_args()
    sides = [Side(OURS)]
    if not chosen.ours_only:
        for processes in chosen.processes:
            sides.append(Side(f"script with {processes} of dataset_num_proc", processes))
    few, many = sorted(chosen.sizes)
    print(f"| side | {few:,} rows, CPU s | {many:,} | ms a row | MB, {few:,} | MB, {many:,} |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = sentences()
        write_model(folder / "model", lines)
        works = []
        for kind in chosen.kinds:
            files = {}
            for count in (few, many):
                files[count] = folder / f"{kind}-{count}.jsonl"
                write_rows(files[count], kind, count, lines)
            work = Work(kind, files, sides)
            if not chosen.ours_only:
                check_same(work, folder)
            work.measure(folder, chosen.repeats)
            for side in sides:
                print(work.line(side.name), flush=True)
            for path in files.values():
                path.unlink()
            works.append(work)
    print(f"\n{marks.HEAD}")
    for work in works:
        note_marks(work, chosen.marks)


if __name__ == "__main__":
    main()
