"""The components of a training as one object, which ``build_components`` makes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

from datasets import Dataset
from peft import PeftConfig
from transformers import (
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from runner.dataset.loaded_rows import HeldOut
from runner.generate.sampler import Model
from runner.io.files import JsonObject
from runner.tracker.callback import PostponedEnd, Tracker
from runner.training.checkpoint import Seal
from runner.training.components.scorers import Reward
from runner.training.health import Health


@dataclass
class Components:
    """The parts of a training that others than the trainer need.

    Rows and models are as they were before the trainer prepared or wrapped them.
    """

    args: TrainingArguments
    tokenizer: PreTrainedTokenizerBase
    train_rows: Dataset
    held_out: HeldOut
    trainer: Trainer
    health: Health
    seal: Seal
    trackers: list[Tracker | PostponedEnd]  # the trainer's callbacks that log to one
    adjustments: list[JsonObject]

    @contextmanager
    def trackers_closed(self) -> Iterator[None]:
        """End the trackers' runs when the body is over, however it ends; in the first process."""
        with ExitStack() as stack:
            for tracker in self.trackers if self.trainer.is_world_process_zero() else ():
                stack.push(lambda kind, *_, tracker=tracker: tracker.close(finished=kind is None))
            yield


class OfferedParts(TypedDict, total=False):
    """The parts that a trainer's constructor may name; it is given those that it does."""

    model: Model | str
    ref_model: Model | None
    args: TrainingArguments
    processing_class: object  # the tokenizer, or the processor of a model that reads media
    reward_funcs: list[Reward]
    train_dataset: Dataset
    eval_dataset: HeldOut
    peft_config: PeftConfig | None
    data_collator: Callable[..., dict[str, Any]] | None
    callbacks: list[TrainerCallback]
