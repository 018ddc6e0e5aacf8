"""Losses of trainers: what a loss of the user's own replaces, and which figure ranks models."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.schema.read import Signature, read_signature
from runner.schema.source import public_names


class Unweighable(NamedTuple):
    """The only value of a field that goes with weights of tokens, and why."""

    value: Any
    reason: str


CROSS_ENTROPY = "cross_entropy"  # our own figure, of held-out answers
IGNORED = -100  # the label of a token that no loss counts

# What a trainer can give a loss of the user's own, and the names that only such a trainer has:
# arguments of its constructor, fields of its config, or public methods.
LOSS_INTERFACES = {
    "policy": ["policy_loss"],
    "groups": ["reward_funcs", "multi_objective_aggregation"],
    "sequences": ["reward_funcs", "normalize_advantages"],
    "tokens": ["compute_loss_func", "completion_only_loss"],
    "pairs": ["precompute_ref_log_probs", "f_divergence_type"],
    "labels": ["precompute_ref_log_probs", "desirable_weight"],
    "odds": ["odds_ratio_loss"],
    "contrasts": ["cpo_loss"],
    "scores": ["center_rewards_coefficient"],
}
# Those of trainers that learn from what they sample.
OF_SAMPLES = ("policy", "groups", "sequences")
# Loss interfaces whose tokens may have weights.
WEIGHED = ("tokens", "pairs", "labels")

# Fields of TRL's own losses, each with the value that leaves it out.
OWN_LOSS: dict[str, Any] = {
    "loss_weights": None,
    "label_smoothing": 0.0,
    "f_divergence_type": "reverse_kl",
    "use_weighting": False,
    "ld_alpha": None,
    "center_rewards_coefficient": None,
    "label_smoothing_factor": 0.0,
    "alpha": 0.0,
}
# Fields of the losses of trainers that sample, which a loss of the user's own replaces, with what
# says the same: {0} is the value, or its name in LOSS_TYPES or SCALES.
OWN_POLICY_LOSS = {
    "epsilon": "loss.clip=[{0},{0}]",
    "epsilon_high": "loss.clip=[0.2,{0}]",
    "cliprange": "loss.clip=[{0},{0}]",
    "delta": "loss.dual_clip={0}",
    "dual_clip": "loss.dual_clip={0}",
    "importance_sampling_level": "loss.ratio={0}",
    "loss_type": "loss.average={0}",
    "scale_rewards": "loss.advantage={0}",
    "multi_objective_aggregation": "",
    "top_entropy_quantile": "",
    "entropy_coef": "",
    "use_adaptive_entropy": "",
    "off_policy_mask_threshold": "",
    "use_bias_correction_kl": "loss.weigh_kl={0}",
}
# The values of these fields for the keys of ``loss``.
LOSS_TYPES = {
    "token": "dapo",
    "micro_batch": "bnpo",
    "sequence": "grpo",
    "constant": "dr_grpo",
    "sum": "luspo",
}
SCALES = {"group": "group", "batch": "batch", "mean": "none", "leave_one_out": "none"}
# Values of loss_type beside which a loss of the user's own may stand.
PLAIN_LOSS_TYPES: list[str | list[str]] = ["nll", "sigmoid", ["sigmoid"], "kto"]

# Fields with which weights of tokens are wrong or without effect.
UNWEIGHABLE: dict[str, Unweighable] = {
    "assistant_only_loss": Unweighable(False, "weight=answers leaves the same tokens"),
    "precompute_ref_log_probs": Unweighable(False, "they are computed without weights"),
    "use_weighting": Unweighable(False, "it uses log-probabilities without weights"),
    "label_smoothing_factor": Unweighable(0.0, "loss=label_smoothed works with weights"),
    "chat_template_path": Unweighable(None, "model.tokenizer.chat_template is for that"),
    "eos_token": Unweighable(None, "model.tokenizer.eos_token is for that"),
    "eval_packing": Unweighable(None, "held-out rows are packed as the training rows are"),
    "torch_compile": Unweighable(False, "a compiled model cannot be watched"),
    "dataset_kwargs": Unweighable(None, "the trainer's own tokens are needed"),
}

# Losses of pairs that sort the pairs of a micro-batch, so that one pair has none of its own.
SORTED_LOSSES = ["aot", "aot_unpaired"]

# Values of fields with which a loss does not measure a model, because a model that learns may have
# a higher one: DFT weighs each token with its probability, WPO each pair with the likelihood of
# both answers, and DiscoPOP's loss rises first.
NO_MEASURE: dict[str, list[Any]] = {
    "loss_type": ["dft", "discopop"],
    "use_weighting": [True],
}
# The held-out figure that ranks models in place of such a loss, by loss interface.
RANKED_BY = {
    "tokens": CROSS_ENTROPY,
    "pairs": "rewards/accuracies",
    "labels": "rewards/margins",
    "odds": "rewards/accuracies",
    "contrasts": "rewards/accuracies",
    "scores": "accuracy",
}

# Figures that each evaluation has: a metric of the same name would be lost.
FIGURES = frozenset(
    {
        "loss",
        "runtime",
        "samples_per_second",
        "steps_per_second",
        "model_preparation_time",
        "epoch",
        "num_tokens",
        "step",
    }
)


def loss_interface(trainer: Signature | None, config: Signature | None) -> str | None:
    """The key in LOSS_INTERFACES of a trainer with this config.

    None for a trainer that computes its loss in another way.
    """
    if trainer is None:
        return None
    samples = not {"reward_funcs", "teacher_model"}.isdisjoint(trainer.parameters)
    names = {*trainer.parameters, *public_names(trainer.target)}
    if config is not None:
        names |= set(config.parameters)
    for interface, needed in LOSS_INTERFACES.items():
        if samples and interface not in OF_SAMPLES:
            continue
        if names.issuperset(needed):
            return interface
    return None


def ranking_figure(cfg: Mapping[str, Any]) -> str:
    """The held-out figure, without its set, by which models of a configuration are compared.

    The loss, unless it does not measure how well a model knows held-out answers: a loss of the
    user's own, one with weights or smoothed labels, one that a model which learns may raise, and
    any loss of sampled completions.
    """
    trainer_node = cfg.get("trainer")
    args = trainer_node.get("args") if isinstance(trainer_node, Mapping) else None
    if not isinstance(trainer_node, Mapping) or not isinstance(args, Mapping):
        return "loss"
    trainer = read_signature(str(trainer_node.get("_target_")))
    config = read_signature(str(args.get("_target_")))
    if trainer is None or config is None:
        return "loss"
    interface = loss_interface(trainer, config)
    if interface == "policy":
        return "objective/scores"
    distills = any(name.startswith("distill") for name in config.parameters)
    if "reward_funcs" in trainer.parameters and not distills:
        return "reward"
    smooths = interface == "tokens" and args.get("label_smoothing_factor")
    has_other_loss = cfg.get("loss") or cfg.get("weight") or smooths or misleading_fields(args)
    if has_other_loss and interface in RANKED_BY:
        return RANKED_BY[interface]
    return "loss"


def misleading_fields(args: Mapping[str, Any]) -> list[str]:
    """The fields of a trainer's config by which its loss may rise while the model learns."""
    fields = []
    for name, misleading in NO_MEASURE.items():
        value = args.get(name)
        values = value if isinstance(value, list | tuple) else [value]
        if any(value in misleading for value in values):
            fields.append(name)
    return fields
