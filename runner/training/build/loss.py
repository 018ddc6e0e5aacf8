"""Batches: the collator that makes them, the weights of their tokens, and the loss that is minimised."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.build import asked_for, build, locate, serve
from runner.schema.text import named


def build_collator(node: Mapping[str, Any] | None, tokenizer: Any) -> Any:
    """The configured collator, served with the tokenizer under whatever name it takes it.

    None is the trainer's own, also where the configured one asks for that as ``inner``, to come around it later.
    """
    if node is None or "inner" in asked_for(node["_target_"]):
        return None
    return _collator(node, tokenizer)


def _collator(node: Mapping[str, Any], tokenizer: Any, **more: Any) -> Any:
    served = {"tokenizer": tokenizer, "processing_class": tokenizer, "pad_token_id": tokenizer.pad_token_id} | more
    return serve(node, **{name: part for name, part in served.items() if name not in node})


def set_collator(trainer: Any, node: Mapping[str, Any] | None, tokenizer: Any) -> None:
    """Put a collator that asks for the trainer's own around it."""
    if node is not None and "inner" in asked_for(node["_target_"]):
        trainer.data_collator = _collator(node, tokenizer, inner=trainer.data_collator)


def build_loss(node: Mapping[str, Any] | None) -> Any:
    """The configured loss: a function with its settings bound, or an instance of a class that is called.

    One of torch's own averages nothing unless it is told to, because batches are averaged by their tokens.
    """
    if not node:
        return None
    if not inspect.isclass(locate(node["_target_"])):
        return build(dict(node) | {"_partial_": True})
    unaveraged = {"reduction": "none"} if "reduction" in asked_for(node["_target_"]) else {}
    return build(unaveraged | dict(node))


def build_rules(node: Mapping[str, Any] | None) -> list[Any]:
    """The configured rules of token weights, which multiply."""
    return [build(dict(entry) | {"_partial_": True}) for entry in named(node or {}, "weight").values() if entry]


def columns_asked_for(rules: list[Any]) -> list[str] | None:
    """The columns that rules read, as datasets are told of them; None where they read none."""
    if not rules:
        return None
    from runner.dataset.detect import EVERY
    from runner.dataset.weigh import columns_of

    names = set().union(*map(columns_of, rules))
    return [EVERY] if "row" in names else sorted(names) or None


@contextlib.contextmanager
def packed_later(args: Any) -> Iterator[dict[str, Any] | None]:
    """Have a trainer that packs rows leave that to us while it is built, and say how it would have done it.

    Its own packing keeps token ids and labels only, and the weights would be lost.
    """
    if not getattr(args, "packing", False):
        yield None
        return
    pack = {"seq_length": args.max_length, "strategy": args.packing_strategy}
    ours = {"packing": False, "max_length": None, "padding_free": args.padding_free or pack["strategy"] != "wrapped"}
    theirs = {name: getattr(args, name) for name in ours}
    vars(args).update(ours)
    try:
        yield pack | {"shuffle": args.shuffle_dataset}
    finally:
        vars(args).update(theirs)


def set_weights(trainer: Any, rules: list[Any], pack: Mapping[str, Any] | None) -> None:
    """Give every token of the trainer's rows its weight, and have the trainer's batches carry them."""
    from runner.dataset.weigh import Weigher, WeightCollator, pack_rows, rotate_weights, weigh_rows
    from runner.io.files import source_hash

    args, weigher = trainer.args, Weigher(rules, trainer.processing_class)
    key = str([(source_hash(rule), sorted(rule.keywords.items())) for rule in rules])

    def weighed(rows: Any) -> Any:
        rows = weigh_rows(rows, weigher, key, args.dataset_num_proc)
        if getattr(trainer, "calculate_KL", False):
            rows = rotate_weights(rows, args.per_device_train_batch_size)
        return pack_rows(rows, args.seed, **pack) if pack else rows

    with args.main_process_first(desc="weights of tokens"):
        trainer.train_dataset, held_out = weighed(trainer.train_dataset), trainer.eval_dataset
        if isinstance(held_out, Mapping):
            trainer.eval_dataset = {name: weighed(rows) for name, rows in held_out.items()}
        elif held_out is not None:
            trainer.eval_dataset = weighed(held_out)
    trainer.data_collator = WeightCollator(trainer.data_collator)
    args.remove_unused_columns = False  # or the weights would be among them
