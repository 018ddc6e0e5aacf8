"""Reductions of the logits of an answer for a metric: ``preprocess`` of a metric, called for each row.

The logits [T, V] and labels [T] are of the answer's tokens alone: ``logits[t]`` predict ``labels[t]``. The metrics
that use them are in ``binary`` and ``likelihood``.
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
    ids: dict[str, list[int]] = {}
    for word in (positive, negative):  # as it stands at the start of an answer
        ids[word] = tokenizer(word, add_special_tokens=False)["input_ids"]
        if not ids[word]:
            raise ConfigError(Fault("metric.<name>.preprocess", f"{word!r} has no token", "a word"))
    first, second = ids[positive][0], ids[negative][0]
    if first == second:
        raise ConfigError(fault("metric.same_token", positive=positive, negative=negative))
    if not len(logits):
        raise DataError(Fault("metric", "an answer without tokens", "an answer that begins with one of the two"))
    return float(logits[0, first] - logits[0, second])
