"""The completions of a rollout: by a function of the user's, with tools, or in one turn.

Each function takes the PPOTrainer, of which it reads only what is public.
Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import Trainer

from runner.errors import ConfigError, Fault
from runner.generate.agent import Agent
from runner.generate.completion import of_episode, to_completions
from runner.generate.episode import Episode
from runner.generate.sampler import Responses
from runner.io.turns import Row
from runner.model.encoding import encode_prompt
from runner.ppo.engine import sampling_context
from runner.ppo.passes import is_in_float32
from runner.ppo.preparation import max_length, sampling_of
from runner.ppo.rollout import Rollout, SampledRows

# From prompts and the trainer to columns, a value for each prompt.
RolloutFunction: TypeAlias = Callable[..., Mapping[str, Any]]


@torch.no_grad()
def roll_out(
    trainer: Trainer, inputs: Sequence[Row], noise_BR: Tensor, *, trains: bool = False
) -> Rollout:
    """Sample a completion for each row: by a user's function, with tools or in one turn.

    Of a rollout that ``trains``, no episode is one whose environment has failed.
    """
    args = trainer.args
    if trainer.rollout_func:
        sampled = roll_out_by_function(trainer.rollout_func, inputs, trainer)
    elif trainer.agent:
        sampled = play_episodes(trainer.agent, inputs, noise_BR, trainer, trains=trains)
    else:
        sampled = sample_one_turn(inputs, noise_BR, trainer)
    rollout = Rollout(sampled.rows, sampled.completions, args.device)
    # float32 log-probabilities of sampling equal those of the update.
    is_policy = not trainer.vllm and not trainer.rollout_func
    is_exact = args.old_logprobs == "auto" and is_in_float32(trainer) and is_policy
    if is_exact or args.old_logprobs == "sampled":
        logprobs_N = torch.cat(sampled.logprobs).to(args.device)
        rollout.logprobs_BR[rollout.mask_BR] = logprobs_N
        rollout.has_logprobs = True
    elif trainer.vllm and args.vllm_importance_sampling_clip_max is not None:
        logprobs_N = torch.cat(sampled.logprobs).to(args.device)
        zeros_BR = torch.zeros_like(rollout.logprobs_BR)
        rollout.sampler_logprobs_BR = zeros_BR.masked_scatter(rollout.mask_BR, logprobs_N)
    return rollout


def play_episodes(
    agent: Agent, rows: Sequence[Row], noise_BR: Tensor, trainer: Trainer, *, trains: bool
) -> SampledRows:
    """Completions of several turns, between which tools answer.

    In a rollout that ``trains`` another episode stands in the place of one that was skipped.
    """
    how = replace(
        sampling_of(trainer), max_length=max_length(trainer.args, trainer.actor_critic.policy)
    )
    in_step = trainer.is_fsdp_enabled
    if trainer.vllm:
        in_step = trainer.vllm.needs_everyone
    agree = trainer.largest_count if in_step else int
    tokenizer = trainer.processing_class
    with sampling_context(trainer) as sampler:
        episodes = agent.play(sampler, tokenizer, rows, how, noise_BR, agree=agree)
    numbers = list(range(len(rows)))
    if trains:
        numbers = without_failed(episodes)
    sampled = SampledRows([], [], [])
    for number in numbers:
        sampled.rows.append(rows[number])
        sampled.completions.append(of_episode(episodes[number], trainer.stop_ids))
        sampled.logprobs.append(torch.tensor(episodes[number].logprobs))
    return sampled


def without_failed(episodes: Sequence[Episode]) -> list[int]:
    """The numbers of the episodes, in the place of one that has failed that of another.

    That is one of the same row, or else any: an update takes as many rows as ever.
    """
    healthy = [number for number, episode in enumerate(episodes) if not episode.has_failed]
    numbers = []
    for number, episode in enumerate(episodes):
        if episode.has_failed:
            same_row = [other for other in healthy if episodes[other].row == episode.row]
            number = (same_row or healthy)[number % len(same_row or healthy)]
        numbers.append(number)
    return numbers


def sample_one_turn(rows: Sequence[Row], noise_BR: Tensor, trainer: Trainer) -> SampledRows:
    """Completions of one turn."""
    tokenizer = trainer.processing_class
    prompts = [encode_prompt(tokenizer, row["prompt"], row) for row in rows]
    with sampling_context(trainer) as sampler:
        responses = sampler(prompts, sampling_of(trainer), noise_BR)
    stop_ids = trainer.stop_ids
    completions = to_completions(tokenizer, rows, prompts, responses, stop_ids, whole=not stop_ids)
    return SampledRows(list(rows), completions, responses.logprobs)


def roll_out_by_function(
    function: RolloutFunction, rows: Sequence[Row], trainer: Trainer
) -> SampledRows:
    """The completions that a function of the user's gives for rows.

    From the prompts and the trainer it makes ``prompt_ids``, ``completion_ids`` and ``logprobs`` of
    each; in ``env_mask`` 0 for tokens that the policy did not write. Whatever else it returns are
    further columns of the rows, for rewards. Raises ConfigError for lists of other lengths.
    """
    result = function([row["prompt"] for row in rows], trainer)
    columns: dict[str, Any] = {}
    if isinstance(result, Mapping):
        columns = {name: values for name, values in result.items() if values is not None}
    prompts = columns.pop("prompt_ids", ())
    completion_ids = columns.pop("completion_ids", ())
    logprobs = columns.pop("logprobs", ())
    all_own = [[1] * len(ids) for ids in completion_ids]
    masks = columns.pop("env_mask", all_own)

    lists = (prompts, completion_ids, *columns.values())
    fits_rows = all(len(values) == len(rows) for values in lists)
    lengths = [len(ids) for ids in completion_ids]
    fits_logprobs = lengths == [len(values) for values in logprobs]
    has_policy = all(map(any, masks))
    fits_masks = has_policy and lengths == [len(mask) for mask in masks]
    if not (fits_rows and fits_logprobs and fits_masks):
        raise ConfigError(
            Fault(
                where="trainer.rollout_func",
                found=f"lists that do not fit {len(rows)} prompts",
                expected="prompt_ids, completion_ids and logprobs for each prompt, env_mask of "
                "the same lengths, a token of the policy in each",
                fix="a function as TRL's GRPO takes it",
            )
        )

    responses = Responses(
        tokens=[torch.tensor(ids) for ids in completion_ids],
        logprobs=[torch.tensor(values) for values in logprobs],
    )
    completions = to_completions(
        trainer.processing_class,
        rows,
        prompts,
        responses,
        trainer.stop_ids,
        whole=not trainer.stop_ids,
    )
    sampled = SampledRows([], [], [])
    for index, row in enumerate(rows):
        own = [bool(is_own) for is_own in masks[index]]
        further = {name: values[index] for name, values in columns.items()}
        sampled.rows.append({**row, **further})
        sampled.completions.append(replace(completions[index], own=own))
        sampled.logprobs.append(responses.logprobs[index][torch.tensor(own)])
    return sampled
