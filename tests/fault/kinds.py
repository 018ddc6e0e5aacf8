"""Kinds of configuration modelled on TRL's own tests (kinds.yaml), composed, and trained for two
steps.

    python tests/fault/kinds.py [TRAINER ...]     prints each wrong one, and a table by trainer
    python tests/fault/kinds.py --compose         only composes and checks

A kind trains, or is refused in the words that kinds.yaml names: exit 2 or 5 before a step is taken,
and no traceback.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from needs import TRAINERS, needed
from warm import Warm

from runner.config.menu import read_menu
from runner.config.override import expand
from runner.errors import RunnerError
from runner.io.files import shipped
from runner.launch.compose.stages import compose_runs
from runner.schema import upstream
from runner.schema.read import read_signature

FEW = "model=tiny dataset.limit.train=16 dataset.limit.eval=4 metric=none trainer.args.max_steps=2"
FEW += " trainer.args.per_device_train_batch_size=4 trainer.args.per_device_eval_batch_size=4"
SHORT = 8  # tokens of a completion
END = json.loads(Path(shipped("runner://model/tiny"), "config.json").read_text())["eos_token_id"]
PARTS = """
def first(completions, **_):
    return [float(len(str(each)) % 7) for each in completions]

async def late(completions, **_):
    return [float(len(str(each)) % 5) for each in completions]

def some(completions, **_):
    scores = [float(len(str(completion)) % 7) for completion in completions]
    return [None if number % 2 else score for number, score in enumerate(scores)]

def none(completions, **_):
    return [None for _ in completions]

def of_column(completions, digits, **_):
    return [float(len(str(each)) - len(str(known))) for each, known in zip(completions, digits)]

def logging_reward(completions, log_extra, log_metric, **_):
    log_extra("length", [len(str(each)) for each in completions])
    log_metric("mean_length", 1.0)
    return first(completions)

def format_row(row):
    return "Sorted: " + row["text"]

def of_state(completions, trainer_state, **_):
    return [float(trainer_state.global_step + len(str(each)) % 3) for each in completions]
