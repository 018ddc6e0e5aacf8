"""Reference log-probabilities that are computed once for all runs with the same rows, reference and lengths.

TRL keeps what it precomputes beside the rows, under the fingerprint of the prepared rows and the reference's weights.
Yet a run never finds what another has left: where TRL drops rows that are too long, the fingerprint takes in every
argument of the run, its learning rate and its folder too. Without a maximal length it would take in none, not even
those on which the log-probabilities depend. So the rows come in under a fingerprint that holds exactly these, the
length is left to the collator, as TRL does it anyway, and rows that are too long are dropped afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from datasets import Dataset
from transformers import TrainingArguments

# Of the arguments that every trainer has, those on which a log-probability depends; of TRL's own all but these two.
KEPT = ("bf16", "fp16", "tf32", "use_cpu", "per_device_train_batch_size", "per_device_eval_batch_size")
FREE = ("beta", "learning_rate")


def is_shared(offered: Mapping[str, Any]) -> bool:
    """True where a trainer precomputes its reference in a way that other runs could use."""
    args, rows = offered["args"], [offered["train_dataset"], *_sets(offered["eval_dataset"])]
    return (
        getattr(args, "precompute_ref_log_probs", False)
        and args.max_length is not None
        and offered["data_collator"] is None
        and offered["processing_class"].pad_token_id is not None
        and all(isinstance(part, Dataset) for part in rows)
    )


@contextlib.contextmanager
def shared(offered: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The offered arguments with rows whose fingerprint says what their log-probabilities depend on, for one call."""
    args, limit = offered["args"], offered["args"].max_length
    stamp, collator = _stamp(args), _collator(args, offered["processing_class"].pad_token_id)
    held_out = offered["eval_dataset"]
    if isinstance(held_out, Mapping):
        held_out = {name: _stamped(rows, stamp) for name, rows in held_out.items()}
    elif held_out is not None:
        held_out = _stamped(held_out, stamp)
    rows = _stamped(offered["train_dataset"], stamp)
    args.max_length = None
    try:
        yield dict(offered) | {"train_dataset": rows, "eval_dataset": held_out, "data_collator": collator}
    finally:
        args.max_length = limit


def drop_filled(trainer: Any) -> None:
    """Drop the rows whose prompt alone fills the maximal length, as TRL does before it has precomputed."""
    limit = trainer.args.max_length
    if getattr(trainer.args, "truncation_mode", "keep_start") == "keep_start":
        held_out = trainer.eval_dataset
        trainer.train_dataset = _without_filled(trainer.train_dataset, limit)
        if isinstance(held_out, Mapping):
            trainer.eval_dataset = {name: _without_filled(rows, limit) for name, rows in held_out.items()}
        elif held_out is not None:
            trainer.eval_dataset = _without_filled(held_out, limit)


def _without_filled(rows: Dataset, limit: int) -> Dataset:
    lengths = map(len, rows.with_format("arrow")["prompt_ids"])
    kept = [number for number, length in enumerate(lengths) if length < limit]
    return rows if len(kept) == len(rows) else rows.select(kept)


def _sets(held_out: Any) -> list[Any]:
    if held_out is None:
        return []
    return list(held_out.values()) if isinstance(held_out, Mapping) else [held_out]


def _stamp(args: Any) -> str:
    """All that the log-probabilities depend on beside rows and weights, as text."""
    common = {field.name for field in fields(TrainingArguments)} - set(KEPT)
    kept = {name: value for name, value in asdict(args).items() if name not in common and name not in FREE}
    return json.dumps(kept, sort_keys=True, default=str)


def _stamped(rows: Dataset, stamp: str) -> Dataset:
    """The same rows under a fingerprint that also holds the stamp."""
    fingerprint = hashlib.sha256(f"{rows._fingerprint} {stamp}".encode()).hexdigest()[:16]
    return rows.select(range(len(rows)), new_fingerprint=fingerprint)


def _collator(args: Any, pad_token_id: int) -> Any:
    """The trainer's own collator, with the maximal length that it would have been given."""
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

    given = {"max_length": args.max_length, "pad_to_multiple_of": args.pad_to_multiple_of}
    if hasattr(args, "truncation_mode"):
        return DataCollatorForPreference(pad_token_id, truncation_mode=args.truncation_mode, **given)
    return DataCollatorForUnpairedPreference(pad_token_id, **given)
