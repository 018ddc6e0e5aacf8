"""What the sides of ``card.py`` and ``step_counts.py`` share: models, rows and commands.

A side is a training in a process of its own: ours is the public command, and TRL's is its own
trainer on the model, rows and arguments of our composed configuration, as in a script that knows
nothing else of the runner. The figures are those of a callback on each side (``card_turns``). Left
out on purpose: what is compared and how it is shown, which is each script's own.

run: python tests/benchmark/card_sides.py TASK.json     (the scripts do it)
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

QWEN = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
PYTHIA = {
    "model_type": "gpt_neox",
    "vocab_size": 50304,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "tie_word_embeddings": False,
}
ARCHITECTURES = {"qwen": QWEN, "pythia": PYTHIA, "reward": PYTHIA}
SMALL = {
    "vocab_size": 640,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}

PAIRS = {"prompt": (64, 64), "chosen": (24, 24), "rejected": (24, 24)}
DEMONSTRATIONS = {"prompt": (200, 512), "completion": (20, 53)}
# Without a GPU TRL's defaults would refuse to start, or run slower.
ON_CPU = {"use_cpu": True, "bf16": False, "activation_checkpointing": False}
WARM_STEPS = 2  # that load kernels; no figure counts them
SECONDS_TO_STOP = 15
NAMES_ERROR = re.compile(r"^found |Error: ")


# --- Models and rows ----------------------------------------------------------------------------


def write_model(folder: Path, values: Mapping[str, Any], *, scores: bool = False) -> None:
    """Write a model with random weights in bfloat16, and the tokenizer of the tiny model."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "runner" / "model" / "tiny")
    ends = {}
    for name in ("pad", "eos", "bos"):
        ends[f"{name}_token_id"] = getattr(tokenizer, f"{name}_token_id")
    model_class = AutoModelForCausalLM
    labels = {}
    if scores:
        model_class = AutoModelForSequenceClassification
        labels = {"num_labels": 1}
    config = AutoConfig.for_model(**values, **ends, **labels)
    # It draws a billion numbers at once.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = model_class.from_config(config, dtype=torch.bfloat16)
    # The words that the tokenizer knows are likelier, so that a completion has text in it.
    if not scores:
        model.get_output_embeddings().weight.data[: len(tokenizer)] *= 5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_rows(path: Path, experiment: str, count: int) -> None:
    """Write rows of digits, one token each, as long as the texts of the experiment."""
    draw = random.Random(0)
    lengths = PAIRS if experiment.startswith("dpo") else DEMONSTRATIONS
    lines = []
    for _ in range(count):
        row = {}
        for key, (shortest, longest) in lengths.items():
            length = draw.randint(shortest, longest)
            row[key] = "".join(draw.choices("0123456789", k=length))
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))


def words_of(
    experiment: str, model: Path, rows: Path, output_root: Path, steps: int
) -> dict[str, object]:
    """The words of our command by their keys: an experiment on made rows, which only trains."""
    return {
        "experiment": experiment,
        "dataset": "local",
        "dataset.path": rows,
        "dataset.split": "{train: train, eval: null}",
        "dataset.shuffle": "false",  # both sides see the rows in one order
        "model.path": model,
        "output_root": output_root,
        "trainer.args.max_steps": steps,
        "trainer.args.logging_steps": 1,
        "trainer.args.save_strategy": "no",
        "on_memory": "stop",
    }


# --- Processes ----------------------------------------------------------------------------------


@dataclass
class Side:
    """A process of one side, and the figures that its callback leaves."""

    name: str
    command: Sequence[str]
    result: Path  # where its callback writes
    variables: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.result.with_suffix(".log")

    def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Start the process, which inherits these sockets."""
        paths = os.pathsep.join([str(ROOT), str(HERE)])
        variables = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                env=os.environ | variables | self.variables,
                stdout=output,
                stderr=output,
                pass_fds=[end.fileno() for end in sockets],
            )

    def wait(self) -> dict[str, Any] | None:
        """What its callback has left; None where it failed, with the end of its log on stderr."""
        code = self.process.wait()
        if code == 0 and self.result.exists():
            return json.loads(self.result.read_text())
        end = self.log.read_text(errors="replace")[-3000:]
        print(f"{self.name} ended with {code}:\n{end}", file=sys.stderr)
        return None

    def cause(self) -> str:
        """The last line of its log that names an error, or else the last one."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        lines = [line for line in lines if line]
        errors = [line for line in lines if NAMES_ERROR.search(line)]
        return [*lines, *errors][-1] if lines else ""