"""


@dataclass(frozen=True)
class Kind:
    """One configuration.

    Its trainer, name and words, and a word of the refusal if it cannot be trained.
    """

    trainer: str
    name: str
    own: str
    refused: str = ""

    @property
    def words(self) -> list[str]:
        """The words of the command; a later one wins over an earlier one."""
        config = read_signature(TRAINERS[self.trainer]["args"]["_target_"])
        length = next(
            (name for name in upstream.COMPLETION_LENGTHS if config and name in config.parameters),
            None,
        )
        few = FEW.split() + ([f"trainer.args.{length}={SHORT}"] if length else [])
        groups = config and "num_generations" in config.parameters and self.trainer != "ppo"
        few += ["trainer.args.num_generations=2"] * bool(groups)
        split = shlex.split(self.own)
        changed = {word.partition("=")[0].lstrip("+") for word in split}
        few = [word for word in few if word.partition("=")[0] not in changed]
        rows = (
            []
            if any(key == "dataset" or key.startswith("dataset.form") for key in changed)
            else ["dataset=toy"]
        )
        return [f"trainer={self.trainer}", *rows, *few, *needed(self.trainer), *split]


def read_kinds() -> Iterator[Kind]:
    """Every kind of the file beside this one."""
    for family in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")):
        for trainer in family["trainers"]:
            for name, settings in family["kinds"].items():
                words, refused = (
                    (settings["words"], settings["refused"])
                    if isinstance(settings, dict)
                    else (settings, "")
                )
                yield Kind(trainer, name, words, refused)


def turn(role: str, text: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": text}]


SCHEMA = {"type": "object", "properties": {"digits": {"type": "string"}}}
TOOL = {
    "type": "function",
    "function": {"name": "sort", "description": "Sorts.", "parameters": SCHEMA},
}


def write_rows(folder: Path) -> None:
    """The files of rows that kinds name, each in 24 lines, and their plug-ins."""
    (folder / "kinds_parts.py").write_text(PARTS)
    files: dict[str, list[dict[str, Any]]] = {}
    for number in range(24):
        for name, row in rows_of(number).items():
            files.setdefault(name, []).append(row)
    for name, rows in files.items():
        lines = [json.dumps(row) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines))


def rows_of(number: int) -> dict[str, dict[str, Any]]:
    """One row of each file."""
    digits = f"{number % 10} {number % 7} {number % 3}"
    prompt = f"Sort these digits: {digits}"
    good = " ".join(sorted(digits.split()))
    bad = digits + " 9"
    user = turn("user", prompt)
    right = turn("assistant", good)
    wrong = turn("assistant", bad)
    function = {"name": "sort", "arguments": {"digits": digits}}
    called = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }
    ]
    called += [{"role": "tool", "name": "sort", "content": good}]
    ids = [12 + number % 5, 14, 15, 16, END]
    return {
        "text": {"text": f"{prompt} {good}"},
        "messages": {"messages": user + right},
        "completion": {"prompt": prompt, "completion": " " + good},
        "completion_turns": {"prompt": user, "completion": right},
        "sharegpt": {
            "conversations": [
                {"from": "human", "value": prompt},
                {"from": "gpt", "value": good},
            ]
        },
        "tokens": {"input_ids": ids, "labels": [-100, -100, *ids[2:]]},
        "masks": {"input_ids": ids, "completion_mask": [0, 0, 1, 1, 1]},
        "tools": {"messages": user + called + right, "tools": [TOOL]},
        "tools_text": {"messages": user + called + right, "tools": json.dumps([TOOL])},
        "arguments": {
            "messages": user + right,
            "chat_template_kwargs": {"enable_thinking": bool(number % 2)},
        },
        "pairs": {"prompt": prompt, "chosen": " " + good, "rejected": " " + bad},
        "pairs_implicit": {"chosen": f"{prompt} {good}", "rejected": f"{prompt} {bad}"},
        "pairs_turns": {"prompt": user, "chosen": right, "rejected": wrong},
        "pairs_turns_implicit": {"chosen": user + right, "rejected": user + wrong},
        "pairs_margin": {
            "prompt": prompt,
            "chosen": " " + good,
            "rejected": " " + bad,
            "margin": 0.5,
        },
        "pairs_tokens": {"chosen_ids": ids, "rejected_ids": ids[:3]},
        "tools_pairs": {
            "prompt": user + called,
            "chosen": right,
            "rejected": wrong,
            "tools": [TOOL],
        },
        "pairs_arguments": {
            "prompt": user,
            "chosen": right,
            "rejected": wrong,
            "chat_template_kwargs": {"a": 1},
        },
        "labelled": {"prompt": prompt, "completion": " " + good, "label": bool(number % 2)},
        "labelled_turns": {"prompt": user, "completion": right, "label": bool(number % 2)},
        "prompts": {"prompt": prompt},
        "prompts_turns": {"prompt": user},
        "prompts_arguments": {"prompt": user, "chat_template_kwargs": {"a": 1}},
    }


def compose(kind: Kind) -> str:
    """The first line of a fault in composing a kind; empty if it composes."""
    try:
        compose_runs(expand(kind.words, read_menu()))
    except RunnerError as error:
        return f"{error.faults[0].where}: {error.faults[0].found}"
    return ""


def train(kind: Kind, processes: Queue[Warm], folder: Path) -> str:
    """The failure of a kind; empty if it did as it should."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    name = re.sub(r"\W+", "_", f"{kind.trainer}_{kind.name}")
    warm = processes.get()
    done = warm.run([*kind.words, f"name={name}"], folder, environment)
    processes.put(warm)
    errors = done.stderr[-4000:]
    shutil.rmtree(folder / "outputs" / name, ignore_errors=True)
    if (
        kind.refused
        and done.returncode in (2, 5)
        and kind.refused in errors
        and "Traceback" not in errors
    ):
        return ""
    if not kind.refused and done.returncode == 0:
        return ""
    end = errors if done.returncode in (2, 3, 4, 5) else errors[-800:]
    return (
        f"exit {done.returncode}{', expected: ' + kind.refused if kind.refused else ''}\n"
        f"{end.strip()}"
    )


def main(words: list[str]) -> int:
    """Try the kinds of the named trainers, or of all."""
    wanted = [word for word in words if not word.startswith("-")]
    kinds = [kind for kind in read_kinds() if not wanted or kind.trainer in wanted]
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder)
        os.chdir(folder)
        if "--compose" in words:
            composed = {kind: compose(kind) for kind in kinds}
        else:
            processes: Queue[Warm] = Queue()
            for number in range(2):
                processes.put(Warm(folder / f"warm-{number}"))
            for made, by in (("adapter", "trainer=sft peft=lora"), ("scorer", "trainer=reward")):
                words = [*by.split(), *FEW.split(), "dataset=toy", f"name={made}_run"]
                processes.queue[0].run(words, folder, dict(os.environ)).check_returncode()
                shutil.copytree(
                    next((folder / "outputs" / f"{made}_run").glob("*/model")), folder / made
                )
            with ThreadPoolExecutor(2) as pool:
                composed = dict(
                    zip(
                        kinds,
                        pool.map(lambda kind: train(kind, processes, folder), kinds),
                        strict=True,
                    )
                )
    for kind, text in composed.items():
        if text:
            print(f"--- {kind.trainer}, {kind.name}: {' '.join(kind.words)}\n{text}", flush=True)
    tried = Counter(kind.trainer for kind in kinds)
    failed = Counter(kind.trainer for kind in composed if composed[kind])
    refused = Counter(kind.trainer for kind in kinds if kind.refused)
    print("| trainer | kinds | refused in words | not as they should |\n|---|---|---|---|")
    for trainer, count in [*tried.items(), ("all", len(kinds))]:
        rows = (
            sum(counts.values()) if trainer == "all" else counts[trainer]
            for counts in (refused, failed)
        )
        print(f"| {trainer} | {count} | {' | '.join(map(str, rows))} |")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
