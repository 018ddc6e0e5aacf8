"""Tokens per second and peak memory of the checked-in experiments on one CUDA card, beside plain
TRL.

The models are Qwen2.5-0.5B and Pythia 1B in bfloat16 files, with random weights and the tokenizer
of the tiny model; rows are as long as the experiments' own. Each case is the public command in a
process of its own, and then TRL's trainer on the arguments, rows and model of that run's
``config.yaml``. ``full`` trains float32 weights under bf16, ``lora`` adapts bfloat16 weights,
``4bit`` is that on 4 bits, ``liger`` that with fused kernels, ``max`` with ``speed=max``. TRL 1.16
has no PPO.

run: python tests/benchmark/card.py           needs 20 GB of disk, and a card of 80 GB for full PPO
     python tests/benchmark/card.py --experiment sft_qwen_tldr --variant lora 4bit --steps 50
     python tests/benchmark/card.py --tiny    tries the script on the CPU, with two layers

Prints one markdown table: the median of tokens per second over the steps but the first, and the
most memory that PyTorch allocated. Without a CUDA card it says so and ends; nan is a case that
failed, its end is on stderr. Left out on purpose: what is learnt, a text's end, evaluation, several
cards, vLLM, and PPO beside TRL 1.12's (``ppo_gpu.py``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml
from ppo_sides import ROOT, installed

QWEN = {
    **{"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864},
    **{
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
}
PYTHIA = {
    **{
        "model_type": "gpt_neox",
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 8192,
    },
    **{"num_hidden_layers": 16, "num_attention_heads": 8, "tie_word_embeddings": False},
}
SMALL = {"vocab_size": 640, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
EXPERIMENTS = ("sft_qwen_tldr", "dpo_qwen_descriptiveness", "grpo_qwen_tldr", "ppo_pythia_tldr")
VARIANTS = {
    "full": ["peft=none", "learning_rate=1e-6"],
    "lora": ["model.dtype=bfloat16"],
    "4bit": ["model.dtype=bfloat16", "quant=4bit"],
    "liger": ["model.dtype=bfloat16", "trainer.args.use_liger_kernel=true"],
    "max": ["model.dtype=bfloat16", "speed=max"],
}
LENGTHS = (
    {"prompt": (200, 512), "completion": (20, 53)},
    {"prompt": (64, 64), "chosen": (24, 24), "rejected": (24, 24)},
)
NEEDS = {"4bit": "bitsandbytes", "liger": "liger_kernel"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--experiment", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS)
    parser.add_argument("--variant", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=20, help="of each training, at least 2")
    parser.add_argument(
        "--tiny", action="store_true", help="models of two layers, a few rows, on the CPU"
    )
    # the run beside which TRL trains alone
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        return print(json.dumps(train_plain(options.plain)))
    if not options.tiny and not torch.cuda.is_available():
        return print("no CUDA card: nothing to measure; --tiny tries the script on the CPU")
    cannot = {
        name
        for name, library in NEEDS.items()
        if not installed(library) or (options.tiny and name == "liger")
    }
    variants = [name for name in options.variant if name not in cannot]
    lines = [
        "| experiment | variant | tokens/s | TRL | peak GB | TRL |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HF_HOME"] = f"{scratch}/hf"
        for name, values in ("qwen", QWEN), ("pythia", PYTHIA), ("reward", PYTHIA):
            write_model(
                Path(scratch) / name,
                values | (SMALL if options.tiny else {}),
                scored=name == "reward",
            )
        for experiment, variant in itertools.product(options.experiment, variants):
            sides = measure(Path(scratch), experiment, variant, options)
            rates = [f"{rate:,.0f}" if rate else "-" for rate, _ in sides]
            peaks = [f"{peak:,.1f}" if peak else "-" for _, peak in sides]
            lines.append(f"| {' | '.join([experiment, variant, *rates, *peaks])} |")
            print(lines[-1], file=sys.stderr)
    used = [
        "torch",
        "transformers",
        "trl",
        "peft",
        *(NEEDS[name] for name in variants if name in NEEDS),
    ]
    print(
        "CPU, tiny models" if options.tiny else torch.cuda.get_device_name(),
        date.today(),
        sep=", ",
        end=", ",
    )
    print(
        *(f"{name} {version(name)}" for name in used),
        *(f"no {name}" for name in cannot),
        sep=", ",
        end="\n\n",
    )
    print(*lines, sep="\n")


def write_model(folder: Path, values: dict[str, Any], scored: bool) -> None:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    # one token per digit
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "runner" / "model" / "tiny")
    ends = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "eos", "bos")
    }
    kind, more = (
        (AutoModelForSequenceClassification, {"num_labels": 1})
        if scored
        else (AutoModelForCausalLM, {})
    )
    # draws a billion numbers at once
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = kind.from_config(
            AutoConfig.for_model(**values, **ends, **more), dtype=torch.bfloat16
        )
    # the words that the tokenizer knows are likelier, so that a completion has text in it
    if not scored:
        model.get_output_embeddings().weight.data[: len(tokenizer)] *= 5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_rows(path: Path, experiment: str, count: int) -> None:
    draw = random.Random(0)
    ends = LENGTHS[experiment.startswith("dpo")]
    lines = []
    for _ in range(count):
        row = {}
        for key, (shortest, longest) in ends.items():
            length = draw.randint(shortest, longest)
            row[key] = "".join(draw.choices("0123456789", k=length))
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))


def measure(
    scratch: Path, experiment: str, variant: str, options: argparse.Namespace
) -> list[list[float]]:
    """Tokens per second and peak GB of ours and of TRL's."""
    output = scratch / f"{experiment}-{variant}"
    rows = scratch / "rows.jsonl"
    ppo = experiment.startswith("ppo")
    write_rows(rows, experiment, 48 if options.tiny else 500)
    keys = {
        "experiment": experiment,
        "dataset": "local",
        "dataset.path": rows,
        "output_root": output,
    }
    keys |= {
        "dataset.split": "{train: train, eval: null}",
        "model.path": scratch / experiment.split("_")[1],
    }
    keys |= {
        "trainer.args.max_steps": options.steps,
        "trainer.args.logging_steps": 1,
        "on_memory": "stop",
    }
    keys |= {"reward": "tldr_model", "reward.model.path": scratch / "reward"} if ppo else {}
    words = [f"{key}={value}" for key, value in keys.items()]
    if not run_apart(
        ["-m", "runner", "trainer.args.save_strategy=no", *words, *VARIANTS[variant]], options.tiny
    ):
        return [[float("nan")] * 2] * 2
    (log,) = output.glob("*/*/metrics.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    plain = "[0, 0]" if ppo else run_apart([__file__, "--plain", str(log.parent)], options.tiny)
    ours = [median(rates[1:]), max(line.get("memory/peak_gb", 0) for line in lines)]
    return [ours, json.loads(plain or "[NaN, NaN]")]


def run_apart(words: list[str], tiny: bool) -> str:
    """The last line printed by a Python with these words.

    If it fails, an empty text, and the end of its output is shown.
    """
    settings = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"} | (
        {"CUDA_VISIBLE_DEVICES": ""} if tiny else {}
    )
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | settings, capture_output=True, text=True
    )
    if done.returncode:
        print(
            *words,
            f"ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}",
            file=sys.stderr,
        )
    return "" if done.returncode else done.stdout.splitlines()[-1]


