"""The control of the other scripts.

TRL's own trainer on the same rows and model, resumed as documented.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def main(words: list[str]) -> int:
    """Train the eight steps, from the newest checkpoint where there is one, and save the model.

    The words are fields of its config, ``<name>=<JSON>``.
    """
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    rows = load_dataset("json", data_files="rows/train.jsonl", split="train[:64]")
    rows = rows.map(
        lambda row: {"prompt": row["prompt"], "completion": row["chosen"]},
        remove_columns=rows.column_names,
    )
    fields = {
        "output_dir": "outputs/plain",
        "max_steps": 8,
        "save_steps": 2,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "bf16": False,
        "report_to": [],
        "save_total_limit": 2,
        "use_cpu": True,
    }
    for word in words:
        name, _, text = word.partition("=")
        fields[name] = json.loads(text)
    args = SFTConfig(**fields)
    trainer = SFTTrainer("start", args, train_dataset=rows)
    begun = os.path.isdir("outputs/plain") and any(Path("outputs/plain").glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=begun)
    trainer.save_model("outputs/plain/model")
    return 0
