"""The control of ``bad_input``.

On some of its cases TRL's own trainers end with 0 and have done harm.

Each is one training of a few steps on the shipped model in a process that has imported everything;
what it did is measured from what it logged and from its weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bad_input_cases import FOUR, PAIR, Content, edited, model, write
from warm import Warm

PAIRS = [PAIR | {"prompt": f"{number}+1="} for number in range(8)]
FIELDS = {
    **{
        "output_dir": "out",
        "max_steps": 6,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "bf16": False,
    },
    **{
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "learning_rate": 1e-3,
        "disable_tqdm": True,
    },
}
CRASHED = -11  # a segmentation fault


@dataclass(frozen=True)
class Control:
    """A training as TRL's documentation has it, and what proves the harm in its result."""

    name: str
    harm: str
    shows: Callable[[Mapping[str, Any]], bool] = lambda facts: True
    fields: Mapping[str, Any] = field(default_factory=dict)
    rows: Content = field(default_factory=lambda: FOUR * 2)
    kind: str = "SFT"
    model: Mapping[str, Content] = field(default_factory=model)
    code: int = 0


def margins_fall(facts: Mapping[str, Any]) -> bool:
    chosen, rejected = (facts[f"logps/{side}"] for side in ("chosen", "rejected"))
    return (
        chosen[-1] - rejected[-1] < chosen[0] - rejected[0] and facts["loss"][-1] < facts["loss"][0]
    )


def is_coin(facts: Mapping[str, Any]) -> bool:
    """True if every loss is that of a coin: the logarithm of 2."""
    return all(abs(loss - 0.6931) < 1e-3 for loss in facts["loss"])


CONTROLS = [
    Control(
        "learning rate 0",
        "no weight has changed",
        lambda facts: not facts["changed"],
        {"learning_rate": 0.0},
    ),
    Control(
        "0 epochs",
        "not one step, and a model is saved",
        lambda facts: facts["steps"] == 0 and facts["saved"],
        {"max_steps": -1, "num_train_epochs": 0},
    ),
    Control(
        "warm-up of all steps",
        "the learning rate never comes near",
        lambda facts: max(facts["learning_rate"]) < 0.1 * FIELDS["learning_rate"],
        {"warmup_steps": 100},
    ),
    Control(
        "DPO with beta negative",
        "the loss falls, and what was rejected becomes likelier",
        margins_fall,
        {"beta": -0.1},
        PAIRS,
        "DPO",
    ),
    Control("DPO with beta 0", "the loss is that of a coin", is_coin, {"beta": 0.0}, PAIRS, "DPO"),
    Control(
        "pairs of equals alone",
        "the loss is that of a coin",
        is_coin,
        rows=[pair | {"rejected": pair["chosen"]} for pair in PAIRS],
        kind="DPO",
    ),
    Control(
        "empty completion",
        "it learns to say nothing",
        lambda facts: facts["loss"][-1] < facts["loss"][0],
        rows=[row | {"completion": ""} for row in FOUR] * 2,
    ),
    Control(
        "more layers in the config",
        "half of the layers are random, and trained",
        lambda facts: facts["changed"],
        model=model(edited("config.json", num_hidden_layers=4)),
    ),
    Control(
        "first line null",
        "the interpreter crashes",
        rows=b"null\n" + json.dumps(FOUR[0]).encode(),
        code=CRASHED,
    ),
]


def run_controls(warm: Warm, folder: Path) -> int:
    """Print a line for each; return the number that did no harm."""
    lost = 0
    for control in CONTROLS:
        work = folder / control.name.replace(" ", "-")
        work.mkdir(parents=True)
        for name, content in {**control.model, "rows.jsonl": control.rows}.items():
            write(work / name, content)
        words = [
            control.kind,
            *(f"{name}={json.dumps(value)}" for name, value in control.fields.items()),
        ]
        environment = dict(os.environ) | {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "hf"),
            "OMP_NUM_THREADS": "1",
        }
        done = warm.start(words, work, environment, door="bad_input_control:main").wait()
        facts = work / "facts.json"
        shown = done.returncode == control.code and (
            not facts.exists() or control.shows(json.loads(facts.read_text()))
        )
        lost += not shown
        print(
            f"{'harm' if shown else 'MISS':<4} {control.name:<44} "
            f"{done.returncode:>3} {control.harm}",
            flush=True,
        )
        if not shown:
            print(
                "".join(
                    f"       > {line}\n" for line in (done.stdout + done.stderr).splitlines()[-12:]
                ),
                end="",
            )
    return lost


def main(words: list[str]) -> int:
    """Train by SFT or DPO, as the first word says; config fields are given as ``<name>=<JSON>``."""
    import torch
    import trl
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM

    kind, *rest = words
    rows = load_dataset("json", data_files="rows.jsonl", split="train")
    fields = dict(FIELDS)
    for word in rest:
        name, _, text = word.partition("=")
        fields[name] = json.loads(text)
    policy = AutoModelForCausalLM.from_pretrained("m", dtype=torch.float32)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    args = getattr(trl, f"{kind}Config")(**fields)
    trainer = getattr(trl, f"{kind}Trainer")(policy, args=args, train_dataset=rows)
    trainer.train()
    trainer.save_model("out/model")
    log = trainer.state.log_history
    facts: dict[str, list[object]] = {}
    for entry in log:
        for name, value in entry.items():
            facts.setdefault(name, []).append(value)
    facts |= {
        "steps": trainer.state.global_step,
        "saved": Path("out/model/model.safetensors").is_file(),
    }
    facts["changed"] = any(
        not torch.equal(before[name], value) for name, value in policy.state_dict().items()
    )
    Path("facts.json").write_text(json.dumps(facts))
    return 0
