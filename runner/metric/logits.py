"""Reductions of the logits of an answer: ``preprocess`` of a metric, called for each row.

The logits [T, V] and labels [T] are of the answer's tokens alone: ``logits[t]`` predict
``labels[t]``.
"""

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from runner.errors import ConfigError, DataError, Fault


def likeliest(logits: Tensor, labels: Tensor) -> Tensor:
    """The likeliest token [T] in each place, instead of all the logits."""
    return logits.argmax(-1)


def log_odds(
    logits: Tensor,
    labels: Tensor,
    tokenizer: PreTrainedTokenizerBase,
    positive: str = "Yes",
    negative: str = "No",
) -> float:
    """The log-odds that an answer begins with ``positive`` rather than with ``negative``."""
    first = _first_token(tokenizer, positive)
    second = _first_token(tokenizer, negative)
    if first == second:
        raise ConfigError(
            Fault(
                where="metric.<name>.preprocess",
                found=f"{positive!r} and {negative!r} begin with the same token",
                expected="two words that begin with different tokens",
            )
        )
    if not len(logits):
        raise DataError(
            Fault(
                where="metric",
                found="an answer without tokens",
                expected="an answer that begins with one of the two",
            )
        )
    return float(logits[0, first] - logits[0, second])


def _first_token(tokenizer: PreTrainedTokenizerBase, word: str) -> int:
    """The first token of a word as it stands at the start of an answer."""
    ids: list[int] = tokenizer(word, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ConfigError(
            Fault(
                where="metric.<name>.preprocess",
                found=f"{word!r} has no token",
                expected="a word",
            )
        )
    return ids[0]
