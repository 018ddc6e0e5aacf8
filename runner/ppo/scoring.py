"""The scores of a rollout: what its completions earn, before that is normalised.

Letters at the end of a tensor's name are its shape: B rows, R response tokens, F rewards.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Trainer

from runner.generate.padding import TOKENS_PER_PASS
from runner.generate.sampler import whole
from runner.ppo.rollout import Rollout

# Tokens in a pass of a reward model on a GPU, by those of a pass on a CPU.
GPU_TOKENS = 32


@dataclass(frozen=True)
class RolloutScores:
    """The rewards of a rollout before they are normalised."""

    earned_BR: Tensor  # the reward of each token, NaN where none was given
    penalty_B: Tensor  # subtracted from completions that were cut off
    figures: dict[str, Tensor]  # [B] under TRL's names, NaN where a reward does not apply


def score(trainer: Trainer, rollout: Rollout) -> RolloutScores:
    """The scores of a rollout of a PPOTrainer; the rewards of its tokens are asked for once."""
    args = trainer.args
    rewards = trainer.rewards
    if rollout.earned_BR is None or rollout.reward_sums_BF is None:
        on_cpu = args.device.type == "cpu"
        tokens = TOKENS_PER_PASS if on_cpu else TOKENS_PER_PASS * GPU_TOKENS
        budget = args.max_tokens_per_micro_batch or tokens
        with whole(*rewards.models):
            earned_BR, sums_BF = rewards(rollout.completions, rollout.rows, trainer.state, budget)
        rollout.earned_BR = earned_BR.to(args.device)
        rollout.reward_sums_BF = sums_BF.to(args.device)
    is_cut_off = [completion.finish == "length" for completion in rollout.completions]
    cut_off_B = torch.tensor(is_cut_off, device=args.device)
    penalty_B = (args.missing_eos_penalty or 0.0) * cut_off_B
    figures = {
        "objective/scores": rollout.earned_BR.nansum(1) - penalty_B,
        "completions/mean_length": rollout.mask_BR.sum(1).float(),
    }
    if args.penalises_kl:
        figures["objective/kl"] = rollout.kl_BR.sum(1)
    for index, name in enumerate(rewards.names):
        figures[f"rewards/{name}/mean"] = rollout.reward_sums_BF[:, index]
    return RolloutScores(rollout.earned_BR, penalty_B, figures)
