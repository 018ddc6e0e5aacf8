"""Batches: the collator that makes them, the weights of their tokens, and the loss that is minimised."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from runner.config.build import asked_for, build, locate, serve
from runner.schema import upstream
from runner.schema.text import Node, named

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments

    from runner.collator import Collator
    from runner.dataset.weigh import Entry

    BoundRule: TypeAlias = functools.partial[Sequence[Entry]]


def build_collator(
    node: Node | None, tokenizer: PreTrainedTokenizerBase, inner: Collator | None = None
) -> Collator | None:
    """The configured collator, served with the tokenizer under whatever name it takes it; None is the trainer's own.

    One that asks for the trainer's own as ``inner`` is built with it alone, any other without it.
    """
    if node is None or ("inner" in asked_for(node["_target_"])) != (inner is not None):
        return None
    served = {"tokenizer": tokenizer, upstream.PROCESSING_CLASS: tokenizer, "pad_token_id": tokenizer.pad_token_id}
    served |= {"inner": inner}
    return serve(node, **{name: part for name, part in served.items() if name not in node})


def build_loss(node: Node | None) -> Callable[..., object] | None:
    """The configured loss: a function with its settings bound, or an instance of a class that is called.

    One of torch's own averages nothing unless its config says so, because batches are averaged by their tokens.
    """
    if not node:
        return None
    if not inspect.isclass(locate(node["_target_"])):
        return build(dict(node) | {"_partial_": True})
    unaveraged = {"reduction": "none"} if "reduction" in asked_for(node["_target_"]) else {}
    return build(unaveraged | dict(node))


def build_rules(node: Node | None) -> list[BoundRule]:
    """The configured rules of token weights, which multiply."""
    return [build(dict(entry) | {"_partial_": True}) for entry in named(node or {}, "weight").values() if entry]


def columns_asked_for(rules: list[BoundRule]) -> list[str] | None:
    """The columns that rules read, for a dataset to keep; None where they read none."""
    if not rules:
        return None
    from runner.dataset.detect import EVERY
    from runner.dataset.weigh import columns_of

    names = set().union(*map(columns_of, rules))
    return [EVERY] if "row" in names else sorted(names) or None


@contextlib.contextmanager
def packed_later(args: TrainingArguments | None) -> Iterator[dict[str, Any] | None]:
    """Keep a trainer from packing rows while it is built; gives the settings with which it would have done it.

    Its own packing keeps token ids and labels only, and the weights would be lost.
    """
    if args is None or not getattr(args, upstream.PACKING, False):
        yield None
        return
    pack = {"seq_length": args.max_length, "strategy": args.packing_strategy, "shuffle": args.shuffle_dataset}
    changed = {upstream.PACKING: False, "max_length": None}
    changed[upstream.PADDING_FREE] = args.padding_free or pack["strategy"] != "wrapped"
    before = {name: getattr(args, name) for name in changed}
    vars(args).update(changed)
    try:
        yield pack
    finally:
        vars(args).update(before)


def set_weights(trainer: Trainer, rules: list[BoundRule], pack: Mapping[str, Any] | None) -> None:
    """Give every token of the trainer's rows its weight, and have the trainer's batches carry them."""
    from runner.dataset.weigh import Weigher, WeightCollator, pack_rows, rotate_weights, weigh_rows
    from runner.io.files import source_hash
    from runner.training.precompute import map_sets

    args, weigher = trainer.args, Weigher(rules, trainer.processing_class)
    key = str([(source_hash(rule), sorted(rule.keywords.items())) for rule in rules])

    def weighed(rows: Dataset) -> Dataset:
        rows = weigh_rows(rows, weigher, key, args.dataset_num_proc)
        if getattr(trainer, "calculate_KL", False):
            rows = rotate_weights(rows, args.per_device_train_batch_size)
        return pack_rows(rows, args.seed, **pack) if pack else rows

    with args.main_process_first(desc="weights of tokens"):
        trainer.train_dataset = weighed(trainer.train_dataset)
        trainer.eval_dataset = map_sets(weighed, trainer.eval_dataset)
    trainer.data_collator = WeightCollator(trainer.data_collator)
    args.remove_unused_columns = False  # or the weights would be among them
