"""The place at which a model that gives one answer to a text reads it: the same alone, in a batch, and however padded.

transformers' classes look for the last token that is not the padding token of the model's config; where the config has
none, they take the last one. So does every reader here, and whoever loads the model with transformers gets the same
scores. Where texts end with that token (GPT-2, Pythia and Llama 3 pad with their end token) the token before it is
read, in the training, too. What a batch is padded with must be that token, or the search would end in the padding.

Letters at the end of a tensor's name are its shape: B rows, T tokens, N states, H hidden.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from runner.errors import ConfigError, Fault
from runner.io.temporary import temporarily

REWARD_KEY = "reward_key"  # the attribute of a model with the dotted key of what it was loaded for, such as reward.mine


def padding_of(model: nn.Module) -> int | None:
    """The padding token of a model's config; None where it has none, or one that the vocabulary does not hold."""
    config = model.config.get_text_config()
    pad, words = config.pad_token_id, getattr(config, "vocab_size", None)
    return None if pad is None or pad < 0 or (words and pad >= words) else pad


def place_of_score(ids: Sequence[int], pad: int | None) -> int:
    """The index of the token at which a text's score is read: the last that is no padding, else the first.

    >>> place_of_score([5, 6, 0], pad=0), place_of_score([5, 6, 0], pad=None), place_of_score([0, 0], pad=0)
    (1, 2, 0)
    """
    places = range(len(ids) - 1, -1, -1)
    return len(ids) - 1 if pad is None else next((place for place in places if ids[place] != pad), 0)


def positions_of(model: nn.Module) -> int | None:
    """The number of tokens that a model has positions for; None where its config does not say.

    Those of RoBERTa and its like begin behind the padding token's.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int):
        return None
    for name, part in model.named_modules():
        is_table = name.endswith("position_embeddings") and isinstance(part, nn.Embedding)
        if is_table and part.padding_idx is not None:
            return positions - part.padding_idx - 1
    return positions


@contextlib.contextmanager
def explain_length(model: nn.Module, rows: Sequence[Sequence[int]]) -> Iterator[None]:
    """Turn an error of a model that reads rows longer than its positions into a ConfigError.

    Asked only after it failed, since many models read beyond the length that they were trained with.
    """
    try:
        yield
    except (IndexError, RuntimeError) as error:
        longest = max(map(len, rows))
        positions = positions_of(model)
        if positions is None or longest <= positions:
            raise
        path = model.config.get_text_config()._name_or_path
        found = f"{path} holds {positions} positions, and a text has {longest} tokens"
        expected = "texts that it can hold"
        where = getattr(model, REWARD_KEY, "reward")
        classifier = f"reward=classifier reward.classifier.path={path}"
        if where.startswith("reward."):
            classifier = f"{where}._target_=runner.reward.outcome.Classifier"
        fix = f"shorter completions, or {classifier}, which reads their end"
        raise ConfigError(Fault(where, found, expected, fix)) from error


def searches_last(model: nn.Module) -> bool:
    """True for a class of transformers with a head over each token, of which its search picks one."""
    names = [(each.__module__, each.__name__) for each in type(model).__mro__]
    is_known = any(at.startswith("transformers.") and name.endswith("ForSequenceClassification") for at, name in names)
    return is_known and hasattr(model, "score") and not model.config.is_encoder_decoder


@contextlib.contextmanager
def as_if_alone(model: nn.Module, ids_BT: Tensor, mask_BT: Tensor) -> Iterator[Tensor]:
    """The ids [B, T] of texts padded on the right, so that inside a model reads each as it reads it alone."""
    inner = getattr(model, "module", model)  # of one that DeepSpeed has
    pad = padding_of(inner)
    if pad is None:  # any token will do with which no text ends
        ends = {*ids_BT.gather(1, mask_BT.sum(1, keepdim=True) - 1).flatten().tolist()}
        pad = next(token for token in range(len(ends) + 1) if token not in ends)
    with temporarily(inner.config.get_text_config(), pad_token_id=pad):
        yield torch.where(mask_BT.bool(), ids_BT, pad)


def last_hidden_states(trunk: nn.Module, input_ids_BT: Tensor, positions_N: Tensor, **kwargs: Any) -> Tensor:
    """The last hidden states [N, H] of a model without its head, at flat positions of rows padded on the right."""
    states_BTH = trunk(input_ids=input_ids_BT, use_cache=False, **kwargs).last_hidden_state
    return states_BTH.flatten(0, 1).index_select(0, positions_N)


def score_states(head: nn.Module, states_NH: Tensor) -> Tensor:
    """The one label of each state [N], in float32 whatever surrounds it: bfloat16 would round it to 8 bits."""
    weights = {name: weight.float() for name, weight in head.named_parameters() if weight.is_floating_point()}
    with torch.autocast(states_NH.device.type, enabled=False):
        return functional_call(head, weights, states_NH.float()).squeeze(-1).float()