def train_plain(run: Path) -> tuple[float, float]:
    """Train as a script that knows nothing of the runner but the arguments of this run."""
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        BitsAndBytesConfig,
        TrainerCallback,
    )

    class Clock(TrainerCallback):
        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any
        ) -> None:
            if "loss" in logs:
                steps.append((logs["num_tokens"], time.monotonic()))

    steps: list[tuple[float, float]] = []
    cfg = yaml.safe_load((run / "config.yaml").read_text())
    args = cfg["trainer"]["args"]
    peft = cfg["peft"]
    quant = cfg["quant"]
    path = cfg["model"]["path"]
    config, *_ = [node.pop("_target_").removeprefix("trl.") for node in (args, peft, quant) if node]
    args |= {
        "output_dir": str(run / "plain"),
        "seed": cfg["seed"],
        "report_to": "none",
        "disable_tqdm": True,
    }
    if config == "DPOConfig":  # TRL cannot group pairs by length: they have no input_ids
        args.pop("train_sampling_strategy", None)
    args |= (
        {}
        if torch.cuda.is_available()
        else {"use_cpu": True, "bf16": False, "activation_checkpointing": False}
    )
    loaded = {"quantization_config": BitsAndBytesConfig(**quant)} if quant else {}
    rewards = {"reward_funcs": lambda completions, **_: [len(set(text)) for text in completions]}
    dtype = getattr(torch, cfg["model"]["dtype"])
    trainer_class = getattr(trl, config.replace("Config", "Trainer"))
    trainer = trainer_class(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **loaded),
        args=getattr(trl, config)(**args),
        train_dataset=Dataset.from_json(cfg["dataset"]["path"]),
        processing_class=AutoTokenizer.from_pretrained(path),
        peft_config=LoraConfig(**peft, task_type="CAUSAL_LM") if peft else None,
        callbacks=[Clock()],
        **(rewards if config == "GRPOConfig" else {}),
    )
    trainer.train()
    rates = [
        (count - less) / (now - then) for (less, then), (count, now) in itertools.pairwise(steps)
    ]
    return median(
        rates
    ), torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


if __name__ == "__main__":
    main()
