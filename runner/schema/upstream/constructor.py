"""Arguments of constructors: who fills them, which are needed, and which are passed on."""

import ast
from dataclasses import dataclass

from runner.schema.read import Signature


@dataclass(frozen=True)
class PassedOn:
    """The target of arguments that stand in a field of a config and are handed on late."""

    to: str | None = None  # the target; None where no signature says its keys
    given: tuple[str, ...] = ()  # arguments of the target that the library gives
    keys: tuple[str, ...] = ()  # further keys
    prefix: str = ""  # that may stand before each key


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
    "policy_loss": "loss",
    "optimizers": "optimizer",
    "optimizer_cls_and_kwargs": "optimizer",
}
# Those that are functions of the user's, called while completions are made: a text there is the
# name of one.
FUNCTIONS = ["tools", "environment_factory", "rollout_func"]
# What the train command gives to a part of a group whose signature names it, so that no config
# needs to.
SERVED = {
    "trainer": [
        "tokenizer",
        "reward_model",
        "ref_model",
        "teacher_model",
        "compute_metrics",
        "reward_processing_classes",
    ],
    "model": ["tokenizer", "head", "quantization_config"],
    "dataset": ["to", "keep", "seed", "environment"],
    "peft": ["model", "task_type"],
    "collator": ["tokenizer", "processing_class", "pad_token_id", "inner"],
    "optimizer": ["params", "named_parameters", "model"],
    "optimizer.scheduler": ["optimizer", "num_training_steps"],
    "callback": [
        "tokenizer",
        "processing_class",
        "folder",
        "train_dataset",
        "eval_dataset",
        "trainer",
        "generate",
        "prompts",
        "accelerator",
        "ref_model",
    ],
    "launcher": ["folder", "debug"],
}
SERVED["tracker"] = SERVED["callback"]

# Fields of a trainer's config that a key of the top level sets.
FROM_TOP = {
    "learning_rate": "learning_rate",
    "seed": "seed",
    "beta": "kl_coef",
    "kl_coef": "kl_coef",
}

# Fields that are needed although their default is None, by config. Of several configs in the
# lineage of one the nearest counts.
NEEDED_FIELDS = {
    "AdaptionPromptConfig": ["adapter_len", "adapter_layers"],
    "AdaLoraConfig": ["total_step"],
    "CPTConfig": [],  # which takes one token
    "PromptLearningConfig": ["num_virtual_tokens"],
    "XLoraConfig": ["hidden_size", "adapters"],
}

# Pairs of fields of which the first must not be above the second.
ASCENDING = [
    ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max"),
    ("entropy_coef_min", "entropy_coef_max"),
]

_TO_CHECKPOINTING = PassedOn(
    to="torch.utils.checkpoint.checkpoint",
    given=("function",),
    keys=("every_n_layers", "offload"),
)
PASSED_ON = {
    "gradient_checkpointing_kwargs": _TO_CHECKPOINTING,
    "activation_checkpointing_kwargs": _TO_CHECKPOINTING,
    "accelerator_config": PassedOn(to="transformers.trainer_pt_utils.AcceleratorConfig"),
    "accelerator_config.gradient_accumulation_kwargs": PassedOn(
        to="accelerate.utils.GradientAccumulationPlugin"
    ),
    "generation_kwargs": PassedOn(to="transformers.GenerationConfig"),
    "transformers_continuous_batching_config": PassedOn(to="transformers.ContinuousBatchingConfig"),
    "dataset_kwargs": PassedOn(keys=("skip_prepare_dataset",)),
    "fsdp_config": PassedOn(
        prefix="fsdp_",
        keys=(
            "version",
            "reshard_after_forward",
            "cpu_offload",
            "activation_checkpointing",
            "cpu_ram_efficient_loading",
            "state_dict_type",
            "auto_wrap_policy",
            "transformer_layer_cls_to_wrap",
            "min_num_params",
            "xla",
            "xla_fsdp_v2",
            "xla_fsdp_settings",
            "xla_fsdp_grad_ckpt",
            "backward_prefetch",
            "forward_prefetch",
            "use_orig_params",
            "sync_module_states",
            "limit_all_gathers",
            "buffer_dtype",
            "compute_dtype",
        ),
    ),
}


def takes_path(trainer: Signature | None) -> bool:
    """True for a trainer that asks for the path of its model and loads the weights itself."""
    model = trainer.parameters.get("model") if trainer else None
    if model is None:
        return False
    return isinstance(model.annotation, ast.Name) and model.annotation.id == "str"
