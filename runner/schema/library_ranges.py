"""Ranges of numbers that libraries take, by the name of a field or argument.

TRL, transformers and peft call the same thing by the same name; a class that does not has a row in
BY_CLASS. A name in bars is a pattern of whole names, because peft repeats most of them for each
kind of adapter.
"""

import re

from runner.schema.ranges import (
    COUNT,
    FRACTION,
    MORE_THAN_ONE,
    NEGATIVE,
    NOT_NEGATIVE,
    POSITIVE,
    RANK,
    RATE,
    SEED,
    SHARE,
    STEP_SIZE,
    STEPS,
    TOP_K,
    TWO,
    UNDER_A_HALF,
    WORKERS,
    Range,
)


def by_name(*rows: tuple[Range, str]) -> dict[str, Range]:
    """The range of each name; a row is a range with the names that have it."""
    ranges: dict[str, Range] = {}
    for numbers, names in rows:
        ranges |= dict.fromkeys(names.split(), numbers)
    return ranges


PEFT = by_name(
    (RANK, "r init_r target_r"),
    (
        COUNT,
        "num_virtual_tokens deltaT total_step qalora_group_size adapter_len adapter_layers "
        "boft_n_butterfly_factor nblocks block_size n_frequency gralora_k stride_A num_B "
        "num_subspaces subspace_rank num_vectors vector_length topk num_groups group_size u "
        "theta_d_length oft_block_size num_cayley_neumann_terms mini_r num_ranks num_tasks "
        "n_tasks n_skills n_splits num_frozen_tokens encoder_hidden_size encoder_num_layers "
        "loftq_iter num_samples buffer_size stable_gamma",
    ),
    (POSITIVE, "lora_alpha alpha scaling eps |.+_alpha| init_scale d_initial delora_lambda"),
    (
        NOT_NEGATIVE,
        "tinit tfinal orth_reg_weight boft_block_size boft_block_num hybrid_r depth "
        "init_warmup final_warmup auxiliary_loss_weight kl_loss_weight layers "
        "layers_to_transform trainable_token_indices token_indices alora_invocation_tokens "
        "|.+_bound| |(.+_)?(prng_key|seed)|",
    ),
    (RATE, "beta1 beta2 |(.+_)?dropout| asa_importance_beta asa_uncertainty_beta"),
    (FRACTION, "sparsity sparse_rate weight_tying tau svd_threshold"),
)

OPTIMIZER = by_name(
    (STEP_SIZE, "lr"),
    (POSITIVE, "eps clip_threshold d power gamma num_cycles"),
    (
        NOT_NEGATIVE,
        "weight_decay momentum_decay lr_decay initial_accumulator_value lambd min_lr lr_end "
        "lr_ratio num_warmup_steps num_decay_steps num_stable_steps patience cooldown",
    ),
    (RATE, "betas momentum rho dampening |beta\\d| factor"),
    (FRACTION, "min_lr_rate min_lr_ratio warmup_lr_rate"),
    (COUNT, "ns_steps max_iter history_size timescale step_size total_iters T_max T_0 T_mult"),
)

# Keys of generation_kwargs.
GENERATION = by_name(
    (POSITIVE, "temperature repetition_penalty encoder_repetition_penalty guidance_scale max_time"),
    (COUNT, "max_new_tokens max_length num_beams num_return_sequences"),
    (
        NOT_NEGATIVE,
        "min_length min_new_tokens no_repeat_ngram_size encoder_no_repeat_ngram_size top_k "
        "pad_token_id bos_token_id eos_token_id suppress_tokens prompt_lookup_num_tokens",
    ),
    (SHARE, "top_p typical_p top_h"),
    (FRACTION, "min_p epsilon_cutoff eta_cutoff"),
)

