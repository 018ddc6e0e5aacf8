"""The loss of verl: its estimator of advantages, its average, its clips and its KL.

They are fields of TRL's GRPO where it has them, and pieces of ``loss=policy_gradient`` where it has
not. Both are read into one ``PolicyLoss`` first, in the words of the latter:

    adv_estimator        advantage: of a group, of a batch, by the mean, or by the others alone
    loss_agg_mode        average: what has an equal weight
    clip_ratio_*         low and high; clip_ratio_c is dual_clip, which TRL calls delta
    loss_mode            ratio and surrogate, by the section ``surrogates`` of the table
    use_kl_loss          a KL in the loss of each token, whose estimator k3 is that of TRL
    use_kl_in_reward     a KL in the reward, which TRL's GRPO has not

A KL in their loss has the gradient of its estimator alone, so TRL's correction by the ratio
(``use_bias_correction_kl``) is turned off beside it.

PPO has its own fields for clips and for a KL in the reward. Its critic learns at a rate of its own,
in the same optimizer.
"""

from dataclasses import dataclass, field
from typing import Any

from runner.config.conversion import to_number, to_plain_text
from runner.config.dialect import is_wanted
from runner.importers.draft import MAPPED, SAME, Draft, Part, is_unset

ESTIMATOR = "algorithm.adv_estimator"
SCALE = "algorithm.norm_adv_by_std_in_grpo"
AVERAGE = "actor_rollout_ref.actor.loss_agg_mode"
# Where a policy loss is chosen by name, in newer and in older versions.
LOSS_MODES = ("actor_rollout_ref.actor.policy_loss.loss_mode", "actor_rollout_ref.actor.loss_mode")
CLIP = "actor_rollout_ref.actor.clip_ratio"
CLIP_LOW = "actor_rollout_ref.actor.clip_ratio_low"
CLIP_HIGH = "actor_rollout_ref.actor.clip_ratio_high"
DUAL_CLIP = "actor_rollout_ref.actor.clip_ratio_c"
ENTROPY = "actor_rollout_ref.actor.entropy_coeff"
DEFAULT_CLIP = 0.2
DEFAULT_KL_WEIGHT = 0.001
DEFAULT_CRITIC_RATE = 1e-5
# The fields of TRL's GRPO, by the words of loss.average and loss.advantage.
LOSS_TYPES = {"token": "dapo", "sequence": "grpo", "constant": "dr_grpo"}
SCALES = {"group": "group", "batch": "batch", "mean": "none"}


@dataclass(frozen=True)
class KlKeys:
    """The keys of a KL: what turns it on, its weight and its estimator."""

    switch: str
    weight: str
    estimator: str
    # The estimator where a file names none.
    default_estimator: str


KL_IN_LOSS = KlKeys(
    switch="actor_rollout_ref.actor.use_kl_loss",
    weight="actor_rollout_ref.actor.kl_loss_coef",
    estimator="actor_rollout_ref.actor.kl_loss_type",
    default_estimator="low_var_kl",
)
KL_IN_REWARD = KlKeys(
    switch="algorithm.use_kl_in_reward",
    weight="algorithm.kl_ctrl.kl_coef",
    estimator="algorithm.kl_penalty",
    default_estimator="kl",
)
ADAPTIVE = "algorithm.kl_ctrl.type"
KL_TARGET = "algorithm.kl_ctrl.target_kl"
KL_HORIZON = "algorithm.kl_ctrl.horizon"


@dataclass
class PolicyLoss:
    """A loss of theirs in the words of ``loss=policy_gradient``."""

    # A reward is compared with its group in deviations of the group or of the batch, by the mean
    # alone, or with the others of its group (leave_one_out).
    advantage: str = "group"
    # What has equal weight: each token, each sequence, or the sum of each.
    average: str = "token"
    # The ratio of probabilities is that of each token, or of a sequence.
    ratio: str = "token"
    surrogate: str = "clipped"
    # Bounds of the ratio, as distances from 1; the second bound is for negative advantages.
    low: float = DEFAULT_CLIP
    high: float = DEFAULT_CLIP
    dual_clip: float | None = None
    # The KL to the reference: 0 is none. It is a part of the loss or of the reward.
    kl_weight: float = 0.0
    kl: str = "k3"
    kl_in: str = "loss"
    # What the table says of a policy loss that is chosen by name.
    named: Part = field(default_factory=dict)

    @property
    def needs_pieces(self) -> bool:
        """True where TRL's GRPO has no fields that say the same."""
        if self.advantage not in SCALES or self.average not in LOSS_TYPES:
            return True
        if self.surrogate != "clipped" or self.named.get("no_clip"):
            return True
        # TRL's KL is k3, and a part of the loss.
        is_other_kl = self.kl != "k3" or self.kl_in != "loss"
        return is_other_kl and self.kl_weight > 0


