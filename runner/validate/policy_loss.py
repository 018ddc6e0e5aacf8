"""Losses for trainers that learn from what they sample: what is set twice, or without effect."""

from collections.abc import Iterator

from runner.config.experiment import LossPart, key_names
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.text import Node, short_text
from runner.validate.context import ValidationContext

POLICY_GRADIENT = "runner.loss.policy_gradient"
# Fields that decide advantages, for which ``loss.advantage`` stands.
OF_ADVANTAGES = ("scale_rewards", "multi_objective_aggregation")


def find_policy_loss_faults(context: ValidationContext) -> Iterator[Fault]:
    """The faults of a loss for this trainer that its signature does not show."""
    loss = context.mapping("loss")
    kind = upstream.loss_interface(context.trainer, context.signature(context.args))
    if not loss or not kind:
        return
    if kind != "groups":
        for name in key_names(LossPart):
            if loss.get(name) is not None:
                yield Fault(
                    where=f"loss.{name}",
                    found=f"{loss[name]}, which only a trainer that learns from groups has",
                    expected="none",
                    fix=f"leave loss.{name} out, or trainer=grpo",
                )
    if kind in upstream.OF_SAMPLES:
        yield from _find_overruled(context, loss)
        yield from _find_reference_faults(context, loss, kind)
    if loss.get("dual_clip") and loss.get("surrogate") == "cispo":
        yield Fault(
            where="loss.dual_clip",
            found=f"{loss['dual_clip']}, which has no effect with cispo",
            expected="one of the two",
            fix="leave loss.dual_clip out, or loss.surrogate=clipped",
        )


def _find_overruled(context: ValidationContext, loss: Node) -> Iterator[Fault]:
    """A fault for each field of the trainer's own loss, for which ``loss`` stands."""
    is_shipped = loss.get("_target_") == POLICY_GRADIENT
    for name, words in upstream.OWN_POLICY_LOSS.items():
        value = context.args.get(name)
        if value is None or not context.has_field(name):
            continue
        if name in OF_ADVANTAGES and not loss.get("advantage"):
            continue
        if name == "cliprange" and not is_shipped:
            continue  # PPO counts by it the tokens that are clipped
        has_words = words and (is_shipped or name in ("loss_type", "scale_rewards"))
        # A field without such words is refused only where it would do something.
        signature = context.signature(context.args)
        if not has_words and signature and value == signature.parameters[name].default:
            continue
        fix = f"leave {name} out, or loss=none"
        said = _name_in_loss(name, value)
        if has_words and said is not None:
            fix = f"leave {name} out, and {words.format(said)}"
        yield Fault(
            where=f"trainer.args.{name}",
            found=f"{short_text(value)}, which has no effect with a loss",
            expected="one of the two",
            fix=fix,
        )


def _name_in_loss(field: str, value: object) -> object:
    """The value of a field in the words of ``loss``; None for one that it has no words for."""
    tables = {"loss_type": upstream.LOSS_TYPES, "scale_rewards": upstream.SCALES}
    if field not in tables:
        return value
    for name, of_trl in tables[field].items():
        if of_trl == value:
            return name
    return None


def _find_reference_faults(context: ValidationContext, loss: Node, kind: str) -> Iterator[Fault]:
    """The faults of a KL to the reference that is wanted but has no effect, or no reference."""
    signature = context.signature(loss)
    if signature is None or signature.lineage:
        return
    beta = context.field("beta") if kind == "groups" else None
    if beta and not signature.is_open and "ref_log_probs" not in signature.parameters:
        yield Fault(
            where="kl_coef",
            found=f"{beta}, but {signature.name} does not ask for ref_log_probs",
            expected="0, or a loss that adds the KL to the reference itself",
            fix="kl_coef=0",
        )
    if kind == "groups" and not beta and "ref_log_probs" in signature.required:
        yield Fault(
            where="kl_coef",
            found=f"{beta}, but {signature.name} asks for ref_log_probs",
            expected="above 0: at 0 there is no reference",
            fix="kl_coef=0.04",
        )
    for name in ("kl", "kl_in", "weigh_kl"):
        if loss.get("_target_") == POLICY_GRADIENT and name in loss and not beta:
            is_ppo = kind == "policy"
            yield Fault(
                where=f"loss.{name}",
                found=f"{loss[name]}, which has no effect without ref_log_probs",
                expected="the KL in PPO's reward" if is_ppo else "a kl_coef above 0",
                fix=f"leave loss.{name} out, or "
                + ("trainer.args.kl_estimator=" if is_ppo else "kl_coef=0.04"),
            )
