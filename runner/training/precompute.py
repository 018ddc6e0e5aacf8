"""Rows that are prepared once for all runs that may share them; log-probabilities likewise.

Where TRL drops rows that are too long, it does so again in every run: the fingerprint of what is
left takes in every argument, the learning rate and the run's folder too. So the length is left to
the collator, as TRL does it anyway, and such rows are dropped afterwards.

TRL keeps what it precomputes beside the rows in the cache of datasets, under the fingerprint of the
prepared rows and the reference's weights. Without a maximal length that takes in none of the
arguments, not even those on which the log-probabilities depend. So the rows come in under a
fingerprint that holds exactly these.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
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

from runner.config.experiment import Experiment
from runner.dataset.loaded_rows import HeldOut, Rows, cache_key, list_columns
from runner.model.encoding import tokenizer_of
from runner.run import Run, installed_version
from runner.run.continuation import EACH_STEP, ONCE, computes_once, other_run
from runner.run.inputs import read_fingerprints
from runner.schema import upstream
from runner.schema.code import hash_packages, packages_of
from runner.schema.modality import modalities_of

# Arguments of a trainer's own on which no log-probability depends.
FREE = ("beta", "learning_rate", "loss_type", "desirable_weight", "precompute_ref_log_probs")
LIBRARIES = ("torch", "transformers", "trl")
# Parts of a configuration whose code decides what a trainer keeps in a cache: tokens, and
# log-probabilities.
PREPARES_ROWS = ("trainer", "model", "peft", "quant")


def precompute_by_default(run: Run, args: TrainingArguments, rows: Rows, held_out: HeldOut) -> None:
    """Have the reference's log-probabilities computed once, where that is worth it and undecided.

    It is where a training reads each row, or where they are in the cache already: no step waits for
    the reference, and it takes no memory. Not where rows are streamed, weighed or collated by the
    user's own, where the reference changes or has dropout, and not by several processes. A run that
    goes on does as its steps began, also those of another run: the other way its last bits might
    differ.
    """
    is_decided = "precompute_ref_log_probs" in run.experiment.trainer.args
    if is_decided or not hasattr(args, "precompute_ref_log_probs"):
        return
    if modalities_of(list_columns(rows)):  # TRL reads them in each step
        return
    way = run.manifest().get("reference")
    if way is None:
        earlier = other_run(run.experiment)
        if earlier is not None:
            way = earlier.manifest().get("reference")
    sets = [rows, *sets_of(held_out)]
    if way is None and args.world_size == 1 and _are_datasets(sets):
        is_cached = note_of(run.experiment, args, rows, held_out).exists()
        if computes_once(run.experiment, vars(args), len(rows), is_cached):
            way = ONCE
        else:
            way = EACH_STEP
    args.precompute_ref_log_probs = way == ONCE


def _are_datasets(sets: Sequence[Rows]) -> bool:
    """True where no set is a stream, so that all can be read again."""
    return all(isinstance(rows, Dataset) for rows in sets)


def note_of(
    experiment: Experiment, args: TrainingArguments, rows: Dataset, held_out: HeldOut
) -> Path:
    """The file in the cache which says that log-probabilities of these rows are there.

    It is only a hint.
    """
    model = {name: experiment.node[name] for name in ("model", "peft", "quant")}
    facts = [experiment.trainer.target, model, read_fingerprints(model)]
    fingerprints = [part._fingerprint for part in (rows, *sets_of(held_out))]
    name = f"reference-{_stamp(args, facts, fingerprints)}"
    return Path(datasets.config.HF_DATASETS_CACHE) / name


def _stamp(args: TrainingArguments, *facts: object) -> str:
    """A hash of facts and of what else log-probabilities depend on.

    That are the trainer's arguments, the machine and its libraries.
    """
    free = {field.name for field in fields(TrainingArguments)} - upstream.OF_LOG_PROBS
    free.update(FREE)
    arguments = {name: value for name, value in asdict(args).items() if name not in free}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    machine = [torch.get_num_threads(), device]
    versions = [installed_version(name) for name in LIBRARIES]
    text = json.dumps([arguments, machine, versions, facts], sort_keys=True, default=_to_json)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _to_json(value: object) -> object:
    """A set as a list in order, and anything else that JSON lacks as its text."""
    return sorted(value) if isinstance(value, set) else str(value)


def share_rows(
    offered: Mapping[str, Any], interface: str | None, skips_padding: bool = False
) -> dict[str, Any] | None:
    """The offered arguments with which a trainer prepares its rows once for all runs.

    ``interface`` is the way in which it computes its loss.
    None where it does so by itself, or cannot. The maximal length has to be None in the arguments
    while the trainer is built, and its rows go through :func:`drop_long` afterwards. Precomputed
    log-probabilities are shared as well.
    """
    args = offered["args"]
    train = offered["train_dataset"]
    once = getattr(args, "precompute_ref_log_probs", False)
    # KTO pairs the rows that are left, so that none may be dropped afterwards: worth a try where
    # much is to be gained.
    can_drop = interface in ("pairs", "scores") or (interface == "labels" and once)
    if not can_drop or not (once or args.max_length) or modalities_of(list_columns(train)):
        return None
    if not _are_datasets([train, *sets_of(offered["eval_dataset"])]):
        return None
    if interface == "scores":  # its collator cuts nothing
        return dict(offered)
    pad = tokenizer_of(offered["processing_class"]).pad_token_id
    has_own_pad = pad is None or getattr(args, "pad_token", None)
    if offered["data_collator"] is not None or has_own_pad:
        return None
    parts = {**offered, "data_collator": _cutting_collator(args, pad)}
    if once:
        mark = _marker(args, offered["model"], skips_padding)
        parts["train_dataset"] = mark(train)
        parts["eval_dataset"] = map_sets(mark, offered["eval_dataset"])
    return parts


def _cutting_collator(args: TrainingArguments, pad: int) -> Callable[..., Any]:
    """TRL's collator for a trainer of pairs or labels, which cuts rows to the maximal length."""
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

    settings = {"max_length": args.max_length, "pad_to_multiple_of": args.pad_to_multiple_of}
    collator: Callable[..., Any]
    if hasattr(args, "truncation_mode"):
        settings["truncation_mode"] = args.truncation_mode
        collator = DataCollatorForPreference(pad, **settings)
    else:
        collator = DataCollatorForUnpairedPreference(pad, **settings)
    return collator


