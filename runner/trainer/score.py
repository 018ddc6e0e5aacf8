"""Completions -> what they earn: reward functions and reward models, called as GRPO calls them.

How rewards are spread over tokens, scaled and penalised is in ``ppo``.
"""

from __future__ import annotations

import asyncio
import bisect
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from runner.errors import ConfigError, Fault
from runner.generate.batch import pad_right, split_by_tokens
from runner.signature import to_text
from runner.trainer.actor_critic import States

Reward = Callable[..., Any] | nn.Module


@dataclass
class Completions:
    """Completions with their prompts, as text or chats and as token ids, and the other columns of their rows."""

    prompts: list[Any]
    completions: list[Any]
    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    ended: list[bool]
    columns: Mapping[str, list[Any]]

    @property
    def are_chats(self) -> bool:
        return isinstance(self.prompts[0], list)


@dataclass
class Scores:
    """What completions earned: each token its own rewards, weighted, and the last one those of the whole."""

    earned_BR: Tensor  # NaN where no reward was told, which is not a reward of 0
    each_BF: Tensor  # every reward's sum, not weighted; NaN where it does not apply

    @property
    def total_B(self) -> Tensor:
        """All tokens together."""
        return self.earned_BR.nansum(1)


class Rewards:
    """Every reward of a run under its name, with its weight."""

    def __init__(
        self,
        rewards: Sequence[Reward],
        weights: Sequence[float] | None,
        tokenizer: PreTrainedTokenizerBase,
        tokenizers: Sequence[PreTrainedTokenizerBase | None] | None = None,
        step_separator: str = "\n",
    ):
        if not rewards:
            cure = "reward=<one of conf/reward>, or trainer.args.reward_model_path=<model>"
            raise ConfigError(Fault("reward", "no reward", "at least one", cure))
        if weights is not None and len(weights) != len(rewards):
            where, found = "trainer.args.reward_weights", f"{len(weights)} weights for {len(rewards)} rewards"
            raise ConfigError(Fault(where, found, "one for each", f"{where}={to_text([1.0] * len(rewards))}"))
        self.tokenizer = tokenizer
        self.step_separator = step_separator
        self.weights = torch.tensor(list(weights or [1.0] * len(rewards)))
        self.rewards = [_ready(reward) for reward in rewards]
        self.names = _unlike([_name(reward) for reward in self.rewards])
        self.states: dict[nn.Module, States] = {}  # of reward models
        given = [*(tokenizers or []), *[None] * len(rewards)][: len(rewards)]
        self.tokenizers = [
            (one or _tokenizer_of(reward, tokenizer)) if isinstance(reward, nn.Module) else None
            for reward, one in zip(self.rewards, given, strict=True)
        ]

    def model_for_critic(self) -> nn.Module | None:
        """The first reward model that reads the policy's own tokens; a critic can begin as its copy."""
        for reward, tokenizer in zip(self.rewards, self.tokenizers, strict=True):
            fits = tokenizer is not None and hasattr(reward, "score") and not getattr(reward, "is_quantized", False)
            if fits and same_tokens(tokenizer, self.tokenizer):
                return reward
        return None

    def __call__(self, asked: Completions, state: Any, budget: int) -> Scores:
        """The scores of completions, on the CPU; models read at most ``budget`` padded tokens at once.

        A reward may give None where it does not apply to a row. Raises ConfigError with every fault of every reward.
        """
        given = {"prompts": asked.prompts, "completions": asked.completions, "completion_ids": asked.completion_ids}
        given |= dict(asked.columns) | {"trainer_state": state}
        answers = [
            self._of_model(reward, tokenizer, asked, budget) if tokenizer is not None else reward(**given)
            for reward, tokenizer in zip(self.rewards, self.tokenizers, strict=True)
        ]
        answers = [_to_values(name, answer) for name, answer in zip(self.names, _awaited(answers), strict=True)]
        rows, width = len(asked.prompts), max([1, *map(len, asked.completion_ids)])
        self._check(answers, rows)
        scores = Scores(torch.full((rows, width), math.nan), torch.full((rows, len(answers)), math.nan))
        for column, (answer, weight) in enumerate(zip(answers, self.weights, strict=True)):
            for row, value in enumerate(answer):
                if value is not None:
                    values, tokens = value if isinstance(value, list) else [value], asked.completion_ids[row]
                    at = [len(tokens) - 1] if values is not value else self._places(self.names[column], values, tokens)
                    given = weight * torch.tensor(values, dtype=torch.float32)
                    scores.earned_BR[row, at] = scores.earned_BR[row, at].nan_to_num() + given
                    scores.each_BF[row, column] = float(sum(values))
        return scores

    def _check(self, answers: list[list[Any]], count: int) -> None:
        """Raise ConfigError unless there is one finite reward, list of rewards, or None, for each row."""
        faults = []
        for name, answer in zip(self.names, answers, strict=True):
            bad = [row for row, value in enumerate(answer) if not _is_finite(value)]
            if len(answer) != count:
                found = f"{len(answer)} rewards for {count} completions"
                faults.append(Fault(f"reward.{name}", found, "one for each completion"))
            elif bad:
                found = f"{answer[bad[0]]} for completion {bad[0]} of {count}, and {len(bad) - 1} more"
                faults.append(Fault(f"reward.{name}", found, "a finite number, a list of them, or None"))
        rows = [] if faults else zip(*answers, strict=True)
        empty = [row for row, values in enumerate(rows) if all(value is None for value in values)]
        if empty:
            found = f"every reward gave None to completion {empty[0]} of {count}, and to {len(empty) - 1} more"
            faults.append(Fault("reward", found, "at least one reward that applies to each row"))
        if faults:
            raise ConfigError(faults)

    def _places(self, name: str, values: list[float], tokens: list[int]) -> list[int]:
        """The tokens that earn rewards: each, or for rewards of steps those that end one (Uesato et al. 2022)."""
        if len(values) == len(tokens):
            return list(range(len(tokens)))
        ends = step_ends(self.tokenizer, tokens, self.step_separator)
        if len(values) != len(ends):
            found = f"{len(values)} rewards for a completion of {len(tokens)} tokens and {len(ends)} steps"
            expected = f"one for each token, or for each step (steps end with {self.step_separator!r})"
            raise ConfigError(Fault(f"reward.{name}", found, expected, "trainer.args.step_separator=<text>"))
        return ends

    @torch.no_grad()
    def _of_model(self, model: nn.Module, tokenizer: Any, asked: Completions, budget: int) -> list[float]:
        """The score of a model at the last token of each completion."""
        rows = self._encode(tokenizer, asked)
        model = model.get_base_model() if isinstance(model, PeftModel) else model  # its layers keep their adapters
        scores: list[float] = [0.0] * len(rows)
        device = next(model.parameters()).device
        for group in split_by_tokens(range(len(rows)), list(map(len, rows)), budget):
            ids_BT, mask_BT = pad_right([rows[row] for row in group], device)
            if hasattr(model, "score"):
                # Not by the model's own search for the last token, which takes an end token for padding.
                last_B = torch.arange(len(group), device=device) * mask_BT.shape[1] + mask_BT.sum(1) - 1
                given_B = model.score(self._states(model)(ids_BT, last_B, attention_mask=mask_BT)).squeeze(-1)
            else:
                given_B = model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, 0]
            for row, score in zip(group, given_B.float().tolist(), strict=True):
                scores[row] = score
        return scores

    def _states(self, model: nn.Module) -> States:
        """Made at the first look: a critic that starts as a copy of the model takes no hooks along."""
        if model not in self.states:
            self.states[model] = States(model.base_model)
        return self.states[model]

    def _encode(self, tokenizer: Any, asked: Completions) -> list[list[int]]:
        """What a reward model reads, as in its training: a closed chat, or text that ends with the end token."""
        if asked.are_chats:
            pairs = zip(asked.prompts, asked.completions, strict=True)
            template = tokenizer.chat_template or self.tokenizer.chat_template
            return [tokenizer.apply_chat_template(p + c, chat_template=template, return_dict=False) for p, c in pairs]
        if same_tokens(tokenizer, self.tokenizer):
            return [p + c for p, c in zip(asked.prompt_ids, asked.completion_ids, strict=True)]
        ends = [tokenizer.eos_token or "" if ended else "" for ended in asked.ended]
        return tokenizer([p + c + e for p, c, e in zip(asked.prompts, asked.completions, ends, strict=True)])[
            "input_ids"
        ]


