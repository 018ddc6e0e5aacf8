"""The names of TRL and transformers that our code relies on, in one place, with the tables in upstream.yaml.

Where a new version renames a field: widen the range in pyproject.toml, change the field in both, add its old name to
those of the new one in ``config/dialects/shared.yaml``, and change every line that ``pytest tests/test_upstream.py``
then lists, none of which must be understood for it: attributes (``args.max_steps``), messages that say what to type,
YAML of ``conf/`` and targets in ``config/dialects/``. No other Python holds a name as text. Where only some trainers
rename it, the new name stands beside the old one, and tests/test_conf.py and tests/test_import.py list the YAML.

What a trainer of TRL more may need here: ``COMPLETION_LENGTHS``, where it samples, and ``LOSS_INTERFACES``, for losses
of the user's own. ``training.health`` looks in ``NOTES`` for what it notes between logged steps, if it does.
"""

import math
from collections.abc import Mapping
from typing import Any

from runner.schema.read import Parameter, Signature, read_signature
from runner.schema.source import public_names
from runner.schema.text import read_tables

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

# Each is described where it stands, in upstream.yaml.
_TABLES = read_tables(__file__)
COMPLETION_LENGTHS: list[str] = _TABLES["completion_lengths"]
LOSS_INTERFACES: dict[str, list[str]] = _TABLES["loss_interfaces"]
OWN_LOSS: dict[str, Any] = _TABLES["own_loss"]
PLAIN_LOSS_TYPES: list[Any] = _TABLES["plain_loss_types"]
UNWEIGHABLE: dict[str, tuple[Any, str]] = _TABLES["unweighable"]
NUMERIC_FIELDS: dict[str, list[str]] = _TABLES["numeric_fields"]
OTHER_STEPS: dict[str, list[Any]] = _TABLES["other_steps"]
FROM_GROUP: dict[str, str] = _TABLES["from_group"]
FROM_TOP: dict[str, str] = _TABLES["from_top"]
TRACKERS = tuple(_TABLES["trackers"])
LOGGED, CALLBACK_VISIBLE = frozenset(_TABLES["logged"]), frozenset(_TABLES["callback_visible"])
MAP_STYLE_ONLY, LONGER = frozenset(_TABLES["map_style_only"]), frozenset(_TABLES["longer"])
EXTENDABLE = frozenset(_TABLES["read_by_no_step"]) | LOGGED | CALLBACK_VISIBLE | MAP_STYLE_ONLY | LONGER
MACHINE_DEFAULTS = frozenset(_TABLES["machine_defaults"])
ELSEWHERE: dict[str, Any] = _TABLES["elsewhere"]


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
