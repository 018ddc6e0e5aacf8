"""A run of ours beside the equivalent TRL script: the same losses and weights, bit for bit.

    python tests/fault/equal.py [TRAINER ...]    trains each of TRL's trainers in both ways

The script has the fields of the config that the run has, makes its rows of the file, and leaves the
rest to TRL. So online trainers sample by transformers on both sides, and padding is computed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset, load_dataset
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    set_seed,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from needs import ON_CPU, TRAINERS, needed

from runner.dataset.load import load_rows
from runner.io.files import shipped
from runner.io.turns import text_of
from runner.reward.rule import sorted_digits
from runner.run import Run
from runner.run.history import read_metrics

# For a machine without a GPU; TRL assumes one.
HERE = {
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "report_to": [],
    "save_strategy": "no",
}


def reward(prompts: list[Any], completions: list[Any], digits: list[str], **_: Any) -> list[float]:
    """The reward of the sorting task as a function of TRL's."""
    return sorted_digits(completions, digits)


# The columns of a preference row, in the names of our forms.
FORMS = {
    "preference": lambda row: {name: row[name] for name in ("prompt", "chosen", "rejected")},
    "demonstration": lambda row: {"prompt": row["prompt"], "completion": row["chosen"]},
    "messages": lambda row: {"messages": row["prompt"] + row["chosen"]},
    "triple": lambda row: FORMS["preference"](row) | {"reference": row["chosen"]},
    "prompt": lambda row: {
        "prompt": row["prompt"],
        "digits": row["digits"],
        "reference": text_of(row["chosen"]),
    },
}


def rows_of(cfg: dict[str, Any]) -> Dataset:
    """The training rows.

    Both sides of a preference are shuffled as ours are, because TRL shuffles none.
    """
    node = cfg["dataset"]
    form = cfg["trainer"]["form"]
    if form not in FORMS:
        return load_rows(
            node["path"], form=node["form"], limit=node["limit"], to=form, seed=cfg["seed"]
        )[0]
    rows = load_dataset("json", data_files=f"{shipped(node['path'])}/train.jsonl", split="train")
    rows = rows.shuffle(seed=cfg["seed"]).select(range(node["limit"]["train"]))
    rows = rows.map(FORMS[form], remove_columns=rows.column_names)
    return (
        rows.rename_column("reference", column)
        if (column := cfg["trainer"].get("reference_column"))
        else rows
    )


def train_plainly(cfg: dict[str, Any], folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and weights of TRL's trainer with rows and fields of a frozen configuration."""

    def find(target: str) -> Any:
        module, _, name = target.rpartition(".")
        return getattr(import_module(module), name)

    node = cfg["trainer"]
    path = shipped(cfg["model"]["path"])
    set_seed(cfg["seed"])
    fields = {name: value for name, value in node["args"].items() if name != "_target_"}
    args = find(node["args"]["_target_"])(output_dir=str(folder), seed=cfg["seed"], **HERE | fields)
    parts: dict[str, Any] = {"processing_class": AutoTokenizer.from_pretrained(path)}
    if node["head"] == "score":
        parts["model"] = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
    else:
        parts["model"] = AutoModelForCausalLM.from_pretrained(path)
    if cfg["reward"]:
        parts["reward_funcs"] = reward
    if teacher := node.get("teacher_model"):
        parts["teacher_model"] = AutoModelForCausalLM.from_pretrained(shipped(teacher["path"]))
    trainer = find(node["_target_"])(args=args, train_dataset=rows_of(cfg), **parts)
    trainer.train()
    trainer.save_model(str(folder))
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return losses, load_file(folder / "model.safetensors")


def differences(run: Run, folder: Path) -> list[str]:
    """The losses and weights in which a finished run differs from the script, bit for bit."""
    losses, weights = train_plainly(run.cfg, folder)
    ours = load_file(run.model / "model.safetensors")
    losses_found = [line["loss"] for line in read_metrics(run.metrics) if "loss" in line]
    lines = [f"losses {losses_found} and {losses}"] if losses_found != losses else []
    names = sorted({*ours, *weights})
    return lines + [
        name
        for name in names
        if name not in ours.keys() & weights or not ours[name].equal(weights[name])
    ]


def main(trainers: list[str]) -> int:
    from runner.__main__ import main as command

    trainer_names = [name for name in ON_CPU if TRAINERS[name]["_target_"].startswith("trl.")]
    few = [
        "trainer.args.max_steps=3",
        "trainer.args.logging_steps=1",
        "trainer.args.per_device_train_batch_size=8",
    ]
    few += ["dataset.limit.train=200", "dataset.limit.eval=16", "metric=none", "learning_rate=1e-3"]
    bad = 0
    with TemporaryDirectory() as place:

        def train(name: str, *words: str) -> Run | None:
            code = command(
                [f"trainer={name}", *few, *words, f"name={name}", f"output_root={place}"]
            )
            return None if code else Run(next(Path(place, name).glob("*-*")))

        for name in trainers or trainer_names:
            settings = (*needed(name), "trainer.skip_padding=false")
            if "sampler" in TRAINERS[name]:
                settings += ("trainer.sampler=transformers",)  # as in the script
            if name == "a2po":  # it samples answers of held-out rows before it trains
                settings += ("dataset.split.eval=null",)
            if "teacher_model" in TRAINERS[name]:
                teacher = train("sft", "learning_rate=1e-2").model
                settings = (*needed(name, teacher), "trainer.skip_padding=false")
            run = train(name, *settings)
            differing = differences(run, Path(place, f"{name}-plain")) if run else ["it failed"]
            bad += bool(differing)
            print(f"{name:<14}{'; '.join(differing[:3]) or 'the same bits'}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
