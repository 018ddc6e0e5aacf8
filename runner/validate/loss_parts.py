"""Losses and token weights of the user's own: the trainers that take them, and what fits them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.config.menu import read_options
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.did_you_mean import best_guess
from runner.schema.read import Signature, read_signature
from runner.schema.text import Node, short_text
from runner.schema.type import shortened
from runner.validate.context import ValidationContext

# What each kind of trainer gives a loss of the user's own, which no signature says; a test compares
# it with training.sequence_objective.
GIVES = {
    "tokens": [
        "log_probs",
        "entropy",
        "targets",
        "logits",
        "outputs",
        "labels",
        "num_items_in_batch",
    ],
    "pairs": [
        "chosen_logps",
        "rejected_logps",
        "beta",
        "ref_chosen_logps",
        "ref_rejected_logps",
        "chosen_lengths",
        "rejected_lengths",
    ],
    "labels": ["logps", "ref_logps", "desirable", "lengths", "kl", "beta"],
    "odds": ["chosen_logps", "rejected_logps", "beta", "chosen_lengths", "rejected_lengths"],
    "contrasts": ["chosen_logps", "rejected_logps", "beta", "chosen_lengths", "rejected_lengths"],
    "scores": ["chosen_rewards", "rejected_rewards"],
    "policy": ["log_probs", "old_log_probs", "advantages", "mask"],
    "groups": [
        "log_probs",
        "old_log_probs",
        "ref_log_probs",
        "advantages",
        "mask",
        "entropy",
        "beta",
    ],
    "sequences": ["log_probs", "old_logps", "advantages", "mask", "entropy"],
}
# The names that losses of torch.nn have for logits and targets.
ALSO_GIVES = {"tokens": ["input", "target"]}


@dataclass(frozen=True)
class NeededArgument:
    """An argument that a loss must ask for, and what it would leave out without it."""

    name: str
    stands_for: str


NEEDS = dict.fromkeys(upstream.OF_SAMPLES, NeededArgument("advantages", "rewards of completions"))
# Arguments of a loss that makes one number of the whole batch.
WHOLE_BATCH = ("outputs", "labels", "num_items_in_batch")
WEIGHED = upstream.WEIGHED
# The reason why the tokens of some kinds have no weights.
OWN_AVERAGE = "it tokenises rows and averages over them by itself"
OF_REWARDS = "it learns from rewards, and has no labels"
NOT_WEIGHED = {
    **dict.fromkeys(upstream.OF_SAMPLES, OF_REWARDS),
    "odds": OWN_AVERAGE,
    "contrasts": OWN_AVERAGE,
    "scores": "it scores whole answers, not tokens",
}


def find_objective_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each loss or weight that this trainer cannot use, or that has no effect."""
    trainer = context.trainer
    loss = context.mapping("loss")
    weight = context.mapping("weight")
    if not trainer or not trainer.parameters or not (loss or weight):
        return
    kind = upstream.loss_interface(trainer, context.signature(context.args))
    reason = _describe_loss_of(trainer)
    if loss and kind:
        yield from _find_arguments_not_given(loss, context.signature(loss), kind, trainer.name)
        yield from _find_arguments_given_twice(loss, kind, trainer.name)
        # The settings of TRL's own loss, which a loss of the user's replaces.
        args = context.args
        overruled = []
        for name, off in upstream.OWN_LOSS.items():
            if args.get(name, off) != off:
                overruled.append(name)
        is_plain = args.get("loss_type", "nll") in upstream.PLAIN_LOSS_TYPES
        if not is_plain and kind not in upstream.OF_SAMPLES:
            overruled.append("loss_type")
        for name in overruled:
            yield Fault(
                where=f"trainer.args.{name}",
                found=f"{short_text(args[name])}, which has no effect with a loss",
                expected="one of the two",
                fix=f"leave {name} out, or loss=none",
            )
    elif loss and "compute_loss_func" not in trainer.parameters:
        yield _unusable("loss", trainer.name, reason, tuple(GIVES))
    if weight and kind in WEIGHED:
        yield from _find_beside_weights(context)
    elif weight:
        yield _unusable("weight", trainer.name, NOT_WEIGHED.get(kind or "", reason), WEIGHED)


