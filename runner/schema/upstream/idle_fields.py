"""Fields that nothing reads: because of another field, of the runner, or of another group.

A configuration that sets one is refused, so that nobody believes that it had an effect.
"""

from typing import NamedTuple


class ReadBeside(NamedTuple):
    """The condition under which a field has an effect."""

    field: str  # another field of the config
    # Patterns of the values of that field, none where the field is never read; "set" is any value
    # but null, false and 0.
    values: list[str] | str = "set"


class DoneByRunner(NamedTuple):
    """The reason why nothing reads a field, and the key to type in its place."""

    reason: str
    instead: str | None = None


WITH_VLLM = ReadBeside("use_vllm")
WITH_VLLM_ENGINE = ReadBeside("rollout_engine", ["vllm"])
WHEN_PUSHED = ReadBeside("push_to_hub")
WITH_MAX_LENGTH = ReadBeside("max_length")
WITH_ADAPTIVE_ENTROPY = ReadBeside("use_adaptive_entropy")
WITH_SYNCED_REFERENCE = ReadBeside("sync_ref_model")
WITH_ULD_LOSS = ReadBeside("use_uld_loss")
WITH_LOGGED_COMPLETIONS = ReadBeside("log_completions")
WITH_VESPO = ReadBeside("loss_type", ["vespo"])
WITH_SAPO = ReadBeside("loss_type", ["sapo"])
WITH_INITIAL_TEXT = ReadBeside("prompt_tuning_init", ["TEXT"])
WITH_LSTM = ReadBeside("encoder_reparameterization_type", ["LSTM"])
WITH_ADAM_OR_LION = ReadBeside("optim", [".*adam.*", ".*lion.*"])
WITH_WORKERS = ReadBeside("dataloader_num_workers")
WITH_CHECKPOINTING = ReadBeside("gradient_checkpointing")
WITH_HYBRID_ULD_LOSS = ReadBeside("uld_use_hybrid_loss")
WITH_IW_OPD = ReadBeside("distillation_objective", ["iw_opd"])
WITH_WARMUP = ReadBeside(
    "lr_scheduler_type",
    [
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "constant_with_warmup",
        "inverse_sqrt",
        "cosine_with_min_lr",
        "cosine_warmup_with_min_lr",
        "warmup_stable_decay",
    ],
)
WITH_CLIPPED_LOSS = ReadBeside("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
# No loss of such a trainer reads the field.
NEVER = ReadBeside("loss_type", [])

# By config, then by field. Of several configs in the lineage of one the nearest counts; None takes
# back what a base says.
READ_BESIDE: dict[str, dict[str, ReadBeside | None]] = {
    "TrainingArguments": {
        "warmup_steps": WITH_WARMUP,
        "adam_beta1": WITH_ADAM_OR_LION,
        "adam_beta2": WITH_ADAM_OR_LION,
        "adam_epsilon": ReadBeside("optim", [".*adam.*"]),
        "optim_target_modules": ReadBeside("optim", ["galore.*", "apollo.*"]),
        "eval_steps": ReadBeside("eval_strategy", ["steps"]),
        "save_steps": ReadBeside("save_strategy", ["steps", "best"]),
        "logging_steps": ReadBeside("logging_strategy", ["steps"]),
        "fsdp_config": ReadBeside("fsdp"),
        "gradient_checkpointing_kwargs": WITH_CHECKPOINTING,
        "dataloader_persistent_workers": WITH_WORKERS,
        "label_smoothing_factor": NEVER,
        "hub_strategy": WHEN_PUSHED,
        "hub_private_repo": WHEN_PUSHED,
        "hub_model_id": WHEN_PUSHED,
        "hub_revision": WHEN_PUSHED,
        "hub_always_push": WHEN_PUSHED,
        "liger_kernel_config": ReadBeside("use_liger_kernel"),
        "activation_checkpointing_kwargs": WITH_CHECKPOINTING,
        "length_column_name": ReadBeside("train_sampling_strategy", ["group_by_length"]),
        "eval_delay": ReadBeside("eval_strategy"),
        "dataloader_multiprocessing_context": WITH_WORKERS,
        "dataloader_in_order": WITH_WORKERS,
    },
    "SFTConfig": {
        "label_smoothing_factor": ReadBeside("loss_type", ["nll"]),
        "packing_strategy": ReadBeside("packing"),
        "truncation_mode": WITH_MAX_LENGTH,
    },
    "GKDConfig": {
        "label_smoothing_factor": NEVER,
    },
    "GOLDConfig": {
        "label_smoothing_factor": NEVER,
        "uld_crossentropy_weight": WITH_ULD_LOSS,
        "uld_distillation_weight": WITH_ULD_LOSS,
        "uld_student_temperature": WITH_ULD_LOSS,
        "uld_teacher_temperature": WITH_ULD_LOSS,
        "uld_hybrid_matched_weight": WITH_HYBRID_ULD_LOSS,
        "uld_hybrid_unmatched_weight": WITH_HYBRID_ULD_LOSS,
        "vllm_gpu_memory_utilization": WITH_VLLM,
        "vllm_tensor_parallel_size": WITH_VLLM,
        "vllm_mode": WITH_VLLM,
    },
    "DPOConfig": {
        "label_smoothing": ReadBeside("loss_type", ["robust", "exo_pair", "aot", "aot_unpaired"]),
        "discopop_tau": ReadBeside("loss_type", ["discopop"]),
        "f_alpha_divergence_coef": ReadBeside("f_divergence_type", ["alpha_divergence"]),
        "precompute_ref_batch_size": ReadBeside("precompute_ref_log_probs"),
        "truncation_mode": WITH_MAX_LENGTH,
        "ref_model_mixup_alpha": WITH_SYNCED_REFERENCE,
        "ref_model_sync_steps": WITH_SYNCED_REFERENCE,
    },
    "CPOConfig": {
        "label_smoothing": ReadBeside("loss_type", ["sigmoid", "simpo", "alphapo"]),
        "simpo_gamma": ReadBeside("loss_type", ["simpo", "alphapo"]),
    },
    "TPOConfig": {
        "label_smoothing": ReadBeside("loss_type", ["sigmoid", "tpo-l"]),
        "tpo_l_gamma": ReadBeside("loss_type", ["tpo-l"]),
    },
    "GRPOConfig": {
        "epsilon": WITH_CLIPPED_LOSS,
        "epsilon_high": ReadBeside(
            "loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo"]
        ),
        "delta": WITH_CLIPPED_LOSS,
        "sapo_temperature_neg": WITH_SAPO,
        "sapo_temperature_pos": WITH_SAPO,
        "vespo_k_neg": WITH_VESPO,
        "vespo_k_pos": WITH_VESPO,
        "vespo_lambda_neg": WITH_VESPO,
        "vespo_lambda_pos": WITH_VESPO,
        "entropy_coef_min": WITH_ADAPTIVE_ENTROPY,
        "entropy_coef_max": WITH_ADAPTIVE_ENTROPY,
        "entropy_coef_delta": WITH_ADAPTIVE_ENTROPY,
        "entropy_target": WITH_ADAPTIVE_ENTROPY,
        "use_bias_correction_kl": ReadBeside("beta"),
        "ref_model_mixup_alpha": WITH_SYNCED_REFERENCE,
        "ref_model_sync_steps": WITH_SYNCED_REFERENCE,
        "vllm_importance_sampling_correction": WITH_VLLM,
        "vllm_importance_sampling_mode": WITH_VLLM,
        "vllm_importance_sampling_cap": WITH_VLLM,
        "vllm_importance_sampling_clip_max": WITH_VLLM,
        "vllm_importance_sampling_clip_min": WITH_VLLM,
        "vllm_gpu_memory_utilization": WITH_VLLM,
        "vllm_tensor_parallel_size": WITH_VLLM,
        "vllm_max_model_length": WITH_VLLM,
        "vllm_mode": WITH_VLLM,
        "vllm_model_impl": WITH_VLLM,
        "vllm_enable_sleep_mode": WITH_VLLM,
        "vllm_structured_outputs_regex": WITH_VLLM,
        "vllm_server_base_url": WITH_VLLM,
        "vllm_server_host": WITH_VLLM,
        "vllm_server_port": WITH_VLLM,
        "vllm_server_timeout": WITH_VLLM,
        "vllm_group_port": WITH_VLLM,
        "transformers_continuous_batching_config": ReadBeside(
            "use_transformers_continuous_batching"
        ),
        "ds3_gather_for_generation": ReadBeside("deepspeed"),
        "num_completions_to_print": WITH_LOGGED_COMPLETIONS,
        "log_unique_prompts": WITH_LOGGED_COMPLETIONS,
        "log_multimodal": WITH_LOGGED_COMPLETIONS,
    },
    "GMPOConfig": {
        "epsilon": None,
        "epsilon_high": None,
    },
    "RLOOConfig": {
        "ref_model_mixup_alpha": WITH_SYNCED_REFERENCE,
        "ref_model_sync_steps": WITH_SYNCED_REFERENCE,
        "vllm_gpu_memory_utilization": WITH_VLLM,
        "vllm_tensor_parallel_size": WITH_VLLM,
        "vllm_max_model_length": WITH_VLLM,
        "vllm_mode": WITH_VLLM,
        "num_completions_to_print": WITH_LOGGED_COMPLETIONS,
        "log_unique_prompts": WITH_LOGGED_COMPLETIONS,
    },
    "OnlineDPOConfig": {
        "vllm_gpu_memory_utilization": WITH_VLLM,
        "vllm_tensor_parallel_size": WITH_VLLM,
        "vllm_mode": WITH_VLLM,
    },
    "IWOPDConfig": {
        "iw_opd_gamma": WITH_IW_OPD,
        "iw_opd_epsilon": WITH_IW_OPD,
    },
    "PPOConfig": {
        "kl_horizon": ReadBeside("kl_target"),
        "kl_estimator": ReadBeside("kl_coef"),
        "vllm_mode": WITH_VLLM_ENGINE,
        "vllm_server_base_url": WITH_VLLM_ENGINE,
        "vllm_server_timeout": WITH_VLLM_ENGINE,
        "vllm_gpu_memory_utilization": WITH_VLLM_ENGINE,
        "vllm_max_model_length": WITH_VLLM_ENGINE,
        "vllm_tensor_parallel_size": WITH_VLLM_ENGINE,
        "vllm_enable_sleep_mode": WITH_VLLM_ENGINE,
        "vllm_importance_sampling_clip_max": WITH_VLLM_ENGINE,
    },
    # Of the adapters of peft, which only warn of it, or say nothing.
    "LoraConfig": {
        "megatron_core": ReadBeside("megatron_config"),
        "loftq_config": ReadBeside("init_lora_weights", ["loftq"]),
        "eva_config": ReadBeside("init_lora_weights", ["eva"]),
        "corda_config": ReadBeside("init_lora_weights", ["corda"]),
        "lora_ga_config": ReadBeside("init_lora_weights", ["lora_ga"]),
        "qalora_group_size": ReadBeside("use_qalora"),
    },
    "AdaLoraConfig": {
        "r": ReadBeside("init_r", []),
    },
    "OFTConfig": {
        "eps": ReadBeside("coft"),
        "num_cayley_neumann_terms": ReadBeside("use_cayley_neumann"),
    },
    "PromptTuningConfig": {
        "prompt_tuning_init_text": WITH_INITIAL_TEXT,
        "tokenizer_name_or_path": WITH_INITIAL_TEXT,
    },
    "PromptEncoderConfig": {
        "encoder_dropout": WITH_LSTM,
        "encoder_num_layers": WITH_LSTM,
    },
    "PrefixTuningConfig": {
        "encoder_hidden_size": ReadBeside("prefix_projection"),
    },
}

# Fields with a newer name, which counts where it is given.
NEWER_NAMES = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}

# Fields for what the runner has done already, or does by other keys.
DONE_BY_RUNNER = {
    "dataset_text_field": DoneByRunner(
        "the runner has named the column text by then", "dataset.columns.text"
    ),
    "label_names": DoneByRunner("the collator names the labels"),
    "do_train": DoneByRunner("the command says what is done, not a field"),
    "do_eval": DoneByRunner("eval_strategy says when it is done"),
    "do_predict": DoneByRunner("the command says what is done, not a field"),
}

# Fields for a model that the runner loads itself, with the keys that take their place.
LOADED_BY_GROUP = {
    "model_init_kwargs": "keys of model, such as model.dtype, model.attention, model.config",
    "teacher_model_init_kwargs": (
        "keys of trainer.teacher_model, such as trainer.teacher_model.dtype"
    ),
}

# Fields that a part of the optimizer group replaces.
REPLACED_BY = {
    "optimizer": [
        "optim",
        "optim_args",
        "optim_target_modules",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
    ],
    "optimizer.scheduler": ["lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"],
}
