"""The arithmetic of PPO: functions of tensors, each with its equation.

The clipped surrogate and estimates of a KL are in ``runner.loss``, for other trainers, too.
Rollouts are in ``sampling`` and ``dynamic_sampling``, rewards and their running statistics in
``token_rewards``, optimizer steps in ``update``. Letters at the end of a tensor's name are its
shape: B rows of this process, R response tokens, N response tokens of some rows end to end.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

Sum: TypeAlias = Callable[[Tensor], Tensor]  # over all processes


def generalised_advantages(
    rewards_BR: Tensor, values_BR: Tensor, mask_BR: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns [B, R] (Schulman et al. 2016, eq. 16); both are 0 outside of the mask.

    delta_t = r_t + gamma V_{t+1} - V_t, where the value after the last token is 0, and
    A_t = sum_l (gamma lam)^l delta_{t+l}.
    """
    rewards_BR = torch.where(mask_BR, rewards_BR, 0)
    values_BR = torch.where(mask_BR, values_BR, 0)
    next_values_BR = pad(values_BR[:, 1:], (0, 1))
    deltas_BR = rewards_BR + gamma * next_values_BR - values_BR
    sums_BR = deltas_BR.double()
    # The discounted sums by doubling: each pass makes them reach twice as far, so that a pass is
    # needed for each power of two of the tokens and not for each token.
    reach = 1
    factor = gamma * lam
    while reach < sums_BR.shape[1]:
        later_sums_BR = pad(sums_BR[:, reach:], (0, reach))
        sums_BR = sums_BR + factor * later_sums_BR
        reach = 2 * reach
        factor = factor**2
    advantages_BR = sums_BR.to(values_BR.dtype)
    return advantages_BR, advantages_BR + values_BR


def whiten(
    values_BR: Tensor, mask_BR: Tensor, *, shift_mean: bool = True, total: Sum = lambda part: part
) -> Tensor:
    """Values scaled to variance 1 inside of the mask, 0 elsewhere; with ``shift_mean`` to mean 0.

    ``total`` sums over processes, so that mean and variance are those of all rows. The variance is
    that of a sample, by count - 1; 1e-8 keeps values that are all equal from a division by 0.
    """
    inside_N = values_BR[mask_BR].double()
    tokens = torch.tensor(len(inside_N), device=inside_N.device)
    count, added = total(torch.stack([tokens, inside_N.sum()]))
    mean = added / count
    squares = total((inside_N - mean).square().sum())
    variance = squares / (count - 1).clamp(min=1)
    scale = torch.rsqrt(variance + 1e-8)
    whitened_BR = (values_BR - mean) * scale
    if not shift_mean:
        whitened_BR = whitened_BR + mean
    return torch.where(mask_BR, whitened_BR, 0).to(values_BR.dtype)


def mean_of_rows(values_B: Tensor, total: Sum, processes: int) -> float:
    """The mean over the rows of all processes, which have the same number each."""
    mean_here = values_B.float().mean()
    summed: float = total(mean_here).item()
    return summed / processes


def explained_variance(returns_N: Tensor, values_N: Tensor, total: Sum) -> float:
    """The share of the variance of the returns, over all processes, that the values predicted.

    1 - Var(returns - values) / Var(returns): 1 of a perfect critic, 0 of one that gives the mean,
    negative of a worse one. Each variance comes from the sums of its numbers and of their squares,
    so that one sum over processes is enough; 0.0 where the returns do not vary.
    """
    returns_N = returns_N.double()
    errors_N = returns_N - values_N.double()
    terms = [
        torch.ones_like(errors_N),
        returns_N,
        returns_N.square(),
        errors_N,
        errors_N.square(),
    ]
    count, *sums = total(torch.stack(terms).sum(1)).tolist()
    mean, mean_square, error_mean, error_mean_square = (moment / count for moment in sums)
    variance = mean_square - mean**2
    if variance <= 1e-12:
        return 0.0
    error_variance = error_mean_square - error_mean**2
    explained: float = 1 - error_variance / variance
    return explained


def value_losses(
    values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, cliprange_value: float
) -> Tensor:
    """Half the larger of the squared errors with and without a clipped step from the old values.

    So a value that has moved by more than ``cliprange_value`` since the rollout has no gradient
    that would take it farther in the same direction.
    """
    steps_N = (values_N - old_values_N).clamp(-cliprange_value, cliprange_value)
    clipped_N = old_values_N + steps_N
    losses_N = (values_N - returns_N).square()
    clipped_losses_N = (clipped_N - returns_N).square()
    return torch.maximum(losses_N, clipped_losses_N) / 2


def importance_ratios(logprobs_N: Tensor, sampler_logprobs_N: Tensor) -> Tensor:
    """The policy's probability of each token by that of its sampler; 1 where the sampler gave none.

    Truncated, they weight the losses (Espeholt et al. 2018).
    """
    ratios_N = (logprobs_N - sampler_logprobs_N).exp()
    return torch.where(ratios_N.isnan(), 1.0, ratios_N)
