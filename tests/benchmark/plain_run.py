"""A plain TRL script that does what a run of ours does, for ``overhead.py``.

It scores the held-out rows before and after training, by the trainer's own loss and by answers that
are right; saves a checkpoint and the model; draws the same curves; and writes its scores. What it
leaves out: checks, a manifest with hashes, alarms, and a resume.

run: python tests/benchmark/plain_run.py dpo MODEL ROWS_FOLDER 10 8 OUT_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset, load_dataset
from matplotlib.figure import Figure

HELD_OUT = 100  # rows
EVAL_BATCH = 32
SAMPLED = {"max_new_tokens": 64, "do_sample": True, "temperature": 1.0, "top_k": 0}
# The pictures of a run, each with the metrics that share it, of held-out rows too.
PICTURES = {
    "loss": ["loss"],
    "entropy": ["entropy"],
    "reward": ["rewards/margins", "rewards/chosen", "rewards/rejected"],
    "accuracy": ["mean_token_accuracy", "rewards/accuracies"],
    "learning_rate": ["learning_rate"],
    "grad_norm": ["grad_norm"],
    "exact": ["exact"],
}


def main() -> None:
    kind, model_path, rows, steps, batch, out = sys.argv[1:]
    folder = Path(out)
    config_class = getattr(trl, f"{kind.upper()}Config")
    trainer_class = getattr(trl, f"{kind.upper()}Trainer")
    args = config_class(
        str(folder),
        max_steps=int(steps),
        per_device_train_batch_size=int(batch),
        per_device_eval_batch_size=EVAL_BATCH,
        learning_rate=1e-4,
        seed=0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="steps",
        save_steps=int(steps),
        logging_first_step=kind == "dpo",
        disable_tqdm=True,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    trainer = trainer_class(
        transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype="float32"),
        args=args,
        train_dataset=read_rows(kind, f"{rows}/train.jsonl"),
        eval_dataset=read_rows(kind, f"{rows}/eval.jsonl").select(range(HELD_OUT)),
        processing_class=tokenizer,
    )
    questions = load_dataset("json", data_files=f"{rows}/eval.jsonl", split="train")
    questions = questions.select(range(HELD_OUT))
    scores = {"before": score(trainer, tokenizer, questions)}
    trainer.train()
    scores["after"] = score(trainer, tokenizer, questions)
    trainer.save_model(str(folder / "model"))
    draw_curves(trainer.state.log_history, folder / "plots")
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    (folder / "scores.json").write_text(json.dumps(scores | {"losses": losses}))


def read_rows(kind: str, file: str) -> Dataset:
    """The rows of a file in the form of a trainer."""
    rows = load_dataset("json", data_files=file, split="train").remove_columns("digits")
    if kind == "sft":
        rows = rows.rename_column("chosen", "completion").remove_columns("rejected")
    return rows


def score(trainer: Any, tokenizer: Any, questions: Dataset) -> dict[str, float]:
    """The held-out figures of the trainer, and the share of sampled answers that are right."""
    figures: dict[str, float] = trainer.evaluate()
    tokenizer.padding_side = "left"
    right = 0
    for start in range(0, len(questions), EVAL_BATCH):
        rows = questions.select(range(start, min(start + EVAL_BATCH, len(questions))))
        inputs = tokenizer.apply_chat_template(
            list(rows["prompt"]),
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.no_grad():
            answers = trainer.model.generate(**inputs, **SAMPLED)
        width = inputs["input_ids"].shape[1]
        texts = tokenizer.batch_decode(answers[:, width:], skip_special_tokens=True)
        for text, chosen in zip(texts, rows["chosen"], strict=True):
            right += text.strip() == chosen[0]["content"].strip()
    figures["eval_exact"] = right / len(questions)
    step = trainer.state.global_step
    trainer.state.log_history.append({"step": step, "eval_exact": figures["eval_exact"]})
    return figures


def draw_curves(history: list[dict[str, float]], folder: Path) -> None:
    """A picture for each kind of metric, of training and of held-out rows."""
    folder.mkdir()
    for name, metrics in PICTURES.items():
        figure = Figure(figsize=(5.2, 3.2))
        axes = figure.add_subplot()
        for metric in metrics:
            for key in (metric, f"eval_{metric}"):
                lines = [line for line in history if key in line]
                steps = [line["step"] for line in lines]
                if steps:
                    values = [line[key] for line in lines]
                    axes.plot(steps, values, marker="o", label=key)
        axes.set_xlabel("step")
        axes.set_ylabel(name)
        axes.grid()
        axes.legend()
        if axes.lines:
            figure.savefig(folder / f"{name}.png", dpi=160)


if __name__ == "__main__":
    main()
