"""Rows that are prepared once for all runs that may share them, and reference log-probabilities likewise.

Where TRL drops rows that are too long, it does so again in every run: the fingerprint of what is left takes in every
argument, the learning rate and the run's folder too. So the length is left to the collator, as TRL does it anyway, and
such rows are dropped afterwards.

TRL keeps what it precomputes beside the rows in the cache of datasets, under the fingerprint of the prepared rows and
the reference's weights. Without a maximal length that takes in none of the arguments, not even those on which the
log-probabilities depend. So the rows come in under a fingerprint that holds exactly these.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import Trainer, TrainingArguments

from runner.dataset.image import IMAGES
from runner.dataset.load import HeldOut, Rows, cache_key, list_columns
from runner.model.encoding import tokenizer_of
from runner.run import Run, installed_version
from runner.run.continuation import EACH_STEP, ONCE, computes_once, other_run
from runner.run.inputs import read_fingerprints
from runner.schema import upstream
from runner.schema.text import Config

# Arguments of a trainer's own on which no log-probability depends.
FREE = ("beta", "learning_rate", upstream.LOSS_TYPE, upstream.DESIRABLE_WEIGHT, upstream.PRECOMPUTE_REF_LOG_PROBS)


def precompute_by_default(run: Run, args: TrainingArguments, rows: Rows, held_out: HeldOut) -> None:
    """Have the reference's log-probabilities computed once where a training reads each row, or they are kept already.

    So no step waits for the reference, and it takes no memory. Not where rows are streamed, weighed or collated by the
    user's own, where the reference changes or has dropout, and not by several processes. A run that goes on keeps to
    what its steps began with, also those of another run: the other way its last bits might differ.
    """
    if IMAGES in list_columns(rows):  # which are read in each step
        return
    if (then := run.manifest().get("reference")) is None and (other := other_run(run.cfg)):
        then = other.manifest().get("reference")
    if then is None and args.world_size == 1 and all(isinstance(part, Dataset) for part in (rows, *sets_of(held_out))):
        kept = note_of(run.cfg, args, rows, held_out).exists()
        then = ONCE if computes_once(run.cfg, vars(args), len(rows), kept) else EACH_STEP
    args.precompute_ref_log_probs = then == ONCE


def note_of(cfg: Config, args: TrainingArguments, rows: Dataset, held_out: HeldOut) -> Path:
    """The file in the cache that says that log-probabilities of this model and these rows are kept; only a hint."""
    model = {name: cfg[name] for name in ("model", "peft", "quant")}
    facts = [cfg["trainer"]["_target_"], model, read_fingerprints(model)]
    prints = [part._fingerprint for part in (rows, *sets_of(held_out))]
    return Path(datasets.config.HF_DATASETS_CACHE) / f"reference-{_stamp(args, facts, prints)}"


def _stamp(args: TrainingArguments, *facts: object) -> str:
    """A hash of facts and of what else log-probabilities depend on: the arguments, the machine and its libraries."""
    common = {field.name for field in fields(TrainingArguments)} - upstream.OF_LOG_PROBS
    relevant = {name: value for name, value in asdict(args).items() if name not in common and name not in FREE}
    machine = [torch.get_num_threads(), torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"]
    parts = [relevant, machine, [installed_version(name) for name in ("torch", "transformers", "trl")], facts]
    text = json.dumps(parts, sort_keys=True, default=lambda each: sorted(each) if isinstance(each, set) else str(each))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def share_rows(offered: Mapping[str, Any], interface: str | None) -> dict[str, Any] | None:
    """The offered arguments as a trainer with this ``loss_interface`` prepares its rows once for all runs.

    None where it does so by itself, or cannot. The maximal length has to be None in the arguments while the trainer is
    built, and its rows go through :func:`drop_long` afterwards. Precomputed log-probabilities are shared as well.
    """
    args, model, collator = offered["args"], offered["model"], offered[upstream.DATA_COLLATOR]
    once = getattr(args, upstream.PRECOMPUTE_REF_LOG_PROBS, False)
    pad = tokenizer_of(offered[upstream.PROCESSING_CLASS]).pad_token_id
    sets = (offered[upstream.TRAIN_DATASET], *sets_of(offered["eval_dataset"]))
    # KTO pairs the rows that are left, so that none may be dropped afterwards: worth a try where much is to be gained.
    is_known = interface in ("pairs", "scores") or (interface == "labels" and once)
    is_known = is_known and IMAGES not in list_columns(sets[0])
    if not is_known or not (once or args.max_length) or not all(isinstance(part, Dataset) for part in sets):
        return None
    if interface == "scores":  # whose collator cuts nothing
        return dict(offered)
    if collator is not None or pad is None or getattr(args, "pad_token", None):
        return None
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

    settings = {"max_length": args.max_length, upstream.PAD_TO_MULTIPLE_OF: args.pad_to_multiple_of}
    collator = DataCollatorForUnpairedPreference
    if hasattr(args, upstream.TRUNCATION_MODE):
        collator = functools.partial(DataCollatorForPreference, truncation_mode=args.truncation_mode)
    offered = {**offered, upstream.DATA_COLLATOR: collator(pad, **settings)}
    if not once:
        return offered
    # What is no weight, and changes what a model computes from them.
    adapters = [config.to_dict() for config in model.peft_config.values()] if isinstance(model, PeftModel) else []
    facts = [model.config.to_dict(), adapters, model.config._attn_implementation]

    def stamped(rows: Dataset) -> Dataset:
        return rows.select(range(len(rows)), new_fingerprint=_stamp(args, rows._fingerprint, *facts))

    held_out = map_sets(stamped, offered["eval_dataset"])
    return {**offered, upstream.TRAIN_DATASET: stamped(offered[upstream.TRAIN_DATASET]), "eval_dataset": held_out}


def with_code(rows: Rows, code: str) -> Rows:
    """The rows under a fingerprint that goes by the user's code: what is made of them is kept as long as it is."""
    if not isinstance(rows, Dataset):  # of a stream nothing is kept
        return rows
    return rows.select(range(len(rows)), new_fingerprint=cache_key(rows._fingerprint, code))


