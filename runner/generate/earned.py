"""Completions -> what they earn: reward functions and reward models, called as GRPO calls them.

Letters at the end of a tensor's name are its shape: B rows, R response tokens, F rewards.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from typing import Any, TypeAlias

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState

from runner.errors import ConfigError, Fault
from runner.generate.agent import Agent
from runner.generate.completion import Completion
from runner.generate.episode import EARNED, settle
from runner.generate.held_out_rows import to_columns
from runner.generate.reward_model import (
    encode_for_scores,
    load_tokenizer_of,
    same_tokens,
    score_texts,
)
from runner.io.turns import Row
from runner.reward.answer import Prompt, check_answer, check_some_apply
from runner.schema.literal import to_text

Reward: TypeAlias = Callable[..., Any] | nn.Module


class Rewards:
    """Every reward of a run under its name, with its weight."""

    def __init__(
        self,
        rewards: Sequence[Reward],
        weights: Sequence[float] | None,
        tokenizer: PreTrainedTokenizerBase,
        tokenizers: Sequence[PreTrainedTokenizerBase | None] | None = None,
        step_separator: str = "\n",
        agent: Agent | None = None,
        template_arguments: Mapping[str, object] | None = None,
    ):
        environment_rewards = agent.own_rewards() if agent else []
        self.rewards: list[Reward] = [*rewards, *environment_rewards]
        _check_counts(len(self.rewards), len(rewards), weights)
        self.tokenizer = tokenizer
        self.step_separator = step_separator
        self.template_arguments = template_arguments or {}
        # Of the backbones of reward models; scores themselves are never rounded.
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        reward_weights = list(weights or [1.0] * len(rewards))
        self.weights = torch.tensor([*reward_weights, *[1.0] * len(environment_rewards)])
        self.names = _unique_names(self.rewards)
        for model in self.models:
            _check_labels(model)
            model.eval()

        self.tokenizers: list[PreTrainedTokenizerBase | None] = []  # None for a function
        for index, reward in enumerate(self.rewards):
            reward_tokenizer = None
            if isinstance(reward, nn.Module):
                if tokenizers and index < len(tokenizers):
                    reward_tokenizer = tokenizers[index]
                reward_tokenizer = reward_tokenizer or load_tokenizer_of(reward, tokenizer)
            self.tokenizers.append(reward_tokenizer)

    @property
    def models(self) -> list[nn.Module]:
        """The rewards that are models."""
        return [reward for reward in self.rewards if isinstance(reward, nn.Module)]

    def model_for_critic(self) -> PreTrainedModel | PeftModel | None:
        """The first reward model that reads the policy's tokens; a critic can begin as its copy."""
        for reward, tokenizer in zip(self.rewards, self.tokenizers, strict=True):
            if tokenizer is None or not hasattr(reward, "score"):
                continue
            if getattr(reward, "is_quantized", False):
                continue
            if same_tokens(tokenizer, self.tokenizer):
                return reward
        return None

    def __call__(
        self,
        completions: Sequence[Completion],
        rows: Sequence[Row],
        state: TrainerState | None,
        budget: int,
    ) -> tuple[Tensor, Tensor]:
        """The weighted reward of each token [B, R], and the plain sum of each reward [B, F].

        Both are on the CPU, and NaN where no reward was given, which is not a reward of 0. The last
        token earns the rewards of the whole completion. ``rows`` are those of the completions,
        whose columns functions may take; models read at most ``budget`` padded tokens at once. A
        reward may give None where it does not apply. Raises DataError or SickRun for an answer that
        is no reward.
        """
        answers = self._ask(completions, rows, state, budget)
        # Without the tokens of tools.
        token_ids = [_policy_tokens(completion) for completion in completions]
        longest = max(len(ids) for ids in token_ids)
        earned_BR = torch.full((len(rows), longest), math.nan)
        sums_BF = torch.full((len(rows), len(answers)), math.nan)
        for column, answer in enumerate(answers):
            weight = self.weights[column]
            for row, value in enumerate(answer):
                if value is None:
                    continue
                if isinstance(value, list):
                    values = _policy_values(value, completions[row])
                    indices = self._earning_tokens(self.names[column], values, token_ids[row])
                else:
                    values = [value]
                    indices = [len(token_ids[row]) - 1]
                earned = weight * torch.tensor(values, dtype=torch.float32)
                earned_BR[row, indices] = earned_BR[row, indices].nan_to_num() + earned
                sums_BF[row, column] = float(sum(values))
        return earned_BR, sums_BF

    def _ask(
        self,
        completions: Sequence[Completion],
        rows: Sequence[Row],
        state: TrainerState | None,
        budget: int,
    ) -> list[Any]:
        """The answers of each reward: for each completion a number, a list of numbers or None."""
        prompts: list[Prompt] = [completion.prompt for completion in completions]
        columns: dict[str, Any] = to_columns(rows)
        columns["completions"] = [completion.answer for completion in completions]
        columns["trainer_state"] = state
        columns["completion_ids"] = [completion.token_ids for completion in completions]
        environments = [completion.environment for completion in completions]
        if any(environment is not None for environment in environments):
            columns["environments"] = environments
        columns[EARNED] = [completion.earned for completion in completions]

        results: list[Any] = []
        for reward, tokenizer in zip(self.rewards, self.tokenizers, strict=True):
            if tokenizer is None:
                results.append(reward(**columns))
            else:
                texts = encode_for_scores(
                    tokenizer, self.tokenizer, completions, self.template_arguments
                )
                results.append(score_texts(reward, texts, budget, self.autocast))
        answers = []
        for name, result in zip(self.names, settle(results), strict=True):
            answers.append(check_answer(f"reward.{name}", result, prompts, per_step=True))
        if not any(completion.has_failed for completion in completions):
            check_some_apply(answers, prompts)
        return answers

    def _earning_tokens(self, name: str, values: list[float], tokens: list[int]) -> list[int]:
        """The tokens that earn the values: all, or those that end a step (Uesato et al. 2022)."""
        if len(values) == len(tokens):
            return list(range(len(tokens)))
        ends = step_ends(self.tokenizer, tokens, self.step_separator)
        if len(values) == len(ends):
            return ends
        raise ConfigError(
            Fault(
                where=f"reward.{name}",
                found=f"{len(values)} rewards for a completion of {len(tokens)} tokens "
                f"and {len(ends)} steps",
                expected="one for each token, or for each step (steps end with "
                f"{self.step_separator!r})",
                fix="trainer.args.step_separator=<text>",
            )
        )


