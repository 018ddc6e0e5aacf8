"""Completions -> the scores of a reward model: the same number, whichever trainer or command asks it.

Letters at the end of a tensor's name are its shape: B rows, T tokens, H hidden.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer
from trl.models import prepare_deepspeed

from runner.errors import ConfigError, fault
from runner.generate.batch import pad, split_by_tokens
from runner.generate.completion import Completion
from runner.io.turns import turns_for
from runner.reward.panel import RewardTracker, check_answer
from runner.reward.reading import (
    as_if_alone,
    explain_length,
    last_hidden_states,
    padding_of,
    place_of_score,
    score_states,
    searches_last,
)

TOKENS_PER_REWARD_PASS = 8192  # padded, that a reward model reads at once where nobody says otherwise
Autocast = Callable[[], AbstractContextManager[Any]]


@dataclass(eq=False)
class ModelReward:
    """A reward model in the form of a function, for trainers that would write texts of their own for a model.

    TRL's show it a text without the begin and the end token that it was trained with. This one reads what PPO and
    ``evaluate`` read.
    """

    name: str
    model: nn.Module
    policy_tokenizer: PreTrainedTokenizerBase
    tracker: RewardTracker
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    autocast: Autocast = nullcontext

    def __post_init__(self) -> None:
        self.__name__ = self.name
        self.tokenizer = load_tokenizer_of(self.model, self.policy_tokenizer)
        self.tracker.earned[self.name] = []
        self.model.eval()

    def place(self, trainer: Trainer) -> None:
        """Put the model where the trainer computes."""
        if trainer.is_deepspeed_enabled:
            self.model = prepare_deepspeed(self.model, trainer.accelerator)
        elif not getattr(self.model, "is_quantized", False):
            self.model.to(trainer.accelerator.device)
        self.autocast = trainer.accelerator.autocast

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: object
    ) -> list[float]:
        """The score of each completion."""
        end = self.policy_tokenizer.eos_token_id
        made = []
        for row, (prompt, completion, ids) in enumerate(zip(prompts, completions, completion_ids, strict=True)):
            is_whole = end in ids
            token_ids = [*ids[: ids.index(end) + 1]] if is_whole else [*ids]  # some give the padding, too
            finish = "stop" if is_whole else "length"
            if isinstance(prompt, str):
                prompt_ids = self.policy_tokenizer(prompt)["input_ids"]
                made.append(Completion(row, 0, prompt, prompt_ids, completion, token_ids, finish))
            else:
                made.append(Completion(row, 0, prompt, [], "", token_ids, finish, turns=completion))
        rows = encode_for_scores(self.tokenizer, self.policy_tokenizer, made, self.template_arguments)
        scores = score_texts(self.model, rows, TOKENS_PER_REWARD_PASS, self.autocast)
        check_answer(f"reward.{self.name}", scores, prompts)
        self.tracker.record(self.name, scores)
        return scores


def encode_for_scores(
    tokenizer: PreTrainedTokenizerBase,
    policy_tokenizer: PreTrainedTokenizerBase,
    completions: Sequence[Completion],
    template_arguments: Mapping[str, Any],
) -> list[list[int]]:
    """The tokens that a reward model with this tokenizer reads of prompts and completions, with the end if it came."""
    if not isinstance(completions[0].prompt, str):
        template = tokenizer.chat_template or policy_tokenizer.chat_template
        how = {**template_arguments, "chat_template": template, "return_dict": False}
        writer = tokenizer if tokenizer.chat_template else policy_tokenizer
        chats = [turns_for(writer, [*each.prompt, *each.answer]) for each in completions]
        return [tokenizer.apply_chat_template(turns, **how) for turns in chats]
    if same_tokens(tokenizer, policy_tokenizer):
        return [[*each.prompt_ids, *each.token_ids] for each in completions]
    ends = [(tokenizer.eos_token or "") * (each.finish == "stop") for each in completions]
    texts = [f"{each.prompt}{each.text}{end}" for each, end in zip(completions, ends, strict=True)]
    return tokenizer(texts)["input_ids"]


@torch.no_grad()
def score_texts(model: nn.Module, rows: Sequence[Sequence[int]], budget: int, autocast: Autocast) -> list[float]:
    """The score of each text, in float32 however the backbone reads; ``budget`` is of padded tokens in a pass."""
    model = model.get_base_model() if isinstance(model, PeftModel) else model  # its layers keep their adapters
    device = next(model.parameters()).device
    parts = []
    groups = split_by_tokens(range(len(rows)), list(map(len, rows)), budget)
    with explain_length(model, rows):
        for group in groups:
            ids_BT, mask_BT = pad([rows[row] for row in group], device)
            if searches_last(model):
                places = [place_of_score(rows[row], padding_of(model)) for row in group]
                places_B = torch.arange(len(group)) * ids_BT.shape[1] + torch.tensor(places)
                with autocast():
                    trunk = model.base_model
                    states_BH = last_hidden_states(trunk, ids_BT, places_B.to(device), attention_mask=mask_BT)
                scores_B = score_states(model.score, states_BH)
            else:  # nobody knows which part is the head, so all of it reads as its weights are
                with as_if_alone(model, ids_BT, mask_BT) as padded_BT:
                    scores_B = model(input_ids=padded_BT, attention_mask=mask_BT).logits[:, 0]
            parts.append(scores_B.float())
    scores = dict(zip(chain(*groups), torch.cat(parts).tolist(), strict=True))  # only now waits for the device
    return [scores[row] for row in range(len(rows))]


def same_tokens(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """True where two tokenizers mean the same by an id."""
    return one is other or one.get_vocab() == other.get_vocab()


def load_tokenizer_of(model: nn.Module, policy_tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer beside a reward model's weights; a model made in memory reads the policy's tokens."""
    path = getattr(model.config, "_name_or_path", "")
    tokenizer = AutoTokenizer.from_pretrained(path) if path else policy_tokenizer
    if not tokenizer("reward")["input_ids"]:  # what a folder without one gives
        raise ConfigError(fault("ppo.no_tokenizer", path=path))
    return tokenizer
