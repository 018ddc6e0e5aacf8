"""The names of TRL and transformers that our code relies on, in one place. Standard library only.

A test holds each against the installed libraries, and fails where a new version has renamed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner.schema.read import Signature
from runner.schema.source import public_names

# The field of a trainer's arguments that says how many tokens a completion may have, under its several names.
COMPLETION_LENGTHS = ("max_completion_length", "response_length", "max_new_tokens")
# What a loss of the user's own can be given by a trainer, and the names that only such a trainer has: arguments of its
# constructor, fields of its config, or public methods.
LOSS_INTERFACES = {
    "tokens": ("compute_loss_func", "completion_only_loss"),
    "pairs": ("precompute_ref_log_probs", "f_divergence_type"),
    "labels": ("precompute_ref_log_probs", "desirable_weight"),
    "odds": ("odds_ratio_loss",),
    "contrasts": ("cpo_loss",),
    "scores": ("center_rewards_coefficient",),
}
# Arguments of trainers that learn from something else than a loss of labels.
REWARDS, TEACHER = "reward_funcs", "teacher_model"
# Fields of TRL's own losses, each with the value that leaves it out.
OWN_LOSS = {
    **{"loss_weights": None, "label_smoothing": 0.0, "f_divergence_type": "reverse_kl", "use_weighting": False},
    **{"ld_alpha": None, "center_rewards_coefficient": None, "label_smoothing_factor": 0.0, "alpha": 0.0},
}
PLAIN_LOSS_TYPES = ("nll", "sigmoid", ["sigmoid"], "kto")  # those that a loss of the user's own may stand beside
# Fields under which weights of tokens are wrong or without effect: the value that goes with them, and why no other.
UNWEIGHABLE = {
    "assistant_only_loss": (False, "weight=answers leaves the same tokens"),
    "precompute_ref_log_probs": (False, "they are computed without weights"),
    "use_weighting": (False, "it takes log-probabilities for what they are"),
    "label_smoothing_factor": (0.0, "loss=label_smoothed goes with weights"),
    "chat_template_path": (None, "model.tokenizer.chat_template is for that"),
    "eos_token": (None, "model.tokenizer.eos_token is for that"),
    "eval_packing": (None, "held-out rows are packed as the training rows are"),
    "torch_compile": (False, "a compiled model cannot be watched"),
    "dataset_kwargs": (None, "the trainer's own tokens are needed"),
}
# Numbers among the fields of trainers' configs, by the range that makes sense (``validate.values``).
NUMERIC_FIELDS = {
    "positive": (
        *("num_train_epochs", "adam_epsilon", "logging_steps", "save_steps", "eval_steps", "temperature"),
        *("repetition_penalty", "epsilon", "epsilon_high", "delta", "discopop_tau"),
    ),
    "count": (
        *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
        *("eval_accumulation_steps", "save_total_limit", "torch_empty_cache_steps", "dataset_num_proc"),
        *("dataloader_prefetch_factor", "ddp_timeout", "ddp_bucket_cap_mb", "max_length", "max_new_tokens"),
        *("max_completion_length", "pad_to_multiple_of", "vllm_max_model_length", "num_generations_eval"),
        *("steps_per_generation", "num_iterations", "generation_batch_size", "vllm_tensor_parallel_size"),
        *("ref_model_sync_steps", "precompute_ref_batch_size"),
    ),
    "not negative": (
        *("weight_decay", "max_grad_norm", "warmup_steps", "eval_delay", "neftune_noise_alpha", "beta"),
        *("kl_coef", "entropy_coef", "router_aux_loss_coef", "desirable_weight", "undesirable_weight"),
        *("simpo_gamma", "center_rewards_coefficient"),
    ),
    "rate": ("adam_beta1", "adam_beta2", "label_smoothing_factor", "label_smoothing"),
    "fraction": ("min_p", "ld_alpha", "ref_model_mixup_alpha", "lmbda", "top_entropy_quantile"),
    "share": ("top_p", "vllm_gpu_memory_utilization"),
    "step size": ("learning_rate",),
    "seed": ("seed", "data_seed"),
    "top k": ("top_k",),
    "steps": ("max_steps",),
    "group": ("num_generations",),
    "workers": ("dataloader_num_workers",),
}
# The other names that our Python holds as text, so that a rename of any is noticed: of every trainer's config, of the
# configs of some, and of the trainers' constructors.
FIELDS = (
    *("activation_checkpointing", "bf16", "dataloader_pin_memory", "deepspeed", "disable_tqdm", "eval_on_start"),
    *("eval_strategy", "fp16", "fsdp", "fsdp_config", "gradient_checkpointing", "greater_is_better"),
    *("hub_always_push", "hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy", "hub_token"),
    *("load_best_model_at_end", "log_level", "log_level_replica", "log_on_each_node", "logging_first_step"),
    *("logging_nan_inf_filter", "logging_strategy", "lr_scheduler_type", "metric_for_best_model", "optim"),
    *("output_dir", "parallelism_config", "project", "push_to_hub", "remove_unused_columns"),
    *("restore_callback_states_from_checkpoint", "run_name", "save_only_model", "save_strategy"),
    *("skip_memory_metrics", "tf32", "torch_compile", "trackio_bucket_id", "trackio_space_id"),
    *("trackio_static_space_id", "train_sampling_strategy", "use_cpu", "use_liger_kernel"),
)
FIELDS_OF_SOME = (
    *("alpha", "assistant_only_loss", "callbacks", "chat_template_kwargs", "completion_only_loss"),
    *("log_completions", "log_completions_hub_repo", "log_unique_prompts", "loss_type", "missing_eos_penalty"),
    *("num_completions_to_print", "packing", "packing_strategy", "padding_free", "precompute_ref_log_probs"),
    *("reward_model_path", "reward_weights", "shuffle_dataset", "teacher_model_name_or_path"),
    *("teacher_model_server_url", "teacher_server_urls", "truncation_mode", "use_vllm", "vllm_server_host"),
)
CONSTRUCTOR_ARGUMENTS = (
    *("compute_loss_func", "compute_metrics", "data_collator", "environment_factory", "optimizer_cls_and_kwargs"),
    *("optimizers", "processing_class", "ref_model", "reward_funcs", "reward_processing_classes", "teacher_model"),
    "train_dataset",
)


def loss_interface(trainer: Signature | None, config: Signature | None) -> str | None:
    """The key in LOSS_INTERFACES of a trainer with this config; None for one that computes its loss in another way."""
    if trainer is None or {REWARDS, TEACHER} & set(trainer.parameters):
        return None
    names = {*trainer.parameters, *(config.parameters if config else ()), *public_names(trainer.target)}
    return next((kind for kind, needed in LOSS_INTERFACES.items() if names.issuperset(needed)), None)


def completion_length(args: Mapping[str, Any]) -> int | None:
    """The most tokens of a completion that a trainer's arguments allow; None where they know no such thing.

    >>> completion_length({"max_new_tokens": 64}), completion_length({"max_length": 64})
    (64, None)
    """
    return next(filter(None, map(args.get, COMPLETION_LENGTHS)), None)


def cycle_steps(args: Mapping[str, Any]) -> int:
    """Optimizer steps from one generation to the next, of a trainer that uses more than once what it generates.

    >>> cycle_steps({"steps_per_generation": 4, "num_iterations": 3, "gradient_accumulation_steps": 2})
    6
    """
    accumulated = args["gradient_accumulation_steps"]
    micro_steps = (args.get("steps_per_generation") or accumulated) * (args.get("num_iterations") or 1)
    return math.lcm(micro_steps, accumulated) // accumulated
