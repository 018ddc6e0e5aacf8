"""The weights of a trainer's tokens, by the configured rules."""

import functools
from collections.abc import Sequence
from typing import TypeAlias

from datasets import Dataset
from transformers import Trainer

from runner.config.build import build
from runner.dataset.detect import EVERY
from runner.dataset.weigh import Entry, columns_of
from runner.dataset.weighed_rows import (
    WeightCollator,
    pack_rows,
    rotate_weights,
    warn_of_idle_rules,
    weigh_rows,
)
from runner.dataset.weigher import Weigher
from runner.model.encoding import tokenizer_of
from runner.schema.code import code_hash
from runner.schema.text import Node, named
from runner.training.precompute import map_sets

BoundRule: TypeAlias = functools.partial[Sequence[Entry]]


def build_rules(node: Node | None) -> list[BoundRule]:
    """The configured rules of token weights, which multiply."""
    rules = []
    for rule in named(node or {}, "weight").values():
        if rule:
            rules.append(build({**rule, "_partial_": True}))
    return rules


def columns_asked_for(rules: list[BoundRule]) -> list[str] | None:
    """The columns that rules read, for a dataset to keep; None where they read none."""
    names = set[str]()
    for rule in rules:
        names |= columns_of(rule)
    if "row" in names:
        return [EVERY]
    return sorted(names) or None


def set_weights(trainer: Trainer, rules: list[BoundRule]) -> None:
    """Give every token of the trainer's rows its weight, and have its batches carry the weights.

    The rows are packed here where that is asked for, because the trainer's own packing would lose
    the weights.
    """
    args = trainer.args
    weigher = Weigher(rules, tokenizer_of(trainer.processing_class))
    key = str([(code_hash(rule), sorted(rule.keywords.items())) for rule in rules])

    def with_weights(rows: Dataset) -> Dataset:
        rows = weigh_rows(rows, weigher, key, args.dataset_num_proc)
        if getattr(trainer, "calculate_KL", False):
            rows = rotate_weights(rows, args.per_device_train_batch_size)
        if getattr(args, "packing", False):
            rows = pack_rows(
                rows,
                args.seed,
                seq_length=args.max_length,
                strategy=args.packing_strategy,
                shuffle=args.shuffle_dataset,
            )
        return rows

    unweighted = trainer.train_dataset
    with args.main_process_first(desc="weights of tokens"):
        trainer.train_dataset = with_weights(unweighted)
        trainer.eval_dataset = map_sets(with_weights, trainer.eval_dataset)
    if args.process_index == 0:  # once, not by each process
        warn_of_idle_rules(unweighted, weigher)
    trainer.data_collator = WeightCollator(trainer.data_collator)
    args.remove_unused_columns = False  # or the weights would be among them
