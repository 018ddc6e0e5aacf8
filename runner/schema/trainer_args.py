"""The names of TRL and the Trainer that our code reads or sets: mypy sees a misspelt one.

``tests/test_upstream.py`` asks the installed libraries for each. Where a new version renames a
field: widen the range in pyproject.toml, change the field here, add its old name to those of the
new one in config/dialects/shared.yaml, and change every line that ``mypy`` and that test then list.
Where only some trainers rename it, the new name stands beside the old one.
"""

from typing import Any, Literal, TypedDict

# Arguments of the trainers' constructors.
ConstructorArgument = Literal[
    "processing_class",
    "train_dataset",
    "data_collator",
    "callbacks",
    "reward_funcs",
    "ref_model",
    "teacher_model",
    "environment_factory",
    "rollout_func",
    "compute_loss_func",
]


class TrainerArgs(TypedDict, total=False):
    """The fields of a trainer's config that our code knows; a configuration may give others."""

    _target_: str

    # How long, how many rows at a time, how often.
    max_steps: int
    num_train_epochs: float
    learning_rate: float
    warmup_steps: float
    lr_scheduler_type: str
    lr_scheduler_kwargs: dict[str, Any] | str | None
    per_device_train_batch_size: int
    per_device_eval_batch_size: int
    gradient_accumulation_steps: int
    train_sampling_strategy: str
    shuffle_dataset: bool | None
    eval_strategy: str
    eval_steps: float | None
    save_strategy: str
    save_steps: float
    save_total_limit: int | None
    logging_steps: float
    logging_nan_inf_filter: bool
    load_best_model_at_end: bool
    restore_callback_states_from_checkpoint: bool
    metric_for_best_model: str | None
    greater_is_better: bool | None
    precompute_ref_batch_size: int | None

    # What is computed, how, where and by how many.
    optim: str
    optim_args: str | None
    optim_target_modules: list[str] | str | None
    adam_epsilon: float
    weight_decay: float
    model_init_kwargs: dict[str, Any] | str | None
    activation_checkpointing: bool | None
    activation_offloading: bool
    gradient_checkpointing: bool | None
    bf16: bool | None
    fp16: bool
    tf32: bool | None
    use_cpu: bool
    use_liger_kernel: bool
    deepspeed: dict[str, Any] | str | None
    fsdp: str | bool | None
    fsdp_config: dict[str, Any] | str | None
    accelerator_config: dict[str, Any] | str | None
    parallelism_config: Any
    dataloader_num_workers: int
    dataloader_prefetch_factor: int | None

    # How rows become batches, and what is learnt from them.
    packing: bool
    packing_strategy: str
    padding_free: bool
    pad_to_multiple_of: int | str | None
    max_length: int | None
    truncation_mode: str
    assistant_only_loss: bool
    remove_unused_columns: bool | None
    dataset_kwargs: dict[str, Any] | str | None
    beta: float
    loss_type: list[str] | str
    scale_rewards: bool | str
    multi_objective_aggregation: str
    importance_sampling_level: str
    epsilon_high: float | None
    loss_weights: list[float] | None
    desirable_weight: float
    undesirable_weight: float
    precompute_ref_log_probs: bool
    sync_ref_model: bool
    disable_dropout: bool
    cpo_alpha: float
    tpo_alpha: float
    entropy_coef: float
    router_aux_loss_coef: float | None

    # Completions, and what they are worth.
    max_completion_length: int | None
    response_length: int
    max_new_tokens: int
    temperature: float
    num_generations: int | None
    num_generations_eval: int | None
    steps_per_generation: int | None
    generation_kwargs: dict[str, Any] | str | None
    num_iterations: int
    generation_batch_size: int | None
    use_vllm: bool
    vllm_mode: str
    vllm_enable_sleep_mode: bool
    max_tool_calling_iterations: int | None
    missing_eos_penalty: float | None
    stop_token_id: int | None
    chat_template_path: str | None
    chat_template_kwargs: dict[str, Any] | str | None
    filter_all_incorrect: bool
    reward_clip_range: Any
    reward_weights: list[float] | None
    reward_model_path: str | None
    sft_model_path: str | None
    total_episodes: int | None
    max_tokens_per_micro_batch: int | None
    teacher_model_name_or_path: str | None
    num_completions_to_print: int | None

    # Where a run writes, and what it sends to others.
    output_dir: str | None
    run_name: str | None
    report_to: str | list[str] | None
    disable_tqdm: bool | None
    save_only_model: bool
    push_to_hub: bool
    hub_model_id: str | None
    hub_private_repo: bool | None
    hub_revision: str | None
    hub_always_push: bool
    log_completions_hub_repo: str | None
