"""Fields that a resumed run may have changed, by how much of the training they reach."""

from typing import Any

# Fields that no step of the training reads.
READ_BY_NO_STEP = frozenset(
    {
        "log_on_each_node",
        "log_level",
        "log_level_replica",
        "log_unique_prompts",
        "skip_memory_metrics",
        "report_to",
        "run_name",
        "project",
        "trackio_space_id",
        "trackio_bucket_id",
        "trackio_static_space_id",
        "push_to_hub",
        "hub_token",
        "hub_private_repo",
        "hub_model_id",
        "hub_strategy",
        "hub_always_push",
        "hub_revision",
        "dataloader_pin_memory",
        "dataloader_prefetch_factor",
        "dataset_num_proc",
        "ddp_timeout",
    }
)
# Those of when something is logged, at which a sample of completions may be drawn to be printed.
LOGGED = frozenset({"logging_strategy", "logging_steps", "logging_first_step", "log_completions"})
# Those that could reach a step only through a callback, or through the choice of a best checkpoint.
CALLBACK_VISIBLE = frozenset(
    {
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "eval_strategy",
        "eval_steps",
        "eval_delay",
        "eval_on_start",
        "per_device_eval_batch_size",
        "eval_accumulation_steps",
    }
)
# Those that do not change the order of rows unless these are streamed.
MAP_STYLE_ONLY = frozenset({"dataloader_num_workers"})
# Those that may grow, under a schedule that does not depend on how many steps there will be.
LONGER = frozenset({"max_steps", "num_train_epochs"})
# All that may change when a run goes on.
EXTENDABLE = READ_BY_NO_STEP | LOGGED | CALLBACK_VISIBLE | MAP_STYLE_ONLY | LONGER

# Values with which a step depends on the rows of a micro-batch, or on the process that draws them.
OTHER_STEPS: dict[str, list[Any]] = {
    "loss_type": ["bco_pair", "sft", "aot", "aot_unpaired"],
    "rollout_engine": ["vllm"],
    "train_sampling_strategy": ["group_by_length", "batch_rebalance"],
    "streaming": [True],
}

# Fields whose default is not the library's but ours or this machine's (training.components.args),
# so that to name the library's is a change.
MACHINE_DEFAULTS = frozenset(
    {
        "logging_nan_inf_filter",
        "restore_callback_states_from_checkpoint",
        "use_cpu",
        "bf16",
        "activation_checkpointing",
        "gradient_checkpointing",
    }
)

# Of the arguments that every trainer has, those on which a log-probability depends. Of TRL's own
# it depends on all but the loss's.
OF_LOG_PROBS = frozenset(
    {
        "bf16",
        "fp16",
        "tf32",
        "use_cpu",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
    }
)
