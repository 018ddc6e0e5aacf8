"""Rows of about one length in a batch, which pads little: for every trainer whose rows are tokens, in an exact order.

The library knows the lengths of rows with one text alone, and draws the order of an epoch from the state that torch's
generator happens to have; a run that goes on from within an epoch has it no more.
"""

import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_pt_utils import LengthGroupedSampler

from runner.schema import upstream
from runner.training.precompute import map_sets


class EpochOrder(TrainerCallback):
    """Has the order of an epoch drawn from the seed and its number."""

    def on_epoch_begin(self, args, state: TrainerState, control, train_dataloader: object, **_) -> None:
        sampler = train_dataloader
        for name in ("batch_sampler", "batch_sampler", "sampler"):  # of several processes each has a share of batches
            sampler = getattr(sampler, name, sampler)
        if isinstance(sampler, LengthGroupedSampler):
            seed = args.seed if args.data_seed is None else args.data_seed
            sampler.generator = torch.Generator().manual_seed(seed + int(state.epoch or 0))


def group_lengths(trainer: Trainer) -> None:
    """Give rows of several texts a length, and each epoch an order of its own, if rows are grouped by length."""
    args = trainer.args
    if args.train_sampling_strategy not in upstream.OTHER_STEPS[upstream.TRAIN_SAMPLING_STRATEGY]:
        return

    def measured(rows: Dataset) -> Dataset:
        names = [name for name in getattr(rows, "column_names", None) or () if name.endswith("_ids")]
        if not isinstance(rows, Dataset) or not names or "input_ids" in names:
            return rows
        args.remove_unused_columns = False  # or the lengths would be among them
        texts = (rows.with_format("arrow")[name] for name in names)
        return rows.add_column(args.length_column_name, [sum(map(len, row)) for row in zip(*texts, strict=True)])

    trainer.train_dataset = measured(trainer.train_dataset)
    trainer.eval_dataset = map_sets(measured, trainer.eval_dataset)
    trainer.add_callback(EpochOrder())
