"""Completions -> what they earn: reward functions and reward models, called as GRPO calls them.

Letters at the end of a tensor's name are its shape: B rows, R response tokens, F rewards, T tokens.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, compress, repeat
from typing import Any, TypeAlias

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, TrainerState

from runner.errors import ConfigError, fault
from runner.generate.agent import Agent, settle
from runner.generate.batch import pad, split_by_tokens
from runner.generate.completion import Completion
from runner.generate.judge import to_columns
from runner.generate.rows import Row
from runner.io.turns import turns_for
from runner.ppo.actor_critic import last_hidden_states, score_states
from runner.reward.panel import Prompt, check_answer, check_some_apply
from runner.reward.reading import as_if_alone, explain_length, padding_of, place_of_score, searches_last
from runner.schema.text import to_text

TOKENS_PER_REWARD_PASS = 8192  # padded, that a reward model reads at once where nobody says otherwise

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
        template_arguments: Mapping[str, Any] | None = None,
    ):
        rewards, given = list(rewards), list(weights or [1.0] * len(rewards))
        own = agent.own_rewards() if agent else []
        if not rewards + own:
            raise ConfigError(fault("ppo.no_reward"))
        if weights is not None and len(weights) != len(rewards):
            counts = {"weights": len(weights), "rewards": len(rewards)}
            raise ConfigError(fault("ppo.number_of_weights", ones=to_text([1.0] * len(rewards)), **counts))
        self.tokenizer, self.step_separator = tokenizer, step_separator
        self.template_arguments = template_arguments or {}
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext  # of backbones; no score is rounded
        self.weights = torch.tensor([*given, *[1.0] * len(own)])
        self.rewards = rewards + own
        names = list(map(_name_of, self.rewards))
        self.names = [n if names.count(n) == 1 else f"{n}_{index}" for index, n in enumerate(names)]
        for model in self.models:
            labels = getattr(getattr(model, "score", None), "out_features", model.config.num_labels)
            if labels != 1:
                raise ConfigError(fault("ppo.labels", name=_name_of(model), labels=labels))
            model.eval()
        self.tokenizers = [
            (one or _load_tokenizer(reward, tokenizer)) if isinstance(reward, nn.Module) else None
            for reward, one in zip(self.rewards, [*(tokenizers or []), *[None] * len(self.rewards)], strict=False)
        ]

    @property
    def models(self) -> list[nn.Module]:
        """The rewards that are models."""
        return [reward for reward in self.rewards if isinstance(reward, nn.Module)]

    def model_for_critic(self) -> PreTrainedModel | PeftModel | None:
        """The first reward model that reads the policy's own tokens; a critic can begin as its copy."""
        for reward, tokenizer in zip(self.rewards, self.tokenizers, strict=True):
            fits = tokenizer is not None and hasattr(reward, "score") and not getattr(reward, "is_quantized", False)
            if fits and same_tokens(tokenizer, self.tokenizer):
                return reward
        return None

    def __call__(
        self, completions: Sequence[Completion], rows: Sequence[Row], state: TrainerState | None, budget: int
    ) -> tuple[Tensor, Tensor]:
        """The weighted reward of each token [B, R], and the plain sum of each reward [B, F], on the CPU.

        Both are NaN where no reward was given, which is not a reward of 0; the last token earns those of the whole.
        ``rows`` are those of the completions, whose columns functions may take; models read at most ``budget`` padded
        tokens at once. A reward may give None where it does not apply. Raises DataError or SickRun for what is none.
        """
        prompts: list[Prompt] = [each.prompt for each in completions]
        given = to_columns(rows) | {"completions": [each.answer for each in completions], "trainer_state": state}
        given["completion_ids"] = [each.token_ids for each in completions]
        if any(each.environment is not None for each in completions):
            given["environments"] = [each.environment for each in completions]
        answers = [
            reward(**given) if tokenizer is None else self._score(reward, tokenizer, completions, budget)
            for reward, tokenizer in zip(self.rewards, self.tokenizers, strict=True)
        ]
        named = zip(self.names, settle(answers), strict=True)
        answers = [check_answer(f"reward.{name}", answer, prompts, per_step=True) for name, answer in named]
        check_some_apply(answers, prompts)
        own = [list(compress(each.token_ids, each.own or repeat(True))) for each in completions]  # but those of tools
        earned_BR = torch.full((len(rows), max(map(len, own))), math.nan)
        each_BF = torch.full((len(rows), len(answers)), math.nan)
        for column, (answer, weight) in enumerate(zip(answers, self.weights, strict=True)):
            for row, value in enumerate(answer):
                if value is not None:
                    values, mask = value if isinstance(value, list) else [value], completions[row].own
                    if mask and len(values) == len(mask):  # one for each token, of which those of tools earn nothing
                        value = values = list(compress(values, mask))
                    at = self._earning(self.names[column], value, own[row]) if values is value else [len(own[row]) - 1]
                    earned = weight * torch.tensor(values, dtype=torch.float32)
                    earned_BR[row, at] = earned_BR[row, at].nan_to_num() + earned
                    each_BF[row, column] = float(sum(values))
        return earned_BR, each_BF

    def _earning(self, name: str, values: list[float], tokens: list[int]) -> list[int]:
        """The tokens that earn rewards: each, or for rewards of steps those that end one (Uesato et al. 2022)."""
        if len(values) == len(tokens):
            return list(range(len(tokens)))
        ends = step_ends(self.tokenizer, tokens, self.step_separator)
        if len(values) != len(ends):
            counts = {"values": len(values), "tokens": len(tokens), "steps": len(ends)}
            raise ConfigError(fault("ppo.number_of_rewards", name=name, separator=self.step_separator, **counts))
        return ends

    @torch.no_grad()
    def _score(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, completions: Sequence[Completion], budget: int
    ) -> list[float]:
        rows = self._encode(tokenizer, completions)
        model = model.get_base_model() if isinstance(model, PeftModel) else model  # its layers keep their adapters
        device, found = next(model.parameters()).device, []
        groups = split_by_tokens(range(len(rows)), list(map(len, rows)), budget)
        with explain_length(model, rows):
            for group in groups:
                ids_BT, mask_BT = pad([rows[row] for row in group], device)
                if searches_last(model):
                    places = [place_of_score(rows[row], padding_of(model)) for row in group]
                    places_B = torch.arange(len(group)) * ids_BT.shape[1] + torch.tensor(places)
                    with self.autocast():
                        own = {"attention_mask": mask_BT}
                        states_BH = last_hidden_states(model.base_model, ids_BT, places_B.to(device), **own)
                    scores_B = score_states(model.score, states_BH)
                else:  # nobody knows which part is the head, so all of it reads as its weights are
                    with as_if_alone(model, ids_BT, mask_BT) as padded_BT:
                        scores_B = model(input_ids=padded_BT, attention_mask=mask_BT).logits[:, 0]
                found.append(scores_B.float())
        scores = dict(zip(chain(*groups), torch.cat(found).tolist(), strict=True))  # only now waits for the device
        return [scores[row] for row in range(len(rows))]

    def _encode(self, tokenizer: PreTrainedTokenizerBase, completions: Sequence[Completion]) -> list[list[int]]:
        if not isinstance(completions[0].prompt, str):
            template = tokenizer.chat_template or self.tokenizer.chat_template
            how = {**self.template_arguments, "chat_template": template, "return_dict": False}
            writer = tokenizer if tokenizer.chat_template else self.tokenizer
            whole = [turns_for(writer, [*each.prompt, *each.answer]) for each in completions]
            return [tokenizer.apply_chat_template(turns, **how) for turns in whole]
        if same_tokens(tokenizer, self.tokenizer):
            return [[*each.prompt_ids, *each.token_ids] for each in completions]
        ends = [(tokenizer.eos_token or "") * (each.finish == "stop") for each in completions]
        texts = [f"{each.prompt}{each.text}{end}" for each, end in zip(completions, ends, strict=True)]
        return tokenizer(texts)["input_ids"]


