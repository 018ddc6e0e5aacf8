"""Batches of rows of similar length for each trainer with token rows, in an order that depends on
the epoch alone.
"""

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from runner.training.components.row_order import EpochOrder, group_lengths


def order_of(epoch, seed=0, *, drawn_before=0):
    """The rows of an epoch in their order, by a sampler that is new, as after a resume."""
    torch.rand(drawn_before)
    sampler = LengthGroupedSampler(4, lengths=[number % 7 for number in range(40)])
    loader = DataLoader(range(40), batch_size=4, sampler=sampler)
    args = TrainingArguments(seed=seed, report_to=[])
    EpochOrder().on_epoch_begin(args, TrainerState(epoch=epoch), None, train_dataloader=loader)
    return list(sampler)


def test_the_order_of_an_epoch_depends_on_no_earlier_draw():
    first = order_of(1.0)
    assert order_of(1.5, drawn_before=9) == first
    assert order_of(0.0) != first != order_of(1.0, seed=1)
    assert sorted(first) == list(range(40))


def test_rows_of_several_texts_get_the_length_of_all(tmp_path):
    args = TrainingArguments(
        output_dir=tmp_path, train_sampling_strategy="group_by_length", report_to=[]
    )
    ids = {
        "prompt_ids": [[1], [1, 2]],
        "chosen_ids": [[3, 4], [5]],
        "rejected_ids": [[6], [7, 8, 9]],
    }
    pairs = Dataset.from_dict(ids | {"text": ["a", "b"]})
    alone = Dataset.from_dict({"input_ids": [[1], [2]]})
    trainer = Trainer(torch.nn.Linear(1, 1), args, train_dataset=pairs, eval_dataset={"one": alone})
    group_lengths(trainer)
    assert trainer.train_dataset["length"] == [4, 6]
    assert trainer.eval_dataset["one"].column_names == ["input_ids"]
    assert "length" in next(iter(DataLoader(trainer.train_dataset, collate_fn=list)))[0]
    assert not args.remove_unused_columns


def test_without_grouping_nothing_changes(tmp_path):
    rows = Dataset.from_dict({"chosen_ids": [[1]]})
    trainer = Trainer(
        torch.nn.Linear(1, 1),
        TrainingArguments(output_dir=tmp_path, report_to=[]),
        train_dataset=rows,
    )
    before = len(trainer.callback_handler.callbacks)
    group_lengths(trainer)
    assert trainer.train_dataset is rows
    assert len(trainer.callback_handler.callbacks) == before
