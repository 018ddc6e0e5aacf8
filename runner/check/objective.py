"""Losses and token weights of the user's own: which trainers take them, and what does not go with them.

What each trainer gives a loss is written down in ``GIVES``, because no signature says it; a test holds it against
``trainer.objective``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.check.known import Asked, Node
from runner.check.value import nearest, shown
from runner.errors import Fault
from runner.signature import Signature
from runner.signature.type import shortened

WHOLE_BATCH = ("outputs", "labels", "num_items_in_batch")
PAIR = ("chosen_logps", "rejected_logps", "beta")
GIVES = {
    "SFTTrainer": ("log_probs", "entropy", "targets", "logits", *WHOLE_BATCH),
    "DPOTrainer": (*PAIR, "ref_chosen_logps", "ref_rejected_logps", "chosen_lengths", "rejected_lengths"),
    "KTOTrainer": ("logps", "ref_logps", "desirable", "lengths", "kl", "beta"),
    "ORPOTrainer": PAIR,
    "CPOTrainer": PAIR,
    "RewardTrainer": ("chosen_rewards", "rejected_rewards"),
}
ALSO_GIVES = {"SFTTrainer": ("input", "target")}  # what the losses of torch.nn call logits and targets
WEIGHED = ("SFTTrainer", "DPOTrainer", "KTOTrainer")

TEACHER = "its loss is the distance to a teacher"
REWARDED = "it learns from rewards, and has no labels"
WITHOUT_LOSS = {
    **dict.fromkeys(("GKDTrainer", "GOLDTrainer", "DistillationTrainer"), TEACHER),
    **dict.fromkeys(("GRPOTrainer", "RLOOTrainer", "PPOTrainer", "OnlineDPOTrainer"), REWARDED),
}
WITHOUT_WEIGHT = WITHOUT_LOSS | {
    **dict.fromkeys(("ORPOTrainer", "CPOTrainer"), "it cuts rows into tokens and averages over them by itself"),
    "RewardTrainer": "it scores whole answers, not tokens",
}

# Fields of TRL's own losses, each with the value that leaves it out; beside a loss they would be in vain.
IN_VAIN = {
    **{"loss_weights": None, "label_smoothing": 0.0, "f_divergence_type": "reverse_kl", "use_weighting": False},
    **{"ld_alpha": None, "center_rewards_coefficient": None, "label_smoothing_factor": 0.0, "alpha": 0.0},
}
# Fields that do not go with weights: the value that does, and why another does not.
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


def find_objective_faults(asked: Asked, trainer: Signature) -> Iterator[Fault]:
    """A fault for each loss or weight that this trainer cannot use, or that something else makes vain."""
    loss, weight = asked.cfg.get("loss"), asked.cfg.get("weight")
    known = next((name for name in trainer.lineage if name in GIVES or name in WITHOUT_LOSS), None)
    args = asked.cfg["trainer"].get("args")
    args = args if isinstance(args, dict) else {}
    if loss and known in GIVES:
        yield from _ungiven(asked, loss, known, trainer)
        yield from _vain(args)
    elif loss and not (known is None and "compute_loss_func" in trainer.parameters):
        yield _unusable("loss", trainer, WITHOUT_LOSS.get(known, "it computes its loss in a way of its own"), [*GIVES])
    if weight and known in WEIGHED:
        yield from _unweighable(asked, args, loss)
    elif weight:
        why = WITHOUT_WEIGHT.get(known, "it computes its loss in a way of its own")
        yield _unusable("weight", trainer, why, WEIGHED)


def _unusable(group: str, trainer: Signature, why: str, names: Any) -> Fault:
    able = ", ".join(name.removesuffix("Trainer").lower() for name in names)
    return Fault(group, f"set, but {trainer.name} takes none: {why}", f"one of these trainers: {able}", f"{group}=none")


def _ungiven(asked: Asked, loss: Node, known: str, trainer: Signature) -> Iterator[Fault]:
    """A fault for each thing that a loss wants and this trainer does not have."""
    signature = asked.signature(loss)
    if signature is None:
        return
    given = (*GIVES[known], *ALSO_GIVES.get(known, ()))
    if "Module" in signature.lineage and known != "SFTTrainer":
        yield Fault("loss", f"{signature.name} takes logits and targets", shortened(GIVES[known]), "trainer=sft")
    if signature.lineage:  # a class: what its instances are called with is not its signature
        return
    for name in signature.required:
        if name not in given and name not in loss:
            near = nearest(name, given)
            found = f"{signature.name} asks for {name}, which {trainer.name} does not give"
            expected = f"some of {', '.join(GIVES[known])}"
            cure = f"call the argument {near[0]}, or give it: loss.{name}=<value>" if near else "loss=none"
            yield Fault("loss", found, expected, cure)


def _vain(args: Node) -> Iterator[Fault]:
    """A fault for each setting of TRL's own loss, whose place a loss takes."""
    for name, off in IN_VAIN.items():
        if name in args and args[name] != off:
            where, cure = f"trainer.args.{name}", f"leave {name} out, or loss=none"
            yield Fault(where, f"{shown(args[name])}, in vain beside a loss", "one of the two", cure)
    if "loss_type" in args and args["loss_type"] not in ("nll", "sigmoid", ["sigmoid"], "kto"):
        found = f"{shown(args['loss_type'])}, in vain beside a loss"
        yield Fault("trainer.args.loss_type", found, "one of the two", "leave loss_type out, or loss=none")


def _unweighable(asked: Asked, args: Node, loss: Any) -> Iterator[Fault]:
    """A fault for each setting under which weights would be wrong or without effect."""
    for name, (right, why) in UNWEIGHABLE.items():
        if name in args and args[name] != right:
            where, cure = f"trainer.args.{name}", f"leave {name} out, or weight=none"
            yield Fault(where, f"{shown(args[name])} beside weights of tokens", f"{shown(right)}: {why}", cure)
    if args.get("loss_type") == "dft":
        cure = "trainer.args.loss_type=nll loss=rescaled"
        yield Fault("trainer.args.loss_type", "dft, which weighs tokens itself", "the same as a loss", cure)
    signature = asked.signature(loss)
    if signature and set(signature.parameters) & set(WHOLE_BATCH):
        found = f"weights of tokens, and {signature.name} makes one number of the whole batch"
        yield Fault("weight", found, "a loss of log_probs, or of logits and targets", "weight=none")
    if args.get("packing") and "streaming" in (asked.cfg.get("dataset") or {}) and asked.cfg["dataset"]["streaming"]:
        yield Fault("weight", "streamed rows that are packed", "rows on disk", "dataset.streaming=false")
