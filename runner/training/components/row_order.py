"""The order of rows that are grouped by their lengths."""

from typing import Any

import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from runner.schema import upstream
from runner.training.precompute import map_sets


class EpochOrder(TrainerCallback):
    """Draws the order of an epoch from the seed and its number, so that a resume has it again.

    The library draws it from the state that torch's generator happens to have.
    """

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: object,
        **_: object,
    ) -> None:
        sampler: Any = train_dataloader
        # Where there are several processes, each has a sampler of its share around that of batches.
        for name in ("batch_sampler", "batch_sampler", "sampler"):
            sampler = getattr(sampler, name, sampler)
        if isinstance(sampler, LengthGroupedSampler):
            seed = args.seed if args.data_seed is None else args.data_seed
            sampler.generator = torch.Generator().manual_seed(seed + int(state.epoch or 0))


def group_lengths(trainer: Trainer) -> None:
    """Give rows of several texts a length, and each epoch an order of its own.

    The library knows the length of rows with one text alone.
    """
    args = trainer.args
    if args.train_sampling_strategy not in upstream.OTHER_STEPS["train_sampling_strategy"]:
        return

    def with_lengths(rows: Dataset) -> Dataset:
        if not isinstance(rows, Dataset):
            return rows
        columns = [name for name in rows.column_names if name.endswith("_ids")]
        if not columns or "input_ids" in columns:
            return rows
        args.remove_unused_columns = False  # or the lengths would be among them
        arrow_rows = rows.with_format("arrow")
        lengths = [0] * len(rows)
        for column in columns:
            for index, ids in enumerate(arrow_rows[column]):
                lengths[index] += len(ids)
        return rows.add_column(args.length_column_name, lengths)

    trainer.train_dataset = with_lengths(trainer.train_dataset)
    trainer.eval_dataset = map_sets(with_lengths, trainer.eval_dataset)
    trainer.add_callback(EpochOrder())