def our_side(
    words: Mapping[str, object],
    result: Path,
    callback: str = "card_turns.Turns",
    baton: socket.socket | None = None,
    python: str = sys.executable,
    launcher: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Side:
    """The public command, with a callback of these scripts."""
    module = callback.partition(".")[0]
    more = {
        "callback.turns._target_": callback,
        "callback.turns.result": result,
        "allow": f"[{module}]",
    }
    if baton is not None:
        more["callback.turns.baton"] = baton.fileno()
    texts = [f"{key}={value}" for key, value in {**words, **more}.items()]
    command = [python, *launcher, "-m", "runner", *texts]
    return Side("ours", command, result, variables or {})


def plain_side(
    words: Mapping[str, object],
    result: Path,
    args: Mapping[str, object] | None = None,
    callback: str = "card_turns.Turns",
    baton: socket.socket | None = None,
    python: str = sys.executable,
    variables: Mapping[str, str] | None = None,
) -> Side:
    """TRL's own trainer on what our words compose to; ``args`` take the place of its arguments."""
    import runner

    task = {
        "config": runner.compose(*(f"{key}={value}" for key, value in words.items())),
        "args": dict(args or {}),
        "output_dir": str(result.with_suffix("")),
        "result": str(result),
        "callback": callback,
        "baton": None if baton is None else baton.fileno(),
    }
    path = result.with_suffix(".task")
    path.write_text(json.dumps(task, default=str))
    command = [python, "-m", "card_sides", str(path)]
    return Side("TRL", command, result, variables or {})


def stop(side: Side) -> None:
    """Have a process of ours end, and what it has started with it."""
    if side.process is None or side.process.poll() is not None:
        return
    side.process.terminate()
    try:
        side.process.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        side.process.kill()
        side.process.wait()


def is_importable(name: str, python: str = sys.executable) -> bool:
    """True where a Python has a package."""
    if python == sys.executable:
        return find_spec(name) is not None
    code = f"import importlib.util as u; raise SystemExit(u.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


# --- Inside a side ------------------------------------------------------------------------------


def train_plain(task: Mapping[str, Any]) -> None:
    """Train as a script that knows nothing of the runner but the arguments of a run."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        BitsAndBytesConfig,
    )

    config = task["config"]
    args = dict(config["trainer"]["args"])
    args_path = args.pop("_target_")
    args_name = args_path.rpartition(".")[2]
    args |= {
        "output_dir": task["output_dir"],
        "seed": config["seed"],
        "report_to": "none",
        "disable_tqdm": True,
    }
    args |= task["args"]
    if args_name == "DPOConfig":  # TRL cannot group pairs by length: they have no input_ids
        args.pop("train_sampling_strategy", None)
    if not torch.cuda.is_available():
        args |= ON_CPU
    loading: dict[str, Any] = {"dtype": getattr(torch, config["model"]["dtype"])}
    attention = config["model"].get("attention")
    if attention:
        loading["attn_implementation"] = attention
    if config["quant"]:
        settings = dict(config["quant"])
        del settings["_target_"]
        loading["quantization_config"] = BitsAndBytesConfig(**settings)
    peft_config = None
    if config["peft"]:
        settings = dict(config["peft"])
        del settings["_target_"]
        settings.pop("learning_rate_factor", None)  # which is in the learning rate by now
        peft_config = LoraConfig(**settings, task_type="CAUSAL_LM")
    further = {}
    if args_name in ("GRPOConfig", "RLOOConfig"):
        further["reward_funcs"] = count_distinct
    callback_class = load_by_path(task["callback"])
    callback = callback_class(result=task["result"], baton=task["baton"], first=False)
    path = config["model"]["path"]
    model_class = AutoModelForCausalLM
    if config["trainer"]["head"] == "score":
        model_class = AutoModelForSequenceClassification
        loading["num_labels"] = 1
    trainer = load_by_path(config["trainer"]["_target_"])(
        model=model_class.from_pretrained(path, **loading),
        args=load_by_path(args_path)(**args),
        train_dataset=Dataset.from_json(config["dataset"]["path"]),
        processing_class=AutoTokenizer.from_pretrained(path),
        peft_config=peft_config,
        callbacks=[callback],
        **further,
    )
    trainer.train()


def load_by_path(path: str) -> Any:
    """What stands at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def count_distinct(completions: Sequence[str], **columns: object) -> list[float]:
    """A reward of each completion: how many characters it has that differ."""
    return [float(len(set(text))) for text in completions]


if __name__ == "__main__":
    train_plain(json.loads(Path(sys.argv[1]).read_text()))
