"""The place at which a model that gives one answer to a text reads it.

It is the same for a text alone, in a batch, and however that is padded.

transformers' classes look for the last token that is not the padding token of the model's config;
where the config has none, they take the last one. So does every reader here, and whoever loads the
model with transformers gets the same scores. Where texts end with that token (GPT-2, Pythia and
Llama 3 pad with their end token) the token before it is read, in the training, too. What a batch is
padded with must be that token, or the search would end in the padding.

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

# The attribute of a model with the dotted key of what it was loaded for, such as reward.mine.
REWARD_KEY = "reward_key"


def padding_of(model: nn.Module) -> int | None:
    """The padding token of a model's config; None where it has none that the vocabulary holds."""
    config = model.config.get_text_config()
    token: int | None = config.pad_token_id
    words = getattr(config, "vocab_size", None)
    if token is None or token < 0 or (words and token >= words):
        return None
    return token


def place_of_score(ids: Sequence[int], pad: int | None) -> int:
    """The index of the token at which a text's score is read: the last one that is no padding.

    The first one where all are padding; the last one where nothing is (``pad`` None).

    >>> place_of_score([5, 6, 0], pad=0), place_of_score([5, 6, 0], pad=None)
    (1, 2)
    >>> place_of_score([0, 0], pad=0)
    0
    """
    if pad is None:
        return len(ids) - 1
    for index in range(len(ids) - 1, -1, -1):
        if ids[index] != pad:
            return index
    return 0


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
            return positions - int(part.padding_idx) - 1
    return positions


@contextlib.contextmanager
def explain_length(model: nn.Module, rows: Sequence[Sequence[int]]) -> Iterator[None]:
    """Turn an error of a model that reads rows longer than its positions into a ConfigError.

    Asked only after it failed, since many models read beyond the length that they were trained
    with.
    """
    try:
        yield
    except (IndexError, RuntimeError) as error:
        longest = max(map(len, rows))
        positions = positions_of(model)
        if positions is None or longest <= positions:
            raise
        path = model.config.get_text_config()._name_or_path
        where = getattr(model, REWARD_KEY, "reward")
        classifier = f"reward=classifier reward.classifier.path={path}"
        if where.startswith("reward."):
            classifier = f"{where}._target_=runner.reward.outcome.Classifier"
        raise ConfigError(
            Fault(
                where=where,
                found=f"{path} has {positions} positions, but a text has {longest} tokens",
                expected="texts that fit",
                fix=f"shorter completions, or {classifier}, which reads their end",
            )
        ) from error


def searches_last(model: nn.Module) -> bool:
    """True for a class of transformers with a head over each token, which searches for one."""
    for cls in type(model).__mro__:
        is_of_library = cls.__module__.startswith("transformers.")
        if is_of_library and cls.__name__.endswith("ForSequenceClassification"):
            return hasattr(model, "score") and not model.config.is_encoder_decoder
    return False


@contextlib.contextmanager
def as_if_alone(model: nn.Module, ids_BT: Tensor, mask_BT: Tensor) -> Iterator[Tensor]:
    """The ids [B, T] of texts padded on the right, with which the model reads each as if alone.

    That holds inside of the context.
    """
    inner = getattr(model, "module", model)  # of one that DeepSpeed has
    pad = padding_of(inner)
    if pad is None:
        # The lowest token with which no text ends.
        last_B1 = mask_BT.sum(1, keepdim=True) - 1
        end_B1 = ids_BT.gather(1, last_B1)
        ends = set(end_B1.flatten().tolist())
        pad = 0
        while pad in ends:
            pad += 1
    with temporarily(inner.config.get_text_config(), pad_token_id=pad):
        yield torch.where(mask_BT.bool(), ids_BT, pad)


def last_hidden_states(
    trunk: nn.Module, input_ids_BT: Tensor, positions_N: Tensor, **kwargs: Any
) -> Tensor:
    """The last hidden states [N, H] of a model without its head, at flat positions.

    Rows are padded on the right.
    """
    states_BTH = trunk(input_ids=input_ids_BT, use_cache=False, **kwargs).last_hidden_state
    return states_BTH.flatten(0, 1).index_select(0, positions_N)


def score_states(head: nn.Module, states_NH: Tensor) -> Tensor:
    """The one label of each state [N], in float32 whatever surrounds it.

    bfloat16 would round it to 8 bits.
    """
    weights = {}
    for name, weight in head.named_parameters():
        if weight.is_floating_point():
            weights[name] = weight.float()
    with torch.autocast(states_NH.device.type, enabled=False):
        return functional_call(head, weights, states_NH.float()).squeeze(-1).float()