def read_loss(draft: Draft) -> None:
    """Write the loss: as fields of TRL's, or with pieces of our own where it has none."""
    estimator = find_estimator(draft)
    loss = read_policy_loss(draft)
    loss.advantage = estimator["advantage"]
    read_kl(draft, loss)
    target = f"trainer={draft.trainer}"
    is_of_trl = "loss_type" in loss.named or draft.trainer != "grpo"
    if loss.needs_pieces and not is_of_trl:
        write_pieces(draft, loss)
        target += " loss=policy_gradient"
    else:
        write_loss_fields(draft, loss)
    remark = estimator.get("remark", "")
    if remark:
        nearest = f"{target} loss.advantage={loss.advantage}, which is written"
        draft.no_equivalent(ESTIMATOR, remark, nearest)
    else:
        draft.note(MAPPED, ESTIMATOR, target, f"advantage: {loss.advantage}")


def find_estimator(draft: Draft) -> Part:
    """The comparison of a reward with others; its remark says where ours is only the nearest."""
    estimators: dict[str, Part] = draft.table.sections["estimators"]
    name = draft.read(ESTIMATOR, to_plain_text, "grpo")
    estimator = dict(estimators.get(name, {"advantage": "group"}))
    if name not in estimators and not is_unset(name):
        estimator["remark"] = f"{name}: an estimator of its own"
    if draft.keys.get(SCALE) is False:
        draft.note(MAPPED, SCALE, "less the mean of the group, and undivided")
        if estimator["advantage"] == "group":
            estimator["advantage"] = "mean"
    draft.note_same([SCALE], "in deviations of the group")
    return estimator


# --- Pieces ---------------------------------------------------------------------------------------


def find_surrogate(draft: Draft) -> Part:
    """Their policy loss in the table; that of PPO for one that it does not know."""
    losses: dict[str, Part] = draft.table.sections["surrogates"]
    for key in LOSS_MODES:
        if draft.keys.get(key) is not None:
            mode = str(draft.keys[key])
            return losses.get(mode, {})
    return {}


def read_policy_loss(draft: Draft) -> PolicyLoss:
    """The average and the clips of a loss, whose keys are noted."""
    loss = PolicyLoss(named=find_surrogate(draft))
    note_surrogate(draft, loss.named)
    # A policy loss that is chosen by name may have an average of its own.
    loss.average = read_average(draft)
    loss.average = loss.named.get("average", loss.average)
    loss.ratio = loss.named.get("ratio", "token")
    loss.surrogate = loss.named.get("surrogate", "clipped")
    read_clips(draft, loss)
    return loss


def note_surrogate(draft: Draft, surrogate: Part) -> None:
    """Note the policy loss that is chosen by name."""
    losses = draft.table.sections["surrogates"]
    for key in LOSS_MODES:
        mode = draft.keys.get(key)
        if mode is None:
            continue
        if str(mode) not in losses:
            why = f"{mode}: a policy loss of its own; the clipped one is written"
            draft.no_equivalent(key, why, "loss._target_=<function>")
            continue
        pieces = [f"{name}: {value}" for name, value in surrogate.items()]
        draft.note(MAPPED, key, ", ".join(pieces) or "the clipped loss")


def read_average(draft: Draft) -> str:
    """The unit of equal weight in the loss, by the words of ``loss.average``."""
    averages: dict[str, str] = draft.table.sections["averages"]
    mode = draft.read(AVERAGE, to_plain_text, "token-mean")
    if mode not in averages:
        draft.no_equivalent(AVERAGE, f"{mode}: no such average", "loss.average=token")
        return "token"
    average = averages[mode]
    why = ""
    if average == "token":
        why = "of a step, where some workers of theirs average each micro-batch"
    elif average == "constant":
        why = "theirs is a sum over completions where ours is their mean"
    draft.note(MAPPED, AVERAGE, f"an equal weight for each {average}", why)
    return average


