"""The reward of each token of a rollout, from its scores and its distance from the reference.

Each function takes the PPOTrainer, of which it reads only what is public.
Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens, N
response tokens of all rows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Trainer

from runner.ppo.arithmetic import Sum, mean_of_rows, whiten
from runner.ppo.figures import rollout_figures, tool_figures
from runner.ppo.rollout import Rollout
from runner.ppo.scoring import RolloutScores, score
from runner.reward.panel import find_differing_groups


@dataclass
class RunningStats:
    """The adaptive KL coefficient and the statistics of all scores so far; saved in checkpoints."""

    kl_coef: float
    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean

    def add(self, count: float, mean: float, squares: float) -> None:
        """Take in the scores of a batch (Chan et al. 1979).

        ``squares`` is the sum of their squared distances from their own ``mean``.
        """
        new_count = self.count + count
        distance = mean - self.mean
        between = distance**2 * self.count * count / new_count  # as both means differ
        self.squares += squares + between
        self.mean += distance * count / new_count
        self.count = new_count

    @property
    def deviation(self) -> float:
        """The deviation of all scores so far; 1 where all were equal, which tells no scale."""
        if not self.count:
            return 1.0
        return math.sqrt(self.squares / self.count) or 1.0

    def normalise(self, earned_BR: Tensor, how: str, clip: float | None, total: Sum) -> Tensor:
        """The rewards that were given, scaled by all so far and clipped; 0 where none was given.

        ``how`` is none, scale or whiten, which also shifts them.
        """
        given_BR = ~earned_BR.isnan()
        scores_N = earned_BR[given_BR]
        if how != "none":
            exact_N = scores_N.double()
            count_here = torch.tensor(len(scores_N), device=scores_N.device, dtype=torch.float64)
            count = total(count_here)
            mean = total(exact_N.sum()) / count
            squares = total((exact_N - mean).square().sum())
            self.add(count.item(), mean.item(), squares.item())
            shift = self.mean if how == "whiten" else 0.0
            scores_N = (scores_N - shift) / self.deviation
        if clip is not None:
            scores_N = scores_N.clamp(-clip, clip)
        return torch.zeros_like(earned_BR).masked_scatter(given_BR, scores_N)


@torch.no_grad()
def compute_rewards(trainer: Trainer, rollout: Rollout) -> Tensor:
    """The reward of each token [B, R]: minus its KL, its own rewards, at the end the score."""
    args = trainer.args
    scores = score(trainer, rollout)
    if not args.dynamic_sampling:
        trainer.first_scores_B = scores.figures["objective/scores"]
    _note_rollout(trainer, rollout, scores)
    rewards_BR = trainer.running.normalise(
        scores.earned_BR, args.score_normalization, args.score_clip, trainer.total
    )
    rows_B = torch.arange(len(rollout.rows))
    last_B = rollout.mask_BR.sum(1) - 1
    rewards_BR[rows_B, last_B] -= scores.penalty_B
    rewards_BR = rewards_BR - trainer.running.kl_coef * rollout.kl_BR
    if args.kl_target is not None:  # Ziegler et al. 2019, section 2.2
        kl = mean_of_rows(rollout.kl_BR.sum(1), trainer.total, trainer.accelerator.num_processes)
        error = min(max(kl / args.kl_target - 1, -0.2), 0.2)
        # The coefficient of this rollout stays; the next one has the new one.
        trainer.running.kl_coef *= 1 + error * len(rewards_BR) * args.world_size / args.kl_horizon
    if args.whiten_rewards:
        rewards_BR = whiten(rewards_BR, rollout.mask_BR, shift_mean=False, total=trainer.total)
    return rewards_BR


def _note_rollout(trainer: Trainer, rollout: Rollout, scores: RolloutScores) -> None:
    """Note the figures of a rollout, with the coefficient of the KL that its rewards have."""
    if trainer.agent:
        trainer.note(tool_figures(rollout, trainer.total))
    kl_coef = trainer.running.kl_coef
    if trainer.args.penalises_kl:
        trainer.note({"objective/kl_coef": kl_coef})
    processes = trainer.accelerator.num_processes
    if trainer.args.num_generations > 1:
        scores_B = scores.figures["objective/scores"]
        differ_P = find_differing_groups(scores_B, trainer.args.num_generations)
        alike_P = (~differ_P).float()
        share = mean_of_rows(alike_P, trainer.total, processes)
        trainer.note({"frac_reward_zero_std": share})
    trainer.note(rollout_figures(rollout, scores.figures, kl_coef, trainer.total, processes))