def _marker(
    args: TrainingArguments, model: Any, skips_padding: bool
) -> Callable[[Dataset], Dataset]:
    """A function that gives rows a fingerprint of all that log-probabilities of them depend on."""
    # Beside the weights, which TRL hashes: settings that change what a model computes from them.
    adapters = []
    if isinstance(model, PeftModel):
        adapters = [config.to_dict() for config in model.peft_config.values()]
    facts = [model.config.to_dict(), adapters, model.config._attn_implementation]
    if skips_padding:  # which changes the last digits
        facts.append("no padding")

    def mark(rows: Dataset) -> Dataset:
        return _renamed(rows, _stamp(args, rows._fingerprint, *facts))

    return mark


def _renamed(rows: Dataset, fingerprint: str) -> Dataset:
    """The same rows under another fingerprint."""
    return rows.select(range(len(rows)), new_fingerprint=fingerprint)


def mark_rows_with_code(experiment: Experiment, parts: dict[str, Any]) -> None:
    """Have the rows' fingerprints go by the user's code that prepares them.

    So other code finds no cache of them.
    """
    preparing = {name: experiment.node.get(name) for name in PREPARES_ROWS}
    code = hash_packages(packages_of(preparing))
    if not code:
        return

    def mark(rows: Rows) -> Rows:
        if not isinstance(rows, Dataset):  # nothing of a stream is in a cache
            return rows
        return _renamed(rows, cache_key(rows._fingerprint, code))

    parts["train_dataset"] = mark(parts["train_dataset"])
    parts["eval_dataset"] = map_sets(mark, parts["eval_dataset"])


def drop_long(trainer: Trainer) -> bool:
    """Drop the rows that TRL drops.

    These are scored ones that are too long, and those whose prompt alone fills the length.
    False where that would part rows that are paired already, so that TRL has to drop them before.
    """
    args = trainer.args
    has_dropped = False

    def without_long(rows: Dataset) -> Dataset:
        nonlocal has_dropped
        max_length = args.max_length - 1
        columns = ["prompt_ids"]
        if "prompt_ids" not in rows.column_names:  # rows of a reward model
            max_length = args.max_length
            columns = ["chosen_ids", "rejected_ids"]
        is_short = np.full(len(rows), True)
        for name in columns:
            ids = rows.with_format("arrow").select_columns([name])[:][name]
            is_short &= pc.list_value_length(ids).to_numpy() <= max_length
        if is_short.all():
            return rows
        has_dropped = True
        return rows.select(np.flatnonzero(is_short))

    if args.max_length and getattr(args, "truncation_mode", "keep_start") == "keep_start":
        trainer.train_dataset = without_long(trainer.train_dataset)
        trainer.eval_dataset = map_sets(without_long, trainer.eval_dataset)
    return not (has_dropped and getattr(trainer, "calculate_KL", False))


def sets_of(held_out: HeldOut) -> list[Rows]:
    """The held-out sets, whether there are several, one or none."""
    if held_out is None:
        return []
    return list(held_out.values()) if isinstance(held_out, Mapping) else [held_out]


def map_sets(change: Callable[[Dataset], Dataset], held_out: HeldOut) -> HeldOut:
    """Each of the held-out sets changed, whether there are several, one or none."""
    if held_out is None:
        return None
    if isinstance(held_out, Mapping):
        return {name: change(rows) for name, rows in held_out.items()}
    return change(held_out)