def read_clips(draft: Draft, loss: PolicyLoss) -> None:
    """Read the bounds of the ratio into a loss, and note them."""
    both = draft.read(CLIP, to_number, DEFAULT_CLIP)
    loss.low = both
    loss.high = both
    sides = [key for key in (CLIP_LOW, CLIP_HIGH) if draft.keys.get(key) is not None]
    for key in sides:
        if is_unset(draft.keys[key]):
            why = f"{draft.keys[key]} is set by the shell, and not in this file"
            draft.no_equivalent(key, why, "trainer.args.epsilon_high=<number>")
            continue
        bound = draft.read(key, to_number, both)
        draft.note(MAPPED, key, f"the ratio's bound: {bound:g}")
        if key == CLIP_LOW:
            loss.low = bound
        else:
            loss.high = bound
    if sides:
        draft.note_same([CLIP], "clip_ratio_low and clip_ratio_high count")
    elif draft.keys.get(CLIP) is not None:
        why = "since verl 0.3 theirs stays 0.2 without clip_ratio_low and clip_ratio_high"
        draft.note(MAPPED, CLIP, f"the ratio's bounds: {both:g}", why)

    # Only their clipped loss has the second bound.
    if loss.named.get("no_dual_clip"):
        draft.note_same([DUAL_CLIP], "of another loss")
        return
    if draft.keys.get(DUAL_CLIP) is None:
        return
    loss.dual_clip = draft.read(DUAL_CLIP, to_number, 3.0)
    target = f"the ratio's bound where an advantage is negative: {loss.dual_clip:g}"
    draft.note(MAPPED, DUAL_CLIP, target)


# --- The KL ---------------------------------------------------------------------------------------


def read_kl(draft: Draft, loss: PolicyLoss) -> None:
    """Read the KL of the loss, or else that of the reward, into a loss, and note their keys.

    Ours has one of the two. Without any, ``kl_coef`` is 0, so that no reference model is loaded
    whatever the option of the trainer says.
    """
    in_loss = is_on(draft, KL_IN_LOSS.switch)
    in_reward = is_on(draft, KL_IN_REWARD.switch)
    if in_loss:
        read_divergence(draft, KL_IN_LOSS, loss)
        loss.kl_in = "loss"
    else:
        draft.note_same(kl_keys_of(KL_IN_LOSS), "no KL in the loss")
    if in_reward and in_loss:
        why = "the KL is in the loss as well, and ours has one of the two"
        draft.no_equivalent(KL_IN_REWARD.switch, why, "loss.kl_in=reward")
        draft.note_same(kl_keys_of(KL_IN_REWARD), "of the KL in the reward")
    elif in_reward:
        read_divergence(draft, KL_IN_REWARD, loss)
        loss.kl_in = "reward"
    else:
        note_no_kl_in_reward(draft, in_loss)
    if not loss.kl_weight:
        draft.put("kl_coef", 0.0)


def is_on(draft: Draft, key: str) -> bool:
    """True where a key turns something on."""
    return is_wanted(draft.keys.get(key), "enabled")


def kl_keys_of(kl: KlKeys) -> list[str]:
    """The keys of a KL that a file may have."""
    return [kl.switch, kl.weight, kl.estimator]


def read_divergence(draft: Draft, keys: KlKeys, loss: PolicyLoss) -> None:
    """Read the weight and the estimator of a KL that is on into a loss, and note its keys."""
    implied = {keys.weight: DEFAULT_KL_WEIGHT, keys.estimator: keys.default_estimator}
    draft.imply(implied)
    draft.note(MAPPED, keys.switch, "kl_coef")
    why = ""
    if keys.switch in draft.implied:
        why = "as verl had it before 0.3, whose keys these are"
    weight = draft.keys[keys.weight]
    draft.write(keys.weight, "kl_coef", weight, why)
    loss.kl_weight = DEFAULT_KL_WEIGHT
    if not is_unset(weight):
        loss.kl_weight = draft.read(keys.weight, to_number, DEFAULT_KL_WEIGHT)

    estimators: dict[str, str] = draft.table.sections["divergences"]
    name = draft.read(keys.estimator, to_plain_text, keys.default_estimator)
    loss.kl = estimators.get(name, "k3")
    if name not in estimators:
        draft.no_equivalent(keys.estimator, f"{name}: no such estimator", "k3, which is written")
        return
    why = "by its gradient" if name.endswith("+") else ""
    draft.note(MAPPED, keys.estimator, f"the KL's estimator: {loss.kl}", why)