def step_ends(tokenizer: Any, tokens: Sequence[int], separator: str) -> list[int]:
    """The index of the token that completes each step, which is the text between two separators, unless it is blank.

    A completion without text is one step, at its last token.
    """

    def written(count: int) -> int:
        return len(tokenizer.decode(tokens[:count], skip_special_tokens=True))

    ends, place = [], 0
    for step in tokenizer.decode(tokens, skip_special_tokens=True).split(separator):
        ends += [place + len(step)] if step.strip() else []
        place += len(step) + len(separator)
    counts = range(len(tokens) + 1)
    return [bisect.bisect_left(counts, end, key=written) - 1 for end in ends] or [len(tokens) - 1]


def same_tokens(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether two tokenizers mean the same by an id."""
    return one is other or one.get_vocab() == other.get_vocab()


def _ready(reward: Reward) -> Callable[..., Any] | nn.Module:
    """A reward model without dropout; a function as it is."""
    if not isinstance(reward, nn.Module):
        return reward
    labels = getattr(getattr(reward, "score", None), "out_features", reward.config.num_labels)
    if labels != 1:
        found, cure = f"a model with {labels} labels", "a model loaded with num_labels=1, or a function around it"
        raise ConfigError(Fault(f"reward.{_name(reward)}", found, "one label, the score", cure))
    return reward.eval()


def _name(reward: Any) -> str:
    if isinstance(reward, nn.Module):
        return str(getattr(reward.config, "_name_or_path", "") or type(reward).__name__).rstrip("/").split("/")[-1]
    return getattr(reward, "__name__", None) or getattr(
        getattr(reward, "func", reward), "__name__", type(reward).__name__
    )


def _unlike(names: list[str]) -> list[str]:
    """The names, numbered where they repeat."""
    return [name if names.count(name) == 1 else f"{name}_{index}" for index, name in enumerate(names)]


def _tokenizer_of(model: nn.Module, policy_tokenizer: Any) -> Any:
    """The tokenizer beside a reward model's weights; a model made in memory reads the policy's tokens."""
    path = getattr(model.config, "_name_or_path", "")
    tokenizer = AutoTokenizer.from_pretrained(path) if path else policy_tokenizer
    if not tokenizer("reward")["input_ids"]:  # what a folder without one gives
        expected = "the tokenizer that the model was trained with, beside its weights"
        raise ConfigError(Fault("reward.model.path", f"{path} has no tokenizer", expected))
    return tokenizer


def _awaited(answers: list[Any]) -> list[Any]:
    """The answers, those of async functions awaited side by side."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*(answer for answer in answers if inspect.isawaitable(answer)))

    late = iter(asyncio.run(gather())) if any(map(inspect.isawaitable, answers)) else iter(())
    return [next(late) if inspect.isawaitable(answer) else answer for answer in answers]


def _to_values(name: str, answer: Any) -> list[Any]:
    """What a reward gave, as numbers and lists of Python's: it may be a tensor or an array, or hold some."""
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(answer, Iterable):
        raise ConfigError(Fault(f"reward.{name}", repr(answer), "a list with a reward for each completion"))
    return [value.tolist() if hasattr(value, "tolist") else value for value in answer]


def _is_finite(value: Any) -> bool:
    if value is None:
        return True
    numbers = value if isinstance(value, list) else [value]
    return all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
