"""The figures that PPO logs, under the names that TRL gave to the same figures.

Letters at the end of a tensor's name are its shape: B rows of this process.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from runner.ppo.arithmetic import Sum, mean_of_rows
from runner.ppo.rollout import Rollout


def tool_figures(rollout: Rollout, total: Sum) -> dict[str, float]:
    """The calls and turns of completions with tools."""
    turns = 0
    calls = 0
    failures = 0
    for completion in rollout.completions:
        turns += completion.calls[0]
        calls += completion.calls[1]
        failures += completion.calls[2]
    counts = torch.tensor(
        [len(rollout.rows), turns, calls, failures], device=rollout.mask_BR.device
    )
    rows, turns, calls, failures = total(counts).tolist()
    return {
        "tools/call_frequency": calls / rows,
        "tools/failure_frequency": failures / max(calls, 1),
        "tools/turns": turns / rows,
    }


def importance_figures(ratios_N: Tensor, gather: Sum) -> dict[str, float]:
    """The smallest, the mean and the largest ratio over all processes."""
    own = torch.stack([ratios_N.min(), ratios_N.mean(), ratios_N.max()])
    smallest, means, largest = gather(own).view(-1, 3).T
    return {
        "sampling/importance_sampling_ratio/min": smallest.min().item(),
        "sampling/importance_sampling_ratio/mean": means.mean().item(),
        "sampling/importance_sampling_ratio/max": largest.max().item(),
    }


def rollout_figures(
    rollout: Rollout, figures: Mapping[str, Tensor], kl_coef: float, total: Sum, processes: int
) -> dict[str, float]:
    """The means over all rows of all processes, of which each has the same number.

    ``figures`` [B] are those of the scores. A reward that applies to no row has no figure.
    """
    non_score_B = -kl_coef * rollout.kl_BR.sum(1)
    columns = {
        **figures,
        "objective/non_score_reward": non_score_B,
        "objective/rlhf_reward": figures["objective/scores"] + non_score_B,
        "objective/entropy": -rollout.logprobs_BR.sum(1),
    }
    means = {}
    for name, values_B in columns.items():
        if name.startswith("rewards/"):
            # NaN is the reward of a row to which it does not apply.
            applies_B = ~values_B.isnan()
            sums_here = torch.stack([values_B.nansum(), applies_B.sum()])
            added, count = total(sums_here).tolist()
            if count:
                means[name] = added / count
        else:
            # NaN stays NaN, which the alarms must see.
            means[name] = mean_of_rows(values_B, total, processes)
    ended = sum(completion.finish == "stop" for completion in rollout.completions)
    ended_count = total(torch.tensor(ended, device=rollout.mask_BR.device))
    means["val/num_eos_tokens"] = ended_count.item()
    return means


def update_figures(sums: Mapping[str, float], steps: int) -> dict[str, float]:
    """The figures of an update from the sums over the tokens of all its mini-batches.

    Clipped is where the clipped loss is the larger one, as in TRL. The two names of our own are
    the entropy, which is estimated from the sampled tokens alone, and the variance of the ratios of
    tokens, where TRL has that of the means of micro-batches.
    """
    tokens = sums["tokens"]
    ratio = sums["ratio"] / tokens
    return {
        "loss/policy_avg": sums["policy"] / steps,
        "loss/value_avg": sums["value"] / steps,
        "policy/approxkl_avg": sums["approxkl"] / tokens,
        "policy/clipfrac_avg": sums["clipped"] / tokens,
        "policy/sampled_entropy_avg": sums["entropy"] / tokens,
        "val/clipfrac_avg": sums["value_clipped"] / tokens,
        "val/ratio": ratio,
        "val/token_ratio_var": max(sums["ratio_squared"] / tokens - ratio**2, 0.0),
    }