def note_no_kl_in_reward(draft: Draft, in_loss: bool) -> None:
    """Note the keys of a KL in the reward that is off; old versions had it unless said."""
    weight = draft.keys.get(KL_IN_REWARD.weight)
    has_switch = draft.keys.get(KL_IN_REWARD.switch) is not None
    if weight and not has_switch and not in_loss:
        why = "off without use_kl_in_reward; verl 0.2 and earlier had it in the reward"
        draft.no_equivalent(KL_IN_REWARD.weight, why, f"kl_coef={weight}")
    draft.note_same(kl_keys_of(KL_IN_REWARD), "no KL in the reward")


# --- Our side -------------------------------------------------------------------------------------


def write_pieces(draft: Draft, loss: PolicyLoss) -> None:
    """Write a loss as ``loss=policy_gradient`` with its pieces."""
    pieces = pieces_of_ratio(loss)
    pieces["advantage"] = loss.advantage
    pieces["average"] = loss.average
    if loss.kl_weight:
        pieces["kl"] = loss.kl
        pieces["kl_in"] = loss.kl_in
    if loss.kl_weight and loss.kl_in == "loss":
        pieces["weigh_kl"] = False
    if loss.kl_weight and loss.kl_in == "reward" and loss.advantage in ("group", "batch"):
        why = "theirs is divided by the deviation of the rewards as well, ours is not"
        nearest = "loss.kl_in: reward, which is written"
        draft.replace_note(KL_IN_REWARD.switch, why, nearest)
    if draft.keys.get(ENTROPY):
        draft.no_equivalent(ENTROPY, "loss=policy_gradient has no bonus for entropy")
    draft.choices["loss"] = "policy_gradient"
    draft.values["loss"] = pieces


def pieces_of_ratio(loss: PolicyLoss) -> Part:
    """The pieces that say how the ratio of probabilities counts, but for those of the option."""
    pieces: Part = {}
    if loss.ratio != "token":
        pieces["ratio"] = loss.ratio
    if loss.surrogate != "clipped":
        pieces["surrogate"] = loss.surrogate
    pieces["clip"] = [loss.low, loss.high]
    if loss.named.get("no_clip"):
        pieces["clip"] = None
    if loss.dual_clip is not None:
        pieces["dual_clip"] = loss.dual_clip
    return pieces


def write_loss_fields(draft: Draft, loss: PolicyLoss) -> None:
    """Write a loss as fields of TRL's, but for those that are its defaults."""
    # TRL's epsilon_high is that of epsilon unless it is set.
    fields: dict[str, Any] = {
        "scale_rewards": SCALES.get(loss.advantage, "none"),
        "importance_sampling_level": loss.ratio,
        "epsilon": loss.low,
        "epsilon_high": None if loss.high == loss.low else loss.high,
    }
    if draft.trainer == "grpo":
        loss_type = LOSS_TYPES.get(loss.average, "dapo")
        fields["loss_type"] = loss.named.get("loss_type", loss_type)
        fields["delta"] = loss.dual_clip
    if loss.kl_weight:
        fields["use_bias_correction_kl"] = False
    for name, value in fields.items():
        parameter = draft.config.parameters.get(name)
        if parameter is not None and parameter.default != value:
            draft.put(f"trainer.args.{name}", value)

    has_kl_in_reward = draft.trainer == "rloo"
    if loss.kl_weight and loss.kl_in == "reward" and not has_kl_in_reward:
        why = f"{draft.trainer} has the KL in the loss, where it is written"
        draft.replace_note(KL_IN_REWARD.switch, why, "trainer=grpo loss=policy_gradient")
    if loss.kl_weight and loss.kl_in == "loss" and has_kl_in_reward:
        draft.replace_note(KL_IN_LOSS.switch, "rloo has the KL in the reward", "trainer=grpo")