def _check_counts(rewards: int, configured: int, weights: Sequence[float] | None) -> None:
    """Raise ConfigError without any reward, or for other weights than one for each configured."""
    if not rewards:
        raise ConfigError(
            Fault(
                where="reward",
                found="no reward",
                expected="at least one",
                fix="reward=<one of conf/reward>, or trainer.args.reward_model_path=<model>",
            )
        )
    if weights is not None and len(weights) != configured:
        raise ConfigError(
            Fault(
                where="trainer.args.reward_weights",
                found=f"{len(weights)} weights for {configured} rewards",
                expected="one for each",
                fix=f"={to_text([1.0] * configured)}",
            )
        )


def _check_labels(model: nn.Module) -> None:
    """Raise ConfigError for a reward model that gives other than one number for a text."""
    head = getattr(model, "score", None)
    labels = getattr(head, "out_features", model.config.num_labels)
    if labels != 1:
        raise ConfigError(
            Fault(
                where=f"reward.{_name_of(model)}",
                found=f"a model with {labels} labels",
                expected="one label, which is the score",
                fix="a model loaded with num_labels=1, or a function around it",
            )
        )


def _policy_tokens(completion: Completion) -> list[int]:
    if completion.own is None:
        return list(completion.token_ids)
    return list(compress(completion.token_ids, completion.own))


def _policy_values(values: list[float], completion: Completion) -> list[float]:
    """The values without those of a tool's tokens, where there is one for each token."""
    if completion.own and len(values) == len(completion.own):
        return list(compress(values, completion.own))
    return values


def step_ends(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], separator: str
) -> list[int]:
    """The index of the token that completes each step; without any step, of the last token.

    A step is a text between separators that is not blank.
    """

    def length(count: int) -> int:
        return len(tokenizer.decode(tokens[:count], skip_special_tokens=True))

    ends = []
    start = 0
    for step in tokenizer.decode(tokens, skip_special_tokens=True).split(separator):
        if step.strip():
            end = start + len(step)
            # The fewest tokens whose text reaches to the end of the step.
            count = bisect.bisect_left(range(len(tokens) + 1), end, key=length)
            ends.append(count - 1)
        start += len(step) + len(separator)
    return ends or [len(tokens) - 1]


def _unique_names(rewards: Sequence[Reward]) -> list[str]:
    """The name of each reward, with its index where several have the same."""
    names = [_name_of(reward) for reward in rewards]
    unique = []
    for index, name in enumerate(names):
        unique.append(name if names.count(name) == 1 else f"{name}_{index}")
    return unique


def _name_of(reward: Reward) -> str:
    if isinstance(reward, nn.Module):
        path = str(getattr(reward.config, "_name_or_path", "") or type(reward).__name__)
        return path.rstrip("/").split("/")[-1]
    function = reward
    if not hasattr(reward, "__name__"):
        function = getattr(reward, "func", reward)  # of a partial
    name: str = getattr(function, "__name__", type(reward).__name__)
    return name
