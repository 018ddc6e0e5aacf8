"""The rollout of an update: groups of completions, and the exchange of those that teach nothing.

Each function takes the PPOTrainer, of which it reads only what is public.
Letters at the end of a tensor's name are its shape: B rows of this process, P prompts, G
completions of a prompt.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Trainer

from runner.io.turns import Row
from runner.ppo.random_numbers import draw_further_rows, rollout_noise
from runner.ppo.rollout import Rollout
from runner.ppo.sampling import roll_out
from runner.ppo.scoring import score
from runner.reward.panel import find_differing_groups


def roll_out_groups(trainer: Trainer, prompts: Sequence[Row]) -> Rollout:
    """``num_generations`` completions of each prompt.

    With dynamic sampling a prompt whose completions all earn the same is exchanged for another one
    whose completions do not, if one is drawn (Yu et al. 2025, section 3.2).
    """
    args = trainer.args
    rollout = _roll_out_prompts(trainer, prompts, "train")
    exchanged = 0
    if args.dynamic_sampling:
        trainer.first_scores_B = _scores(trainer, rollout)
    for number in range(args.dynamic_sampling):
        differ = _find_differing_groups(trainer, rollout)
        if not trainer.largest_count(differ.count(False)):
            break
        # A prompt may be exchanged only for the one drawn for its own place, so that the number of
        # processes changes nothing.
        purpose = f"further {number}"
        dataset = trainer.train_dataset
        step = trainer.state.global_step
        drawn = draw_further_rows(args, len(dataset), len(prompts), step, purpose)
        further = _roll_out_prompts(trainer, [dataset[row] for row in drawn], purpose)
        further_differ = _find_differing_groups(trainer, further)
        picked = []
        for group, differs in enumerate(differ):
            is_better = further_differ[group] and not differs
            exchanged += is_better
            first = group * args.num_generations
            for row in range(first, first + args.num_generations):
                picked.append((further if is_better else rollout, row))
        rollout = Rollout.joined(picked)
    if args.dynamic_sampling:
        count = trainer.total(torch.tensor(float(exchanged), device=args.device))
        trainer.note({"sampling/prompts_exchanged": count.item()})
    return rollout


def _roll_out_prompts(trainer: Trainer, prompts: Sequence[Row], purpose: str) -> Rollout:
    """The rollout of ``num_generations`` completions of each prompt; its rows stand together.

    The ``purpose`` is a part of the seed, so that other prompts of a step get other noise.
    """
    rows: list[Row] = []
    for prompt in prompts:
        rows += [prompt] * trainer.args.num_generations
    step = trainer.state.global_step
    noise_BR = rollout_noise(trainer.args, len(rows), step, purpose)
    rollout: Rollout = roll_out(trainer, rows, noise_BR, trains=True)
    return rollout


def _find_differing_groups(trainer: Trainer, rollout: Rollout) -> list[bool]:
    """For each prompt true where its completions earn different scores."""
    scores_B = _scores(trainer, rollout)
    differ: list[bool] = find_differing_groups(scores_B, trainer.args.num_generations).tolist()
    return differ


def _scores(trainer: Trainer, rollout: Rollout) -> Tensor:
    """The score of each completion [B], before it is normalised."""
    return score(trainer, rollout).figures["objective/scores"]
