"""The names of TRL and transformers that our code relies on, in one place. Standard library only.

Where a new version renames a field: widen the range in pyproject.toml, change the field here, add its old name to those
of the new one in ``config/dialects/shared.yaml``, and change every line that ``pytest tests/test_upstream.py`` then
lists, none of which must be understood for it: attributes (``args.max_steps``), messages that say what to type, YAML of
``conf/`` and targets in ``config/dialects/``. No other Python holds a name as text. Where only some trainers rename it,
the new name stands beside the old one, and tests/test_conf.py and tests/test_import.py list the YAML.

What a trainer of TRL more may need here: ``COMPLETION_LENGTHS``, where it samples, and ``LOSS_INTERFACES``, for losses
of the user's own. ``training.health`` looks in ``NOTES`` for what it notes between logged steps, if it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner.schema.read import Parameter, Signature, read_signature
from runner.schema.source import public_names

# --- Names, each once -----------------------------------------------------------------------------

# Arguments of trainers' constructors.
PROCESSING_CLASS = "processing_class"
TRAIN_DATASET = "train_dataset"
DATA_COLLATOR = "data_collator"
CALLBACKS = "callbacks"
REWARD_FUNCS = "reward_funcs"
REWARD_PROCESSING_CLASSES = "reward_processing_classes"
REF_MODEL = "ref_model"
TEACHER_MODEL = "teacher_model"
ENVIRONMENT_FACTORY = "environment_factory"
COMPUTE_LOSS_FUNC = "compute_loss_func"
COMPUTE_METRICS = "compute_metrics"
# Fields of their configs: how long, how many rows at a time, how often.
MAX_STEPS = "max_steps"
NUM_TRAIN_EPOCHS = "num_train_epochs"
WARMUP_STEPS = "warmup_steps"
LR_SCHEDULER_TYPE = "lr_scheduler_type"
PER_DEVICE_TRAIN_BATCH_SIZE = "per_device_train_batch_size"
PER_DEVICE_EVAL_BATCH_SIZE = "per_device_eval_batch_size"
GRADIENT_ACCUMULATION_STEPS = "gradient_accumulation_steps"
TRAIN_SAMPLING_STRATEGY = "train_sampling_strategy"
SHUFFLE_DATASET = "shuffle_dataset"
EVAL_STRATEGY = "eval_strategy"
EVAL_STEPS = "eval_steps"
EVAL_DELAY = "eval_delay"
SAVE_STRATEGY = "save_strategy"
SAVE_STEPS = "save_steps"
SAVE_TOTAL_LIMIT = "save_total_limit"
LOGGING_STEPS = "logging_steps"
LOGGING_FIRST_STEP = "logging_first_step"
LOAD_BEST_MODEL_AT_END = "load_best_model_at_end"
METRIC_FOR_BEST_MODEL = "metric_for_best_model"
GREATER_IS_BETTER = "greater_is_better"
# What is computed how, where and by how many.
OPTIM = "optim"
ACTIVATION_CHECKPOINTING = "activation_checkpointing"
GRADIENT_CHECKPOINTING = "gradient_checkpointing"
BF16 = "bf16"
FP16 = "fp16"
TF32 = "tf32"
USE_CPU = "use_cpu"
USE_LIGER_KERNEL = "use_liger_kernel"
TORCH_COMPILE = "torch_compile"
DEEPSPEED = "deepspeed"
FSDP = "fsdp"
FSDP_CONFIG = "fsdp_config"
PARALLELISM_CONFIG = "parallelism_config"
DATALOADER_NUM_WORKERS = "dataloader_num_workers"
DATALOADER_PREFETCH_FACTOR = "dataloader_prefetch_factor"
DATASET_NUM_PROC = "dataset_num_proc"
# How rows become batches, and what is learnt from them.
PACKING = "packing"
PACKING_STRATEGY = "packing_strategy"
PADDING_FREE = "padding_free"
PAD_TO_MULTIPLE_OF = "pad_to_multiple_of"
TRUNCATION_MODE = "truncation_mode"
ASSISTANT_ONLY_LOSS = "assistant_only_loss"
REMOVE_UNUSED_COLUMNS = "remove_unused_columns"
LOSS_TYPE = "loss_type"
DESIRABLE_WEIGHT = "desirable_weight"
PRECOMPUTE_REF_LOG_PROBS = "precompute_ref_log_probs"
# Completions, and what they are worth.
NUM_GENERATIONS = "num_generations"
NUM_GENERATIONS_EVAL = "num_generations_eval"
STEPS_PER_GENERATION = "steps_per_generation"
NUM_ITERATIONS = "num_iterations"
GENERATION_BATCH_SIZE = "generation_batch_size"
USE_VLLM = "use_vllm"
VLLM_SERVER_HOST = "vllm_server_host"
MISSING_EOS_PENALTY = "missing_eos_penalty"
REWARD_WEIGHTS = "reward_weights"
REWARD_MODEL_PATH = "reward_model_path"
TEACHER_MODEL_NAME_OR_PATH = "teacher_model_name_or_path"
TEACHER_MODEL_SERVER_URL = "teacher_model_server_url"
TEACHER_SERVER_URLS = "teacher_server_urls"
NUM_COMPLETIONS_TO_PRINT = "num_completions_to_print"
# Where a run writes, and what it sends to others.
OUTPUT_DIR = "output_dir"
RUN_NAME = "run_name"
PROJECT = "project"
DISABLE_TQDM = "disable_tqdm"
SAVE_ONLY_MODEL = "save_only_model"
LOGGING_NAN_INF_FILTER = "logging_nan_inf_filter"
RESTORE_CALLBACK_STATES_FROM_CHECKPOINT = "restore_callback_states_from_checkpoint"
PUSH_TO_HUB = "push_to_hub"
HUB_MODEL_ID = "hub_model_id"
HUB_PRIVATE_REPO = "hub_private_repo"
LOG_COMPLETIONS_HUB_REPO = "log_completions_hub_repo"
TRACKIO_SPACE_ID = "trackio_space_id"
TRACKIO_STATIC_SPACE_ID = "trackio_static_space_id"
TRACKIO_BUCKET_ID = "trackio_bucket_id"
IGNORED = -100  # the label of a token that no loss counts

# --- What is asked of them ------------------------------------------------------------------------

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
        *("dataloader_prefetch_factor", "ddp_timeout", "ddp_bucket_cap_mb", "max_new_tokens"),
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
    "two": ("num_generations", "max_length"),  # a group, and a token that another one follows
    "workers": ("dataloader_num_workers",),
}
# Arguments of a trainer that are filled from a group rather than from the trainer's own keys.
FROM_GROUP = {
    "model": "model",
    "processing_class": "model",
    "train_dataset": "dataset",
    "eval_dataset": "dataset",
    "quantization_config": "quant",
    "peft_config": "peft",
    "reward_funcs": "reward",
    "data_collator": "collator",
    "callbacks": "callback",
    "compute_loss_func": "loss",
    "optimizers": "optimizer",
    "optimizer_cls_and_kwargs": "optimizer",
}
# Fields of a trainer's config that a key of the top level sets.
FROM_TOP = {"learning_rate": "learning_rate", "seed": "seed", "beta": "kl_coef", "kl_coef": "kl_coef"}
# What ``report_to`` may name (transformers.integrations).
TRACKERS = (
    *("none", "all", "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow"),
    *("mlflow", "neptune", "swanlab", "tensorboard", "trackio", "wandb"),
)

# --- What may change when a run goes on -----------------------------------------------------------

# Fields of a trainer's config that no step of the training reads.
READ_BY_NO_STEP = frozenset(
    {
        *("log_on_each_node", "log_level", "log_level_replica", "log_unique_prompts", "skip_memory_metrics"),
        *("report_to", "run_name", "project"),
        *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
        *("hub_revision", "dataloader_pin_memory", "dataloader_prefetch_factor", "dataset_num_proc", "ddp_timeout"),
    }
)
# Those of when something is logged, at which a sample of completions may be drawn to be printed.
LOGGED = frozenset({"logging_strategy", "logging_steps", "logging_first_step", "log_completions"})
# Those that could reach a step only through a callback, or through the choice of a best checkpoint.
CALLBACK_VISIBLE = frozenset(
    {
        *("save_strategy", "save_steps", "save_total_limit", "eval_strategy", "eval_steps", "eval_delay"),
        *("eval_on_start", "per_device_eval_batch_size", "eval_accumulation_steps"),
    }
)
# Those that do not change the order of rows which are all there.
MAP_STYLE_ONLY = frozenset({"dataloader_num_workers"})
# Those that may grow, under a schedule that does not look at how many steps there will be.
LONGER = ("max_steps", "num_train_epochs")
EXTENDABLE = READ_BY_NO_STEP | LOGGED | CALLBACK_VISIBLE | MAP_STYLE_ONLY | frozenset(LONGER)
# Those whose default is not the library's but ours or this machine's (``training.components.args``), so that to name
# the library's is a change.
MACHINE_DEFAULTS = frozenset({"logging_nan_inf_filter", "restore_callback_states_from_checkpoint", "use_cpu", "bf16"})
MACHINE_DEFAULTS |= {"activation_checkpointing", "gradient_checkpointing"}
# Those that need another machine or a server, and what they become in a run made small.
ELSEWHERE = {
    **dict.fromkeys((USE_VLLM, TORCH_COMPILE), False),
    **dict.fromkeys((DEEPSPEED, FSDP, PARALLELISM_CONFIG), None),
}


# --- Questions ------------------------------------------------------------------------------------


def loss_interface(trainer: Signature | None, config: Signature | None) -> str | None:
    """The key in LOSS_INTERFACES of a trainer with this config; None for one that computes its loss in another way."""
    if trainer is None or {REWARD_FUNCS, TEACHER_MODEL} & set(trainer.parameters):
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


def config_fields(args: Mapping[str, Any]) -> Mapping[str, Parameter]:
    """The fields of a trainer's config object by name."""
    signature = read_signature(args["_target_"])
    return signature.parameters if signature else {}


def setting(args: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """The value of a field of the trainer's config: as it is set, or its default where that is written down."""
    if args.get(name) is not None:
        return args[name]
    field = config_fields(args).get(name)
    return field.default if field and isinstance(field.default, bool | int | float | str) else otherwise


def batch_size(args: Mapping[str, Any]) -> int:
    """Rows of a micro-batch."""
    return int(setting(args, PER_DEVICE_TRAIN_BATCH_SIZE, 8))
