"""Every random number of PPO: it follows from the seed, a purpose and the update alone.

So a resume needs no hidden state, and the rows of all processes together get the same numbers
however many processes there are.

Letters at the end of a tensor's name are its shape: B rows, R response tokens, P parts.
"""

import torch
from torch import Tensor

from runner.generate.sampler import seeded_generator, uniform
from runner.ppo.config import PPOConfig


def rollout_noise(args: PPOConfig, rows: int, step: int, purpose: str) -> Tensor:
    """The noise [B, R] of the completions that this process samples in an update.

    Each process draws the noise of all rows and takes its share: so a row has the same noise
    whichever process samples it.
    """
    generator = seeded_generator(args.seed, purpose, step)
    all_rows = rows * args.world_size
    everyone_BR = uniform(all_rows, args.response_length, generator=generator)
    start = args.process_index * rows
    end = start + rows
    return everyone_BR[start:end]


def held_out_noise(args: PPOConfig, first: int, rows: int) -> Tensor:
    """The noise [B, R] of held-out rows from the ``first`` on, in each evaluation the same.

    Its seed is the number of the row alone, so that evaluations at different steps differ by what
    the policy has learned, and not by luck.
    """
    noises = []
    for number in range(first, first + rows):
        generator = seeded_generator(args.seed, "eval", number)
        noises.append(uniform(1, args.response_length, generator=generator))
    return torch.cat(noises)


def draw_further_rows(
    args: PPOConfig, dataset_rows: int, prompts: int, step: int, purpose: str
) -> list[int]:
    """Rows of the dataset whose prompts this process tries in place of its own ``prompts``."""
    generator = seeded_generator(args.seed, purpose, step)
    total = prompts * args.world_size
    everyone = torch.randint(dataset_rows, (total,), generator=generator)
    start = args.process_index * prompts
    end = start + prompts
    rows: list[int] = everyone[start:end].tolist()
    return rows


def deal_minibatches(args: PPOConfig, rows: int, step: int) -> list[list[int]]:
    """The rows of this process in each mini-batch of each epoch.

    Neighbouring rows, as many as there are mini-batches, go one to each, by one permutation for
    all processes: each process has an equal share of each mini-batch, whose rows do not depend on
    the number of processes.
    """
    parts = args.num_mini_batches
    shares = rows // parts  # of this process in a mini-batch
    rows_before = args.process_index * rows
    first = rows_before // parts
    all_rows = rows * args.world_size
    all_shares = all_rows // parts  # of all processes
    starts_B1 = torch.arange(0, rows, parts).unsqueeze(1)
    # The word is a part of the seed: another one would change trainings.
    generator = seeded_generator(args.seed, "deal", step)
    minibatches: list[list[int]] = []
    for _ in range(args.num_ppo_epochs):
        # Random numbers sorted are a random permutation of each line of neighbours.
        everyone_BP = torch.rand(all_shares, parts, generator=generator)
        permutations_BP = everyone_BP.argsort(1)
        permutation_BP = permutations_BP[first : first + shares]
        rows_BP = permutation_BP + starts_B1
        minibatches += rows_BP.T.tolist()
    return minibatches
