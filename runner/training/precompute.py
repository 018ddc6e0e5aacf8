"""Reference log-probabilities that are computed once for all runs with the same rows, reference and lengths.

TRL keeps what it precomputes beside the rows in the cache of datasets, under the fingerprint of the prepared rows and
the reference's weights.
Yet a run never finds what another has left: where TRL drops rows that are too long, the fingerprint takes in every
argument of the run, its learning rate and its folder too. Without a maximal length it would take in none, not even
those on which the log-probabilities depend. So the rows come in under a fingerprint that holds exactly these, the
length is left to the collator, as TRL does it anyway, and rows that are too long are dropped afterwards.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import Trainer, TrainingArguments

from runner.dataset.load import HeldOut, Rows
from runner.run import Run, installed_version
from runner.run.continuation import EACH_STEP, ONCE
from runner.schema import upstream

# Of the arguments that every trainer has, those on which a log-probability depends; of TRL's own all but these two.
RELEVANT = (
    *(upstream.BF16, upstream.FP16, upstream.TF32, upstream.USE_CPU),
    *(upstream.PER_DEVICE_TRAIN_BATCH_SIZE, upstream.PER_DEVICE_EVAL_BATCH_SIZE),
)
FREE = ("beta", "learning_rate")


def precompute_by_default(run: Run, args: TrainingArguments, rows: Rows, held_out: HeldOut) -> None:
    """Have the reference's log-probabilities computed once where a training reads each of its rows at least once.

    So no step waits for the reference, and it takes no memory. Not where rows are streamed, weighed or collated by the
    user's own, where the reference changes or has dropout, and not by several processes. A run that goes on keeps to
    what it began with: the other way its last bits might differ.
    """
    then, cfg = run.manifest().get("reference"), run.cfg
    changes = cfg["collator"] or cfg.get("weight") or args.sync_ref_model or not args.disable_dropout
    is_spread = args.world_size > 1 or args.fsdp or args.deepspeed
    if (
        then is None
        and not changes
        and not is_spread
        and all(isinstance(part, Dataset) for part in (rows, *sets_of(held_out)))
    ):
        then = ONCE if upstream.passes(vars(args), len(rows), 1) >= 1 else EACH_STEP
    args.precompute_ref_log_probs = then == ONCE


def reference_of(args: TrainingArguments) -> str | None:
    """When the reference's log-probabilities are computed, for the manifest; None of one without such a choice."""
    once = getattr(args, upstream.PRECOMPUTE_REF_LOG_PROBS, None)
    return None if once is None else ONCE if once else EACH_STEP


def share_reference(offered: Mapping[str, Any], interface: str | None) -> dict[str, Any] | None:
    """The offered arguments with rows whose fingerprint says what their log-probabilities depend on.

    None where a trainer with this ``loss_interface`` does not precompute its reference, or no other run could use it.
    The collator has the maximal length, which has to be None in the arguments themselves while the trainer is built.
    """
    args, model = offered["args"], offered["model"]
    if (
        interface not in ("pairs", "labels")
        or not getattr(args, upstream.PRECOMPUTE_REF_LOG_PROBS, False)
        or offered[upstream.DATA_COLLATOR] is not None
        or offered[upstream.PROCESSING_CLASS].pad_token_id is None
        or not all(
            isinstance(part, Dataset) for part in (offered[upstream.TRAIN_DATASET], *sets_of(offered["eval_dataset"]))
        )
    ):
        return None
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

    settings = {"max_length": args.max_length, upstream.PAD_TO_MULTIPLE_OF: args.pad_to_multiple_of}
    collator = DataCollatorForUnpairedPreference
    if hasattr(args, upstream.TRUNCATION_MODE):
        collator = functools.partial(DataCollatorForPreference, truncation_mode=args.truncation_mode)
    common = {field.name for field in fields(TrainingArguments)} - set(RELEVANT)
    relevant = {name: value for name, value in asdict(args).items() if name not in common and name not in FREE}
    # What is no weight, and changes what a model computes from them; and what rounds, in another way than others.
    adapters = [config.to_dict() for config in model.peft_config.values()] if isinstance(model, PeftModel) else []
    attention = model.config._attn_implementation
    machine = [torch.get_num_threads(), torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"]
    machine += [installed_version(name) for name in ("torch", "transformers", "trl")]
    described = [relevant, model.config.to_dict(), adapters, attention, machine]
    stamp = json.dumps(
        described, sort_keys=True, default=lambda value: str(sorted(value) if isinstance(value, set) else value)
    )

    def stamped(rows: Dataset) -> Dataset:
        fingerprint = hashlib.sha256(f"{rows._fingerprint} {stamp}".encode()).hexdigest()[:16]
        return rows.select(range(len(rows)), new_fingerprint=fingerprint)

    return {
        **offered,
        upstream.TRAIN_DATASET: stamped(offered[upstream.TRAIN_DATASET]),
        "eval_dataset": map_sets(stamped, offered["eval_dataset"]),
        upstream.DATA_COLLATOR: collator(offered[upstream.PROCESSING_CLASS].pad_token_id, **settings),
    }


def drop_filled(trainer: Trainer) -> None:
    """Drop the rows whose prompt alone fills the maximal length, as TRL does before it has precomputed."""

    def without_filled(rows: Dataset) -> Dataset:
        lengths = map(len, rows.with_format("arrow")["prompt_ids"])
        short = [number for number, length in enumerate(lengths) if length < trainer.args.max_length]
        return rows if len(short) == len(rows) else rows.select(short)

    if trainer.args.max_length and getattr(trainer.args, upstream.TRUNCATION_MODE, "keep_start") == "keep_start":
        trainer.train_dataset = without_filled(trainer.train_dataset)
        trainer.eval_dataset = map_sets(without_filled, trainer.eval_dataset)


def sets_of(held_out: HeldOut) -> list[Rows]:
    """The held-out sets, whether there are several, one or none."""
    return list(held_out.values()) if isinstance(held_out, Mapping) else [] if held_out is None else [held_out]


def map_sets(change: Callable[[Dataset], Dataset], held_out: HeldOut) -> HeldOut:
    """Each of the held-out sets changed, whether there are several, one or none."""
    if isinstance(held_out, Mapping):
        return {name: change(rows) for name, rows in held_out.items()}
    return None if held_out is None else change(held_out)
