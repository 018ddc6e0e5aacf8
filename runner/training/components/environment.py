"""The environment of an experiment, in the form that its trainer takes.

Our own trainer plays episodes itself. One of TRL takes those of one turn as rows and rewards, and
those of several turns from a function that plays them, where it has a place for one.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from runner.config.build import asked_for
from runner.config.experiment import TrainerPart
from runner.config.sampler import LIBRARY, RUNNER, SAMPLER_KEY
from runner.errors import ConfigError, Fault, RunnerError
from runner.generate.agent import Agent
from runner.generate.completion import context_length
from runner.generate.episode import EARNED, PLAYED, Environment
from runner.generate.generate_call import generation_settings, to_sampling
from runner.generate.sampler import evaluating, sample, uniform
from runner.io.files import JsonObject
from runner.model.encoding import tokenizer_of
from runner.schema import upstream
from runner.schema.literal import to_text
from runner.training.components.model import policy_of
from runner.training.hooks import Hooks

# Fields of a trainer with which it does not ask our sampler, or which shard a model that is asked
# as often as an episode has turns; each with the value that is harmless.
UNSAMPLED = {
    "use_vllm": False,
    "fsdp": None,
    "deepspeed": None,
}


def fit_environment(
    trainer: TrainerPart,
    functions: Mapping[str, Any],
    agent: Agent | None,
    args: TrainingArguments,
    hooks: Hooks,
) -> dict[str, Any]:
    """The user's functions, with those in place of an environment that the trainer can take.

    Raises ConfigError for a trainer that cannot play its episodes.
    """
    environment = functions.get("environment_factory")
    by_library = upstream.samples_by_library(trainer.target, upstream.config_fields(trainer.args))
    if agent is None or not isinstance(environment, Environment) or not by_library:
        return dict(functions)
    if environment.single_turn and not agent.tools:
        return {}
    if "rollout_func" not in asked_for(trainer.target):
        raise ConfigError(
            Fault(
                where="trainer",
                found=f"{trainer.target} samples one turn, but these episodes have several",
                expected="a trainer that plays episodes",
                fix="=grpo, or trainer=ppo",
            )
        )
    faults = []
    if trainer.sampler == LIBRARY:
        faults.append(
            Fault(
                where=SAMPLER_KEY,
                found=f"{LIBRARY}, but the runner samples episodes of several turns",
                expected=RUNNER,
                fix=f"={RUNNER}",
            )
        )
    for name, harmless in UNSAMPLED.items():
        value = getattr(args, name, harmless)
        if value and value != harmless:
            faults.append(
                Fault(
                    where=f"trainer.args.{name}",
                    found=f"{to_text(value)}, but the runner samples episodes of several turns",
                    expected=to_text(harmless),
                    fix=f"={to_text(harmless)}",
                )
            )
    ConfigError.refuse(faults)
    return {"rollout_func": functools.partial(play_batch, agent, hooks)}


def play_batch(agent: Agent, hooks: Hooks, prompts: Sequence[Any], trainer: Trainer) -> JsonObject:
    """An episode for each prompt, as TRL takes what its ``rollout_func`` returns.

    That is given prompts alone. The rows, by which episodes begin, are those of the batch that the
    trainer was given.
    """
    rows = hooks.rows
    if [row["prompt"] for row in rows] != list(prompts):
        raise RunnerError(
            Fault(
                where="trainer.rollout_func",
                found="prompts that are not those of the batch",
                expected="the prompts of the batch in its order, as TRL 1.16 gives them",
                fix="the version of TRL that pyproject.toml names",
            )
        )
    model = policy_of(trainer)
    settings = generation_settings(model, trainer.generation_config)
    how = replace(to_sampling(settings, rows=len(rows)), max_length=context_length(model))
    noise_BR = uniform(len(rows), how.max_new_tokens, generator=torch.default_generator)
    sampler = functools.partial(sample, model, halves=True)
    with evaluating(model):
        tokenizer = tokenizer_of(trainer.processing_class)
        episodes = agent.play(sampler, tokenizer, rows, how, noise_BR)
    logprobs = []
    for episode in episodes:
        own_logprobs = iter(episode.logprobs)
        episode_logprobs = []
        for is_own in episode.own:
            episode_logprobs.append(next(own_logprobs) if is_own else 0.0)
        logprobs.append(episode_logprobs)
    return {
        "prompt_ids": [list(episode.prompt_ids) for episode in episodes],
        "completion_ids": [episode.token_ids for episode in episodes],
        "logprobs": logprobs,
        "env_mask": [list(map(int, episode.own)) for episode in episodes],
        "environments": [episode.environment for episode in episodes],
        EARNED: [episode.earned for episode in episodes],
        PLAYED: [episode.shown for episode in episodes],
    }