def drop_long(trainer: Trainer) -> bool:
    """Drop the rows that TRL drops: scored ones that are too long, and those whose prompt alone fills the length.

    False where that would part rows that are paired already, so that TRL has to drop them before.
    """
    args, changed = trainer.args, False

    def without_long(rows: Dataset) -> Dataset:
        nonlocal changed
        is_scored = "prompt_ids" not in rows.column_names
        most = args.max_length if is_scored else args.max_length - 1
        names = ("chosen_ids", "rejected_ids") if is_scored else ("prompt_ids",)
        columns = [rows.with_format("arrow").select_columns([name])[:][name] for name in names]
        kept = np.all([pc.list_value_length(column).to_numpy() <= most for column in columns], axis=0)
        changed = changed or not kept.all()
        return rows if kept.all() else rows.select(np.flatnonzero(kept))

    if args.max_length and getattr(args, upstream.TRUNCATION_MODE, "keep_start") == "keep_start":
        trainer.train_dataset = without_long(trainer.train_dataset)
        trainer.eval_dataset = map_sets(without_long, trainer.eval_dataset)
    return not (changed and getattr(trainer, "calculate_KL", False))


def sets_of(held_out: HeldOut) -> list[Rows]:
    """The held-out sets, whether there are several, one or none."""
    return list(held_out.values()) if isinstance(held_out, Mapping) else [] if held_out is None else [held_out]


def map_sets(change: Callable[[Dataset], Dataset], held_out: HeldOut) -> HeldOut:
    """Each of the held-out sets changed, whether there are several, one or none."""
    if isinstance(held_out, Mapping):
        return {name: change(rows) for name, rows in held_out.items()}
    return None if held_out is None else change(held_out)
