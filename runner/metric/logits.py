"""Reductions of the logits of an answer for a metric: ``preprocess`` of a metric, called for each row.

The logits [T, V] and labels [T] are of the answer's tokens alone: ``logits[t]`` predict ``labels[t]``.
"""

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from runner.errors import ConfigError, DataError, Fault, fault


def likeliest(logits: Tensor, labels: Tensor) -> Tensor:
    """The likeliest token [T] in each place, instead of all the logits."""
    return logits.argmax(-1)


def log_odds(
    logits: Tensor, labels: Tensor, tokenizer: PreTrainedTokenizerBase, positive: str = "Yes", negative: str = "No"
) -> float:
    """The log-odds that an answer begins with ``positive`` and not with ``negative``: one score per row."""
    words = {word: tokenizer(word, add_special_tokens=False)["input_ids"] for word in (positive, negative)}
    if empty := [word for word, ids in words.items() if not ids]:
        raise ConfigError(Fault("metric.<name>.preprocess", f"{empty[0]!r} has no token", "a word"))
    first, second = words[positive][0], words[negative][0]  # of each as it stands at the start of an answer
    if first == second:
        raise ConfigError(fault("metric.same_token", positive=positive, negative=negative))
    if not len(logits):
        raise DataError(Fault("metric", "an answer without tokens", "an answer that begins with one of the two"))
    return float(logits[0, first] - logits[0, second])