# Fields of the trainers' configs.
TRAINER = by_name(
    (
        POSITIVE,
        "num_train_epochs adam_epsilon logging_steps save_steps eval_steps temperature "
        "repetition_penalty epsilon epsilon_high delta discopop_tau sapo_temperature_neg "
        "sapo_temperature_pos teacher_temperature uld_student_temperature "
        "uld_teacher_temperature distillation_is_clip off_policy_mask_threshold "
        "vllm_importance_sampling_cap vllm_importance_sampling_clip_max vllm_server_timeout "
        "request_timeout weight_sync_timeout heartbeat_stale_after_s",
    ),
    (
        COUNT,
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
        "eval_accumulation_steps save_total_limit torch_empty_cache_steps dataset_num_proc "
        "dataloader_prefetch_factor ddp_timeout ddp_bucket_cap_mb max_new_tokens "
        "max_completion_length pad_to_multiple_of vllm_max_model_length num_generations_eval "
        "steps_per_generation num_iterations generation_batch_size vllm_tensor_parallel_size "
        "ref_model_sync_steps precompute_ref_batch_size max_prompt_length max_reprompt_len "
        "num_value_samples distillation_topk teacher_top_k teacher_sync_steps "
        "log_completions_steps vllm_sync_frequency weight_sync_steps queue_maxsize "
        "vllm_server_port vllm_group_port",
    ),
    (
        NOT_NEGATIVE,
        "weight_decay max_grad_norm warmup_steps eval_delay neftune_noise_alpha beta kl_coef "
        "entropy_coef router_aux_loss_coef desirable_weight undesirable_weight simpo_gamma "
        "center_rewards_coefficient missing_eos_penalty max_tool_calling_iterations "
        "num_completions_to_print loss_weights entropy_coef_min entropy_coef_max "
        "entropy_coef_delta entropy_target vllm_importance_sampling_clip_min vespo_k_neg "
        "vespo_k_pos vespo_lambda_neg vespo_lambda_pos cpo_alpha tpo_alpha tpo_l_gamma "
        "loss_top_k num_loss_tokens_to_skip distillation_weight uld_crossentropy_weight "
        "uld_distillation_weight uld_hybrid_matched_weight uld_hybrid_unmatched_weight "
        "diagnostics_flat_tolerance diagnostics_warning_interval padding_value "
        "fork_threshold_tokens max_staleness token_budget",
    ),
    (RATE, "adam_beta1 adam_beta2 label_smoothing_factor"),
    (UNDER_A_HALF, "label_smoothing"),
    (
        FRACTION,
        "min_p ld_alpha ref_model_mixup_alpha lmbda top_entropy_quantile teacher_update_rate "
        "distillation_alpha",
    ),
    (SHARE, "top_p vllm_gpu_memory_utilization"),
    (STEP_SIZE, "learning_rate"),
    (SEED, "seed data_seed"),
    (TOP_K, "top_k"),
    (STEPS, "max_steps max_inflight_tasks"),
    # A group, and a token that another one follows.
    (TWO, "num_generations max_length"),
    (WORKERS, "dataloader_num_workers"),
)

# The arguments of a reward function of the user or of TRL.
REWARD = by_name(
    (POSITIVE, "timeout request_timeout"),
    (NOT_NEGATIVE, "retries wait soft_punish_cache"),
    (COUNT, "batch_size max_length parallel max_len ngram_size max_completion_len"),
)

# Of one class or function alone.
BY_CLASS = {
    "GRPOConfig": by_name(
        # A bound of the ratio, which is 1 where nothing has changed.
        (MORE_THAN_ONE, "delta"),
    ),
    "A2POConfig": by_name(
        (POSITIVE, "beta1 beta2"),
    ),
    "GOLDConfig": by_name(
        (FRACTION, "uld_hybrid_matched_weight uld_hybrid_unmatched_weight"),
    ),
    "Adafactor": by_name(
        # An exponent of the step.
        (NEGATIVE, "decay_rate beta2_decay"),
    ),
    "BEMACallback": by_name(
        (COUNT, "update_freq lag"),
        (NOT_NEGATIVE, "ema_power bias_power update_after"),
        (POSITIVE, "multiplier"),
        (FRACTION, "min_ema_multiplier"),
    ),
    "EarlyStoppingCallback": by_name(
        (COUNT, "early_stopping_patience"),
        (NOT_NEGATIVE, "early_stopping_threshold"),
    ),
    "ParallelismConfig": by_name(
        (COUNT, "dp_replicate_size dp_shard_size tp_size cp_size sp_size"),
    ),
    "OFTConfig": by_name(
        # One of the two is 0 where the other is given.
        (NOT_NEGATIVE, "r oft_block_size"),
    ),
}

BY_GROUP = {
    "peft": PEFT,
    "optimizer": OPTIMIZER,
    "generation": GENERATION,
    "reward": REWARD,
    "trainer": TRAINER,
}


def range_in_group(group: str, name: str) -> Range | None:
    """The range of a number under this name in a group; None where none is known."""
    ranges = BY_GROUP.get(group, {})
    if name in ranges:
        return ranges[name]
    for pattern, numbers in ranges.items():
        if pattern.startswith("|") and re.fullmatch(pattern.strip("|"), name):
            return numbers
    return None