# --- PPO ------------------------------------------------------------------------------------------


def read_critic(draft: Draft) -> None:
    """Write the rate of the critic, and the updates in which it learns alone.

    The weights of the critic are known by their names: those of a model of its own, or of a second
    adapter on the policy's.
    """
    rate_key = "critic.optim.lr"
    draft.imply({rate_key: DEFAULT_CRITIC_RATE})
    rate = draft.keys[rate_key]
    # Adam is blind to the weight of a loss, so the two rates are all that differs.
    if rate == draft.keys.get("actor_rollout_ref.actor.optim.lr"):
        draft.note(SAME, rate_key, why="that of the policy")
    elif not is_unset(rate):
        pattern = "^value_model"
        if draft.choices.get("peft"):
            pattern = r"\.critic\.|value_head"
        lr = draft.read(rate_key, to_number, DEFAULT_CRITIC_RATE)
        draft.choices["optimizer"] = "adamw"
        draft.values["optimizer"] = {"groups": {pattern: {"lr": lr}}}
        draft.note(MAPPED, rate_key, f"optimizer.groups: {pattern}", "the weights of the critic")

    model_key = "critic.model.path"
    model = draft.keys.get(model_key)
    if model is not None and model == draft.keys.get("actor_rollout_ref.model.path"):
        draft.note(SAME, model_key, why="the critic begins as the policy")

    warmup_key = "trainer.critic_warmup"
    warmup = draft.keys.get(warmup_key)
    if isinstance(warmup, int) and warmup > 1:
        why = "their policy learns from that step on"
        draft.write(warmup_key, "trainer.args.value_warmup_steps", warmup - 1, why)


def read_policy_loss_of_ppo(draft: Draft) -> None:
    """Write the clips and the average of PPO's loss."""
    loss = read_policy_loss(draft)
    if loss.average == "sequence":
        draft.put("trainer.args.loss_average", "sequence")
    elif loss.average != "token":
        draft.replace_note(AVERAGE, "PPO averages over tokens or completions")
    # PPO's own field has one bound for both sides.
    is_plain = loss.ratio == "token" and loss.surrogate == "clipped"
    if loss.low != loss.high or not is_plain:
        draft.choices["loss"] = "policy_gradient"
        draft.values["loss"] = pieces_of_ratio(loss)
        return
    if loss.high != DEFAULT_CLIP:
        draft.put("trainer.args.cliprange", loss.high)
    if loss.dual_clip is not None:
        draft.put("trainer.args.dual_clip", loss.dual_clip)


def read_kl_of_ppo(draft: Draft) -> None:
    """Write the KL in the reward; PPO has none in its loss."""
    loss = PolicyLoss()
    in_loss = is_on(draft, KL_IN_LOSS.switch)
    # A KL in the reward has another gradient, so it is offered and not written.
    if in_loss:
        weight = draft.keys.get(KL_IN_LOSS.weight, DEFAULT_KL_WEIGHT)
        draft.no_equivalent(KL_IN_LOSS.switch, "PPO has the KL in the reward", f"kl_coef={weight}")
    draft.note_same(kl_keys_of(KL_IN_LOSS), "no KL in the loss")
    if not is_on(draft, KL_IN_REWARD.switch):
        note_no_kl_in_reward(draft, in_loss)
        draft.put("kl_coef", 0.0)
        return
    read_divergence(draft, KL_IN_REWARD, loss)
    if loss.kl != "k1":
        draft.put("trainer.args.kl_estimator", loss.kl)
    if draft.keys.get(ADAPTIVE) != "adaptive":
        return
    draft.imply({KL_TARGET: 0.1, KL_HORIZON: 10000})
    draft.note(MAPPED, ADAPTIVE, "trainer.args.kl_target")
    target = draft.read(KL_TARGET, to_number, 0.1)
    draft.write(KL_TARGET, "trainer.args.kl_target", target)
    horizon = draft.read(KL_HORIZON, to_number, 10000.0)
    draft.write(KL_HORIZON, "trainer.args.kl_horizon", horizon)
