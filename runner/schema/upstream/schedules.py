"""Learning-rate schedules and optimizers of transformers, by the names that fields hold."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """The function or class behind a value of lr_scheduler_type."""

    takes: str | None = None  # the target that lr_scheduler_kwargs go to; None takes none
    example: dict[str, Any] = field(default_factory=dict)  # of arguments that it cannot do without


_FUNCTIONS = "transformers.optimization"
SCHEDULES = {
    "linear": Schedule(f"{_FUNCTIONS}.get_linear_schedule_with_warmup"),
    "cosine": Schedule(f"{_FUNCTIONS}.get_cosine_schedule_with_warmup"),
    "cosine_with_restarts": Schedule(
        f"{_FUNCTIONS}.get_cosine_with_hard_restarts_schedule_with_warmup"
    ),
    "polynomial": Schedule(f"{_FUNCTIONS}.get_polynomial_decay_schedule_with_warmup"),
    "constant": Schedule(),
    "constant_with_warmup": Schedule(),
    "inverse_sqrt": Schedule(f"{_FUNCTIONS}.get_inverse_sqrt_schedule"),
    "reduce_lr_on_plateau": Schedule("torch.optim.lr_scheduler.ReduceLROnPlateau"),
    "cosine_with_min_lr": Schedule(
        f"{_FUNCTIONS}.get_cosine_with_min_lr_schedule_with_warmup",
        example={"min_lr_rate": 0.1},
    ),
    "cosine_warmup_with_min_lr": Schedule(
        f"{_FUNCTIONS}.get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
        example={"min_lr_rate": 0.1},
    ),
    "warmup_stable_decay": Schedule(
        f"{_FUNCTIONS}.get_wsd_schedule", example={"num_decay_steps": 10}
    ),
    "greedy": Schedule(f"{_FUNCTIONS}.GreedyLR"),
}
# Arguments of a schedule that may not be above a field: with more the rate would rise, or its end
# would never be reached.
SCHEDULE_BOUNDS = {
    "min_lr": "learning_rate",
    "lr_end": "learning_rate",
    "num_decay_steps": "max_steps",
}
# Arguments of a schedule that the Trainer gives.
GIVEN_TO_SCHEDULES = [
    "optimizer",
    "num_warmup_steps",
    "num_training_steps",
    "last_epoch",
    "verbose",
]
# Schedules that look at what was evaluated.
SCHEDULES_BY_SCORE = ["reduce_lr_on_plateau", "greedy"]

USUAL_OPTIMIZER = "adamw_torch_fused"  # which TrainingArguments takes where the config names none

_RMSPROP = ["momentum", "alpha", "eps", "weight_decay", "centered"]
# The keys of optim_args that an optimizer reads, by patterns of its name. Any other reads none.
OPTIMIZER_ARGS = {
    "sgd": ["momentum", "dampening", "weight_decay", "nesterov"],
    "adagrad": ["lr_decay", "weight_decay", "eps"],
    "rmsprop": _RMSPROP,
    "rmsprop_.+": _RMSPROP,  # handed on as they are
    "(paged_)?ademamix.*": ["beta1", "beta2", "beta3", "alpha", "eps", "t_alpha", "t_beta3"],
    "adamw_anyprecision": [
        "use_kahan_summation",
        "momentum_dtype",
        "variance_dtype",
        "compensation_buffer_dtype",
    ],
    "galore_.+": ["rank", "update_proj_gap", "scale", "proj_type"],
    "apollo_.+": ["rank", "proj", "scale_type", "update_proj_gap", "scale", "proj_type"],
    "grokadamw": [
        "alpha_init",
        "lamb",
        "gamma",
        "grokking_signal_decay_rate",
        "gradient_clipping",
    ],
    "adamw_torch_[48]bit": ["block_size", "bf16_stochastic_round"],
    "schedule_free_.+": ["weight_lr_power", "r"],
    "stable_adamw": ["max_lr", "kahan_sum", "decouple_lr"],
}
