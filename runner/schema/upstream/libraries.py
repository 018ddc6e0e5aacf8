"""Fields that need a library or a machine, and what they become where that is not there."""

from typing import Any, NamedTuple


class NeededLibrary(NamedTuple):
    """A library that some values of a field need."""

    values: str  # a pattern
    library: str  # as it is imported
    package: str  # as pip installs it


_BITSANDBYTES_OPTIMIZERS = (
    "(?!galore|adamw_torch).*8bit|paged_.*|(?!.*8bit)(?:lion_|ademamix|rmsprop_bnb).*"
)
WANTED: dict[str, list[NeededLibrary]] = {
    "use_liger_kernel": [NeededLibrary("True", "liger_kernel", "liger-kernel")],
    "use_vllm": [NeededLibrary("True", "vllm", "vllm")],
    "deepspeed": [NeededLibrary("(?!None|False).+", "deepspeed", "deepspeed")],
    "optim": [
        NeededLibrary(_BITSANDBYTES_OPTIMIZERS, "bitsandbytes", "bitsandbytes"),
        NeededLibrary("adamw_torch_[48]bit", "torchao", "torchao"),
        NeededLibrary("galore_.*", "galore_torch", "galore-torch"),
        NeededLibrary("apollo_.*", "apollo_torch", "apollo-torch"),
        NeededLibrary("lomo|adalomo", "lomo_optim", "lomo-optim"),
        NeededLibrary("grokadamw", "grokadamw", "grokadamw"),
        NeededLibrary("schedule_free_.*", "schedulefree", "schedulefree"),
        NeededLibrary("stable_adamw", "optimi", "torch-optimi"),
    ],
}
# What those fields may be where the library is not there.
OTHER_VALUES = {"optim": "adamw_torch", "use_liger_kernel": "false", "use_vllm": "false"}

_OPTIMIZER_KEYS = [
    "optimizer.",
    "trainer.args.optim",
    "trainer.args.lr_scheduler_type",
    "trainer.args.lr_scheduler_kwargs",
]
# Files of libraries that work with the values of these keys alone, so that what they raise is about
# one of them.
RAISED_IN = {
    "/peft/": ["peft."],
    "/transformers/generation/": ["trainer.args.generation_kwargs"],
    "/torch/optim/": _OPTIMIZER_KEYS,
    "/transformers/optimization.py": _OPTIMIZER_KEYS,
    "/torch/utils/checkpoint.py": [
        "trainer.args.gradient_checkpointing_kwargs",
        "trainer.args.activation_checkpointing_kwargs",
    ],
    "/torch/_dynamo/": ["trainer.args.torch_compile"],
}

# --- What fields become in a run made small ---

# Fields that need another machine or a server.
ELSEWHERE: dict[str, Any] = {
    "use_vllm": False,
    "torch_compile": False,
    "deepspeed": None,
    "fsdp": None,
    "parallelism_config": None,
}
# Fields that need a GPU.
ON_A_GPU: dict[str, Any] = {
    "tf32": None,
    "use_liger_kernel": False,
    "activation_offloading": False,
}
# Fields that would load, start or send something on which no row depends; for a look at rows alone.
BESIDE_ROWS: dict[str, Any] = {
    "precompute_ref_log_probs": False,
    "push_to_hub": False,
    "bf16": False,
    "fp16": False,
    "sft_model_path": None,
    "reward_model_path": None,
    "rollout_engine": "auto",
    "train_sampling_strategy": "sequential",
}
# Fields that only say how often something is done, where to, or by how many processes: they change
# without a note.
WITHOUT_NOTE: dict[str, Any] = {
    "logging_steps": 1,
    "save_steps": 1,
    "eval_steps": 1,
    "eval_delay": 0,
    "logging_first_step": True,
    "push_to_hub": False,
    "total_episodes": None,
    "dataset_num_proc": None,
}
