"""The losses of a micro-batch, and the sums of its figures, which are added to its rollout.

The equations are in ``runner.loss`` and ``arithmetic``. Letters at the end of a tensor's name are
its shape: B rows, R response tokens, N response tokens of all rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from runner.errors import ConfigError, Fault
from runner.loss import clipped_surrogate
from runner.ppo.arithmetic import value_losses
from runner.ppo.batching import MicroBatch
from runner.ppo.config import PPOConfig
from runner.ppo.rollout import Rollout


def policy_loss(
    rollout: Rollout,
    batch: MicroBatch,
    logprobs_N: Tensor,
    args: PPOConfig,
    own_loss: Callable[..., object] | None = None,
) -> Tensor:
    """A micro-batch's share in the policy's loss; ``own_loss`` replaces the clipped surrogate.

    The ratios are to the policy of the rollout. Where another sampler has drawn its tokens, that is
    not the one that they are from, and the losses are weighted for it. The weights of the rollout
    make the sum over all tokens of a mini-batch a mean.
    """
    log_ratios_N = logprobs_N - batch.select(rollout.logprobs_BR)
    ratios_N = log_ratios_N.exp()
    advantages_N = batch.select(rollout.advantages_BR)
    if own_loss is None:
        clip = args.cliprange
        losses_N = clipped_surrogate(ratios_N, advantages_N, clip, clip, args.dual_clip)
    else:
        losses_N = _own_losses(own_loss, rollout, batch, logprobs_N)
    if rollout.importance_BR is not None:
        losses_N = losses_N * batch.select(rollout.importance_BR)
    weights_N = batch.select(rollout.weights_BR)
    loss = (losses_N * weights_N).sum()

    # The figures, which need no gradient.
    log_ratios_N = log_ratios_N.detach()
    ratios_N = ratios_N.detach()
    clipped_N = (ratios_N - 1) * advantages_N.sign() > args.cliprange
    sums = rollout.sums
    sums["policy"] += loss.detach()
    sums["tokens"] += len(ratios_N)
    sums["approxkl"] += log_ratios_N.square().sum() / 2
    sums["clipped"] += clipped_N.sum()
    sums["ratio"] += ratios_N.sum()
    sums["ratio_squared"] += ratios_N.square().sum()
    sums["entropy"] -= logprobs_N.detach().sum()
    return loss


def _own_losses(
    loss: Callable[..., object], rollout: Rollout, batch: MicroBatch, logprobs_N: Tensor
) -> Tensor:
    """The user's loss of each token [N], from whole rows [B, R]."""
    mask_BR = rollout.mask_BR[batch.rows_B]
    old_logprobs_BR = rollout.logprobs_BR[batch.rows_B]
    logprobs_BR = torch.zeros_like(old_logprobs_BR).masked_scatter(mask_BR, logprobs_N)
    losses_BR = loss(
        log_probs=logprobs_BR,
        old_log_probs=old_logprobs_BR,
        mask=mask_BR,
        advantages=rollout.advantages_BR[batch.rows_B],
    )
    if isinstance(losses_BR, Tensor) and losses_BR.shape == mask_BR.shape:
        return losses_BR[mask_BR]
    shape = tuple(getattr(losses_BR, "shape", ()))
    raise ConfigError(
        Fault(
            where="loss",
            found=f"a result of shape {shape}",
            expected=f"a tensor of shape {tuple(mask_BR.shape)}: a loss for each token",
        )
    )


def value_loss(rollout: Rollout, batch: MicroBatch, values_N: Tensor, args: PPOConfig) -> Tensor:
    """A micro-batch's share in the critic's loss, with its weight in the whole loss."""
    old_values_N = batch.select(rollout.values_BR)
    returns_N = batch.select(rollout.returns_BR)
    losses_N = value_losses(values_N, old_values_N, returns_N, args.cliprange_value)
    weights_N = batch.select(rollout.weights_BR)
    loss = (losses_N * weights_N).sum()
    unclipped_N = (values_N - returns_N).square() / 2
    clipped_N = losses_N > unclipped_N
    rollout.sums["value"] += loss.detach()
    rollout.sums["value_clipped"] += clipped_N.sum()
    return args.vf_coef * loss
