"""The names of TRL and transformers that our code relies on, in one place. Standard library only.

A test holds each against the installed libraries, and fails where a new version has renamed it.
"""

from __future__ import annotations

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
