"""Completions -> the scores of a reward model: the same for every trainer and command.

Letters at the end of a tensor's name are its shape: B rows, T tokens, H hidden.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer
from trl.models import prepare_deepspeed

from runner.errors import ConfigError, Fault
from runner.generate.completion import Completion
from runner.generate.padding import pad, split_by_tokens
from runner.io.turns import turns_for
from runner.reward.answer import Prompt, check_answer
from runner.reward.panel import RewardTracker
from runner.reward.reading import (
    as_if_alone,
    explain_length,
    last_hidden_states,
    padding_of,
    place_of_score,
    score_states,
    searches_last,
)

# With padding, in one pass of a reward model where nothing else is asked for.
TOKENS_PER_REWARD_PASS = 8192
Autocast: TypeAlias = Callable[[], AbstractContextManager[object]]


@dataclass(eq=False)
class ModelReward:
    """A reward model in the form of a function, for trainers that would write texts of their own.

    TRL's trainers show a model a text without the begin and the end token that it was trained with.
    This one reads what PPO and ``evaluate`` read.
    """

    name: str
    model: nn.Module
    policy_tokenizer: PreTrainedTokenizerBase
    tracker: RewardTracker
    template_arguments: Mapping[str, object] = field(default_factory=dict)
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
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Prompt],
        completion_ids: Sequence[Sequence[int]],
        **_: object,
    ) -> list[float]:
        """The score of each completion."""
        answers = []
        for row, (prompt, completion, ids) in enumerate(
            zip(prompts, completions, completion_ids, strict=True)
        ):
            answers.append(self._to_completion(row, prompt, completion, ids))
        texts = encode_for_scores(
            self.tokenizer, self.policy_tokenizer, answers, self.template_arguments
        )
        scores: list[float] = score_texts(self.model, texts, TOKENS_PER_REWARD_PASS, self.autocast)
        check_answer(f"reward.{self.name}", scores, prompts)
        self.tracker.record(self.name, scores)
        columns = {
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids,
        }
        self.tracker.scored.add(self.name, [*scores], columns)
        return scores

    def _to_completion(
        self, row: int, prompt: Prompt, completion: Prompt, ids: Sequence[int]
    ) -> Completion:
        """A completion, as a trainer gives it to rewards, in the form of the sampler."""
        end = self.policy_tokenizer.eos_token_id
        token_ids = list(ids)
        finish = "length"
        if end in token_ids:
            token_ids = token_ids[: token_ids.index(end) + 1]  # some trainers give padding, too
            finish = "stop"
        if isinstance(completion, str):
            prompt_ids = self.policy_tokenizer(prompt)["input_ids"]
            return Completion(row, 0, prompt, prompt_ids, completion, token_ids, finish)
        return Completion(row, 0, prompt, [], "", token_ids, finish, turns=completion)


def encode_for_scores(
    tokenizer: PreTrainedTokenizerBase,
    policy_tokenizer: PreTrainedTokenizerBase,
    completions: Sequence[Completion],
    template_arguments: Mapping[str, object],
) -> list[list[int]]:
    """The tokens of prompts and completions for a reward model with this tokenizer.

    The end token is there only where the policy wrote it.
    """
    texts: list[Any] = []
    if not isinstance(completions[0].prompt, str):
        writer = tokenizer if tokenizer.chat_template else policy_tokenizer
        for completion in completions:
            turns = turns_for(writer, [*completion.prompt, *completion.answer])
            ids: list[int] = tokenizer.apply_chat_template(
                turns,
                **{
                    **template_arguments,
                    "chat_template": writer.chat_template,
                    "return_dict": False,
                },
            )
            texts.append(ids)
        return texts
    if same_tokens(tokenizer, policy_tokenizer):
        return [[*completion.prompt_ids, *completion.token_ids] for completion in completions]
    for completion in completions:
        text = f"{completion.prompt}{completion.text}"
        if completion.finish == "stop":
            text += tokenizer.eos_token or ""
        texts.append(text)
    encoded: list[list[int]] = tokenizer(texts)["input_ids"]
    return encoded


@torch.no_grad()
def score_texts(
    model: nn.Module, texts: Sequence[Sequence[int]], budget: int, autocast: Autocast
) -> list[float]:
    """The score of each text, in float32 however the backbone reads.

    ``budget`` is the number of padded tokens in a pass.
    """
    if isinstance(model, PeftModel):
        model = model.get_base_model()  # whose layers keep their adapters
    lengths = [len(ids) for ids in texts]
    groups = split_by_tokens(range(len(texts)), lengths, budget)
    parts = []
    with explain_length(model, texts):
        for group in groups:
            group_texts = [texts[row] for row in group]
            parts.append(_score_group(model, group_texts, autocast))
    # Only now it waits for the device.
    scores = torch.cat(parts).tolist()
    score_by_row = dict(zip(chain(*groups), scores, strict=True))
    return [score_by_row[row] for row in range(len(texts))]


def _score_group(model: nn.Module, texts: Sequence[Sequence[int]], autocast: Autocast) -> Tensor:
    """The scores [B] of texts in one pass, on the device."""
    device = next(model.parameters()).device
    ids_BT, mask_BT = pad(texts, device)
    if not searches_last(model):
        # Nobody knows which part is the head, so that all of it reads as its weights are.
        with as_if_alone(model, ids_BT, mask_BT) as padded_BT:
            logits = model(input_ids=padded_BT, attention_mask=mask_BT).logits
            return logits[:, 0].float()
    padding = padding_of(model)
    places = torch.tensor([place_of_score(ids, padding) for ids in texts])
    positions_B = torch.arange(len(texts)) * ids_BT.shape[1] + places
    with autocast():
        states_BH = last_hidden_states(
            model.base_model, ids_BT, positions_B.to(device), attention_mask=mask_BT
        )
    return score_states(model.score, states_BH).float()


def same_tokens(tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """True where two tokenizers mean the same by an id."""
    if tokenizer is other:
        return True
    is_same: bool = tokenizer.get_vocab() == other.get_vocab()
    return is_same


def load_tokenizer_of(
    model: nn.Module, policy_tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """The tokenizer beside a reward model's weights; without a folder it is the policy's."""
    path = getattr(model.config, "_name_or_path", "")
    tokenizer = AutoTokenizer.from_pretrained(path) if path else policy_tokenizer
    # A folder without a tokenizer gives one that knows no text.
    if not tokenizer("reward")["input_ids"]:
        raise ConfigError(
            Fault(
                where="reward.model.path",
                found=f"{path} has no tokenizer",
                expected="the tokenizer that the model was trained with, beside its weights",
            )
        )
    return tokenizer
