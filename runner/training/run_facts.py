"""Facts about a training for the manifest of its run: rows, model, tokenizer and hardware.

A run that goes on is compared with them, and so is one that reproduces it.
"""

import math
import os
import platform
from collections.abc import Mapping
from typing import Any

import torch
from peft import PeftModel
from transformers import Trainer

from runner.config.experiment import Experiment
from runner.dataset.loaded_rows import fingerprint
from runner.generate.environment.contract import package_versions
from runner.generate.sampler import Model
from runner.io.files import JsonObject
from runner.model.chat import tokenizer_hash
from runner.model.model_files import ADAPTER
from runner.run import COMPUTED, SKIPPED
from runner.run.continuation import EACH_STEP, ONCE
from runner.run.key import made_of_batch
from runner.training.checkpoint import disk_needed
from runner.training.components.model import find_adapter_below, has_base, policy_of
from runner.training.components.types import Components

# The time at which the log-probabilities of the reference are computed, by
# ``precompute_ref_log_probs``, which not all trainers have.
REFERENCE_TIMES = {True: ONCE, False: EACH_STEP, None: None}


def collect_facts(components: Components, experiment: Experiment) -> JsonObject:
    """The facts, as they stand in ``manifest.json``."""
    args = components.args
    trainer = components.trainer
    disk = disk_needed(trainer, components.seal)
    disk["model"] += _bytes_below(experiment, policy_of(trainer))
    precomputes = getattr(args, "precompute_ref_log_probs", None)
    data: JsonObject = {
        "train": describe_rows(components.train_rows),
        "eval": describe_rows(components.held_out),
    }
    packages = package_versions(experiment.environment)
    if packages:
        data["environment"] = packages
    return {
        "disk": disk,
        "reference": REFERENCE_TIMES[precomputes],
        "padding": SKIPPED if trainer.skips_padding else COMPUTED,
        "tokenizer": {"fingerprint": tokenizer_hash(components.tokenizer)},
        "data": data,
        "model": _describe_model(trainer),
        "hardware": _describe_hardware(args.world_size),
    }


def _bytes_below(experiment: Experiment, policy: Model) -> int:
    """About the bytes that are saved beyond those of an adapter, as its base is not on disk."""
    if not isinstance(policy, PeftModel) or has_base(experiment):
        return 0
    trained: int = sum(weight.nbytes for weight in policy.parameters() if weight.requires_grad)
    folder = find_adapter_below(experiment, policy.peft_config["default"])
    if folder:  # the sum of both adapters stands beside the new one
        return trained + (folder / ADAPTER).stat().st_size
    # Weights of 4 or 8 bits are saved as they were before they were rounded.
    base = policy.get_base_model()
    frozen = base.num_parameters() - base.num_parameters(only_trainable=True)
    merged: int = frozen * policy.dtype.itemsize
    # The adapter stands beside the merged model only if the base was rounded.
    return merged if experiment.quant else merged - trained


def _describe_model(trainer: Trainer) -> JsonObject:
    """The base model that the policy was loaded from, and the size of what is trained."""
    policy = policy_of(trainer)
    total = 0
    trainable = 0
    for parameter in trainer.model.parameters():
        total += parameter.numel()
        if parameter.requires_grad:
            trainable += parameter.numel()
    return {
        "path": policy.config._name_or_path,
        "commit": getattr(policy.config, "_commit_hash", None),
        "parameters": total,
        "trainable": trainable,
        "dtype": str(policy.dtype),
    }


def _describe_hardware(processes: int) -> JsonObject:
    count = torch.cuda.device_count()
    return {
        "machine": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(index) for index in range(count)],
        "processes": processes,
    }


def describe_rows(rows: Any) -> JsonObject | None:
    """The number and the fingerprint of rows, or of each of several sets; None without any."""
    if rows is None:
        return None
    if isinstance(rows, Mapping):
        return {name: describe_rows(part) for name, part in rows.items()}
    # The rows of a stream have no number.
    count = len(rows) if hasattr(rows, "__len__") else None
    return {"rows": count, "fingerprint": fingerprint(rows)}


def find_process_dependence(trainer: Trainer, experiment: Experiment) -> str:
    """The reason for which another number of processes would take other steps; empty for none.

    It concerns runs whose processes share a ``batch``.
    """
    batch = experiment.batch
    if not batch or not made_of_batch(experiment.node):
        return ""
    # The only trainer of prompts whose processes share a batch is PPO: it has no dropout, and takes
    # whole batches.
    if experiment.trainer.form == "prompt":
        return ""
    for name, module in trainer.accelerator.unwrap_model(trainer.model).named_modules():
        for key, value in vars(module).items():
            is_dropout = key == "p" or "drop" in key
            if is_dropout and isinstance(value, float) and value > 0:
                owner = name or "the model"
                return f"{owner} has a dropout of {value}, which each process draws by itself"
    if getattr(trainer.model.config, "output_router_logits", False):
        return "experts are balanced over a micro-batch"
    rows = len(trainer.train_dataset)
    steps = trainer.args.max_steps
    if steps <= 0:
        steps = math.ceil(trainer.args.num_train_epochs * rows / batch)
    if rows % batch and steps > rows // batch:
        return (
            f"{rows} rows are not a multiple of the batch of {batch}, so the last rows of an "
            "epoch are shared differently"
        )
    return ""