def _describe_loss_of(trainer: Signature) -> str:
    """The reason why a trainer takes no loss of the user's own."""
    if "reward_funcs" in trainer.parameters:
        return OF_REWARDS
    if "teacher_model" in trainer.parameters:
        return "its loss is the distance to a teacher"
    return "it computes its loss in its own way"


def _find_beside_weights(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each setting under which weights of tokens are wrong, or without effect."""
    args = context.args
    for name, (right, reason) in upstream.UNWEIGHABLE.items():
        if name in args and args[name] != right:
            yield Fault(
                where=f"trainer.args.{name}",
                found=f"{short_text(args[name])}, with token weights",
                expected=f"{short_text(right)}: {reason}",
                fix=f"leave {name} out, or weight=none",
            )
    if args.get("loss_type") == "dft":
        yield Fault(
            where="trainer.args.loss_type",
            found="dft, which weights tokens itself",
            expected="the same as a loss",
            fix="trainer.args.loss_type=nll loss=rescaled",
        )
    loss = context.signature(context.mapping("loss"))
    if loss and set(loss.parameters) & set(WHOLE_BATCH):
        yield Fault(
            where="weight",
            found=f"token weights, but {loss.name} returns one number for the whole batch",
            expected="a loss of log_probs, or of logits and targets",
            fix="=none",
        )
    if args.get("packing") and context.mapping("dataset").get("streaming"):
        yield Fault(
            where="weight",
            found="streamed rows that are packed",
            expected="rows on disk",
            fix="dataset.streaming=false",
        )


def _unusable(group: str, trainer: str, reason: str, kinds: Sequence[str]) -> Fault:
    """The fault of a loss or weight for a trainer that takes none, with those that do."""
    trainers: dict[str | None, list[str]] = {}
    for name, option in read_options("trainer").items():
        node = option["trainer"]
        config = read_signature(node["args"]["_target_"])
        kind = upstream.loss_interface(read_signature(node["_target_"]), config)
        trainers.setdefault(kind, []).append(name)
    able: list[str] = []
    for kind in kinds:
        able += trainers.get(kind, ())
    return Fault(
        where=group,
        found=f"set, but {trainer} takes none: {reason}",
        expected=f"one of these trainers: {', '.join(able)}",
        fix="=none",
    )


def _find_arguments_not_given(
    loss: Node, signature: Signature | None, kind: str, trainer: str
) -> Iterator[Fault]:
    """A fault for each argument of a loss that a trainer of this kind does not give."""
    if signature is None:
        return
    gives = [*GIVES[kind], *ALSO_GIVES.get(kind, ())]
    if "Module" in signature.lineage and kind != "tokens":
        yield Fault(
            where="loss",
            found=f"{signature.name} takes logits and targets",
            expected=shortened(GIVES[kind]),
            fix="trainer=sft",
        )
    if signature.lineage:
        return  # a class: its signature is not that by which its instances are called
    needed = NEEDS.get(kind)
    if needed and needed.name not in signature.parameters and not signature.is_open:
        yield Fault(
            where="loss",
            found=f"{signature.name} does not ask for {needed.name}",
            expected=f"a loss of {needed.stands_for}",
            fix="loss=none",
        )
    for name in signature.required:
        if name in gives or name in loss:
            continue
        fix = "loss=none"
        similar = best_guess(name, gives)
        if kind == "sequences" and name in GIVES["groups"]:
            fix = "trainer=grpo loss.advantage=leave_one_out"
        elif similar:
            fix = f"call the argument {similar}, or give it: loss.{name}=<value>"
        yield Fault(
            where="loss",
            found=f"{signature.name} asks for {name}, which {trainer} does not give",
            expected=f"some of {', '.join(GIVES[kind])}",
            fix=fix,
        )


def _find_arguments_given_twice(loss: Node, kind: str, trainer: str) -> Iterator[Fault]:
    """A fault for each argument of a loss that is set, although the trainer gives it."""
    for name in GIVES[kind]:
        if name in loss:
            instead = ", or kl_coef" if name == "beta" else ""
            yield Fault(
                where=f"loss.{name}",
                found=f"{short_text(loss[name])}, but {trainer} gives it {name}",
                expected="only what the trainer does not give",
                fix=f"leave loss.{name} out{instead}",
            )
