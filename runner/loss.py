"""Losses that ship: functions of what a trainer measures, named by the ``loss`` group.

A loss names as arguments what it wants to be given (``conf/PARTS.md``, what a part is
given); the rest comes from its keys in the YAML. When it is called, and how batches are averaged,
is in ``training.sequence_objective`` and ``training.policy_objective``.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from runner.schema.ranges import Fraction, MoreThanOne, NotNegative


def focal(log_probs: Tensor, gamma: NotNegative = 2.0) -> Tensor:
    """Losses of tokens that are smaller the surer the model is of them.

    With ``gamma`` 0 they are the cross-entropy. Source: Lin et al. 2017, equation 4.
    """
    return -((1 - log_probs.exp()) ** gamma) * log_probs


def label_smoothed(logits: Tensor, targets: Tensor, epsilon: Fraction = 0.1) -> Tensor:
    """Cross-entropy of targets that give the share ``epsilon`` to all tokens alike.

    Source: Szegedy et al. 2016, section 7.
    """
    return cross_entropy(logits, targets, reduction="none", label_smoothing=epsilon)


def rescaled(log_probs: Tensor) -> Tensor:
    """Losses times the probability of the token, which gets no gradient: dynamic fine-tuning.

    Source: Wu et al. 2025, equation 9.
    """
    return -log_probs * log_probs.exp().detach()


def length_normalised(
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    ref_chosen_logps: Tensor,
    ref_rejected_logps: Tensor,
    chosen_lengths: Tensor,
    rejected_lengths: Tensor,
    beta: NotNegative,
) -> Tensor:
    """DPO's loss of log-ratios per token, so that length is not preferred.

    Source: Tulu 3, Lambert et al. 2024, equation 6.
    """
    chosen = (chosen_logps - ref_chosen_logps) / chosen_lengths.clamp(min=1)
    rejected = (rejected_logps - ref_rejected_logps) / rejected_lengths.clamp(min=1)
    return -logsigmoid(beta * (chosen - rejected))


def margin(
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    ref_chosen_logps: Tensor | float = 0.0,
    ref_rejected_logps: Tensor | float = 0.0,
    beta: NotNegative = 0.1,
    gap: NotNegative = 1.0,
) -> Tensor:
    """The part of ``gap`` that a pair's implicit rewards lack, with or without a reference.

    Source: SLiC-HF, Zhao et al. 2023, equation 1.
    """
    chosen = chosen_logps - ref_chosen_logps
    rejected = rejected_logps - ref_rejected_logps
    return (gap - beta * (chosen - rejected)).clamp(min=0)


def policy_gradient(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    ref_log_probs: Tensor | None = None,
    beta: NotNegative = 0.0,
    ratio: Literal["token", "sequence", "product"] = "token",
    surrogate: Literal["clipped", "cispo"] = "clipped",
    clip: tuple[NotNegative, NotNegative] | None = (0.2, 0.2),
    dual_clip: MoreThanOne | None = None,
    kl: Literal["k1", "k2", "k3"] = "k3",
    kl_in: Literal["loss", "reward"] = "loss",
    weigh_kl: bool = True,
) -> Tensor:
    """Losses of sampled tokens (B, T), or of completions (B, 1) where all tokens share the ratio.

    ``clip`` says how far the ratio may be below and above 1; None is no bound. ``dual_clip`` bounds
    it once more where the advantage is negative. The KL to the reference, times ``beta``, is added
    to each token's loss, or taken from the advantage of the whole completion, as a reward would be.
    With ``weigh_kl`` that in the loss is multiplied with the ratio, so that its gradient is the one
    of the KL, whatever the estimator (DeepSeek-V3.2, 2025, eq. 7). The operations have TRL's order,
    so that the bits are those of its own losses.
    """
    low, high = clip or (math.inf, math.inf)
    ratios = RATIOS[ratio](log_probs - old_log_probs, mask).exp()
    penalties: Tensor | None = None
    if ref_log_probs is not None and kl_in == "reward":
        divergences = kl_estimate(old_log_probs, ref_log_probs, kl) * mask
        advantages = advantages - beta * divergences.sum(-1, keepdim=True)
    elif ref_log_probs is not None:
        penalties = kl_estimate(log_probs, ref_log_probs, kl)
        if weigh_kl:
            penalties = penalties * ratios
    if surrogate == "cispo":
        losses = cispo(ratios, advantages, log_probs, low, high)
    else:
        losses = clipped_surrogate(ratios, advantages, low, high, dual_clip)
    return losses if penalties is None else losses + beta * penalties


def clipped_surrogate(
    ratios: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """The negated clipped surrogate, max(-A r, -A clip(r)) (Schulman et al. 2017, eq. 7).

    With ``dual_clip`` the loss of a negative advantage is at most -A dual_clip (Ye et al. 2020,
    eq. 5).
    """
    clipped = ratios.clamp(1 - low, 1 + high)
    losses = torch.maximum(-advantages * ratios, -advantages * clipped)
    if dual_clip is None:
        return losses
    bounded = torch.minimum(losses, -advantages * dual_clip)
    return torch.where(advantages < 0, bounded, losses)


def cispo(ratios: Tensor, advantages: Tensor, log_probs: Tensor, low: float, high: float) -> Tensor:
    """The log-probability times its advantage and its clipped ratio, which gets no gradient.

    So each token has one, however far its ratio is. Source: MiniMax-M1, Chen et al. 2025, eq. 4.
    """
    weights = ratios.clamp(1 - low, 1 + high).detach()
    return -weights * advantages * log_probs


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, estimator: str = "k1") -> Tensor:
    """Estimates per token of KL(policy, reference), from samples of the policy.

    k1 is unbiased, k2 has low variance and a small bias, k3 is unbiased, of low variance and never
    negative (Schulman 2020, "Approximating KL divergence").
    """
    if estimator == "k1":
        return log_probs - ref_log_probs
    if estimator == "k2":
        return (ref_log_probs - log_probs).square() / 2
    # Subtracted twice, as TRL does, because the order of gradients decides their last bit.
    return (ref_log_probs - log_probs).exp() - (ref_log_probs - log_probs) - 1


def _ratio_of_sequence(log_ratios: Tensor, mask: Tensor) -> Tensor:
    """The logarithm of a completion's mean ratio (B, 1), as in GSPO (Zheng et al. 2025, eq. 7)."""
    means = (log_ratios * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
    return means.unsqueeze(-1)


# By the name that ``ratio`` has in the YAML: from log-ratios of tokens (B, T) and their mask.
RATIOS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": lambda log_ratios, mask: log_ratios,
    "sequence": _ratio_of_sequence,
    "product": lambda log_ratios, mask: (log_ratios * mask).sum(-1, keepdim=True),
}