def step_ends(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], separator: str) -> list[int]:
    """The index of the token that completes each step, a text between separators unless blank; else the last."""

    def length(count: int) -> int:
        return len(tokenizer.decode(tokens[:count], skip_special_tokens=True))

    ends, start = [], 0
    for step in tokenizer.decode(tokens, skip_special_tokens=True).split(separator):
        ends += [start + len(step)] if step.strip() else []
        start += len(step) + len(separator)
    return [bisect.bisect_left(range(len(tokens) + 1), end, key=length) - 1 for end in ends] or [len(tokens) - 1]


def same_tokens(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """True where two tokenizers mean the same by an id."""
    return one is other or one.get_vocab() == other.get_vocab()


def _name_of(reward: Reward) -> str:
    if isinstance(reward, nn.Module):
        return str(getattr(reward.config, "_name_or_path", "") or type(reward).__name__).rstrip("/").split("/")[-1]
    function = reward if hasattr(reward, "__name__") else getattr(reward, "func", reward)
    return getattr(function, "__name__", type(reward).__name__)


def _load_tokenizer(model: nn.Module, policy_tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer beside a reward model's weights; a model made in memory reads the policy's tokens."""
    path = getattr(model.config, "_name_or_path", "")
    tokenizer = AutoTokenizer.from_pretrained(path) if path else policy_tokenizer
    if not tokenizer("reward")["input_ids"]:  # what a folder without one gives
        raise ConfigError(fault("ppo.no_tokenizer", path=path))
    return tokenizer
