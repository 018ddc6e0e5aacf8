"""The components of a training as one object, for those who use them; ``build_components`` makes it."""

from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments

from runner.dataset.load import HeldOut
from runner.tracker.callback import Tracker
from runner.training.checkpoint import Seal
from runner.training.health import Health


@dataclass
class Components:
    """The parts of a training that others than the trainer need, as they were before it put its own around them."""

    args: TrainingArguments
    tokenizer: PreTrainedTokenizerBase
    train_rows: Dataset
    held_out: HeldOut
    trainer: Trainer
    health: Health
    seal: Seal
    trackers: list[Tracker]  # those of the trainer's callbacks that log to one
    adjustments: list[dict[str, Any]]
