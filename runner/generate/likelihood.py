"""Rows with known answers -> what a model thinks of them, in one pass without any sampling.

Letters at the end of a tensor's name are its shape: B rows, T tokens, V words of the vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from runner.dataset.form import answer_columns
from runner.generate.batch import group_alike, join_pixels, pad, split_by_tokens
from runner.generate.rows import Row
from runner.generate.sampler import evaluating
from runner.model.encoding import encode_prompt, encode_row
from runner.reward.reading import as_if_alone

TOKENS_PER_BATCH = 4096  # padding too


@dataclass
class AnswerReading:
    """Log-probabilities of the answers of rows, an entry for each; ``kept`` is what each function made of logits."""

    labels: list[list[int]]
    log_probs: list[list[float]]
    kept: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class AnswerReader:
    """A model that reads rows with known answers, of which what is too long loses its end, or all of its tokens."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int | None = None  # tokens of a text, with the prompt
    batch_size: int | None = None  # texts at once
    on_progress: Callable[[int], object] = lambda count: None  # is called with the number of those read

    def read(self, rows: Sequence[Row], keep: Mapping[str, Callable[..., Any]] | None = None) -> AnswerReading:
        """Log-probabilities of the tokens of each answer, and what ``keep`` makes of its logits [T, V], labels [T]."""
        keep, encoded = keep or {}, [to_ids(self.tokenizer, row) for row in rows]
        reading = AnswerReading([ids[start : self.max_length] for ids, start in encoded], [[] for _ in rows])
        reading.kept = {name: [None] * len(rows) for name in keep}
        for row, logits_TV in self.read_logits([ids for ids, _ in encoded]):
            start, labels = encoded[row][1], reading.labels[row]
            logits_TV = logits_TV[start - 1 : start - 1 + len(labels)].float()
            labels_T = torch.tensor(labels, device=logits_TV.device, dtype=torch.long)
            reading.log_probs[row] = logits_TV.log_softmax(-1).gather(-1, labels_T[:, None])[:, 0].tolist()
            for name, function in keep.items():
                reading.kept[name][row] = function(logits_TV, labels_T)
        return reading

    def score(self, rows: Sequence[Row]) -> list[float]:
        """The score that a model with one score per text gives to each row, read as in its training."""
        encoded = [to_ids(self.tokenizer, row)[0] for row in rows]
        scores = {row: logits[0].item() for row, logits in self.read_logits(encoded)}
        return [scores.get(row, 0.0) for row in range(len(rows))]

    @torch.no_grad()
    def read_logits(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Tensor]]:
        """Number and logits of each text with tokens, but those of a learnt prompt; like lengths are read together."""
        whole, texts = texts, [ids[: self.max_length] for ids in texts]
        lengths = list(map(len, texts))
        alike = [[row for row in rows if texts[row]] for rows in group_alike(whole)]
        for group in (each for rows in alike for each in split_by_tokens(rows, lengths, TOKENS_PER_BATCH)):
            size = self.batch_size or len(group)
            for rows in (group[start : start + size] for start in range(0, len(group), size)):
                padded = [texts[row] for row in rows]
                ids_BT, mask_BT = pad(padded, self.model.device)
                pixels = join_pixels([whole[row] for row in rows], self.model.device, "right")
                with evaluating(self.model), as_if_alone(self.model, ids_BT, mask_BT) as ids_BT:
                    logits = self.model(input_ids=ids_BT, attention_mask=mask_BT, **pixels).logits
                yield from zip(rows, logits[:, -ids_BT.shape[1] :] if logits.ndim == 3 else logits, strict=True)
                self.on_progress(len(rows))


def to_ids(tokenizer: PreTrainedTokenizerBase, row: Row) -> tuple[list[int], int]:
    """The tokens of a row, closed as TRL does it in training, and where its answer begins, of a text at the second."""
    (whole,) = encode_row(tokenizer, row, answer_columns(row)).texts
    if "prompt" not in row:
        return whole, 1
    before = encode_prompt(tokenizer, row["prompt"], row)
    # A token that joins the two belongs to the answer.
    return whole, max(1, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False))))
