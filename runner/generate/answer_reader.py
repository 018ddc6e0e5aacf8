"""Rows with known answers -> what a model thinks of them, in one pass without any sampling.

Letters at the end of a tensor's name are its shape: B rows, T tokens, V words of the vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from runner.dataset.form import answer_columns
from runner.generate.padding import group_alike, join_media_inputs, pad, split_by_tokens
from runner.generate.sampler import evaluating
from runner.io.turns import Row
from runner.model.encoding import encode_prompt, encode_row, shared_length
from runner.reward.reading import as_if_alone

TOKENS_PER_BATCH = 4096  # with padding
# Of the logits [T, V] and labels [T] of an answer makes what is kept of them.
KeepLogits: TypeAlias = Callable[[Tensor, Tensor], object]


@dataclass
class AnswerReading:
    """Log-probabilities of the answers of rows, an item for each row."""

    labels: list[list[int]]
    log_probs: list[list[float]]
    kept: dict[str, list[object]] = field(default_factory=dict)  # what each function made of logits


@dataclass
class AnswerReader:
    """A model that reads rows with known answers.

    A text that is too long loses its end, and with it tokens of the answer, or all of them.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int | None = None  # tokens of a text, with the prompt
    batch_size: int | None = None  # texts at once
    # Called with the number of texts that were read.
    on_progress: Callable[[int], object] = lambda count: None

    def read(
        self, rows: Sequence[Row], keep: Mapping[str, KeepLogits] | None = None
    ) -> AnswerReading:
        """Log-probabilities of the tokens of each answer, and what the functions ``keep`` make."""
        functions = keep or {}
        texts = []
        starts = []
        labels_by_row = []
        for row in rows:
            ids, start = to_ids(self.tokenizer, row)
            texts.append(ids)
            starts.append(start)
            labels_by_row.append(ids[start : self.max_length])
        reading = AnswerReading(labels_by_row, log_probs=[[] for _ in rows])
        for name in functions:
            reading.kept[name] = [None] * len(rows)
        for index, logits_TV in self.read_logits(texts):
            labels = reading.labels[index]
            # A token is predicted from the one before it.
            first = starts[index] - 1
            logits_TV = logits_TV[first : first + len(labels)].float()
            labels_T = torch.tensor(labels, device=logits_TV.device, dtype=torch.long)
            logprobs_T1 = logits_TV.log_softmax(-1).gather(-1, labels_T[:, None])
            reading.log_probs[index] = logprobs_T1[:, 0].tolist()
            for name, function in functions.items():
                reading.kept[name][index] = function(logits_TV, labels_T)
        return reading

    def score(self, rows: Sequence[Row]) -> list[float]:
        """The score of each row by a model with one score per text, read as in its training."""
        texts = []
        for row in rows:
            ids, _ = to_ids(self.tokenizer, row)
            texts.append(ids)
        scores = [0.0] * len(rows)
        for index, logits in self.read_logits(texts):
            scores[index] = logits[0].item()
        return scores

    @torch.no_grad()
    def read_logits(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Tensor]]:
        """Number and logits of each text with tokens; texts of like length are read together.

        Logits of a learnt prompt are left out.
        """
        cut_texts = [ids[: self.max_length] for ids in texts]
        for rows in self._split(texts, cut_texts):
            padded = [cut_texts[row] for row in rows]
            ids_BT, mask_BT = pad(padded, self.model.device)
            whole_texts = [texts[row] for row in rows]
            media_inputs = join_media_inputs(whole_texts, self.model.device, "right")
            with evaluating(self.model), as_if_alone(self.model, ids_BT, mask_BT) as ids_BT:
                logits = self.model(input_ids=ids_BT, attention_mask=mask_BT, **media_inputs).logits
            if logits.ndim == 3:
                logits = logits[:, -ids_BT.shape[1] :]
            yield from zip(rows, logits, strict=True)
            self.on_progress(len(rows))

    def _split(
        self, texts: Sequence[Sequence[int]], cut_texts: Sequence[Sequence[int]]
    ) -> Iterator[list[int]]:
        """The numbers of the texts of each pass."""
        lengths = [len(ids) for ids in cut_texts]
        for alike in group_alike(texts):
            with_tokens = [row for row in alike if lengths[row]]
            for group in split_by_tokens(with_tokens, lengths, TOKENS_PER_BATCH):
                size = self.batch_size or len(group)
                for start in range(0, len(group), size):
                    yield group[start : start + size]


def to_ids(tokenizer: PreTrainedTokenizerBase, row: Row) -> tuple[list[int], int]:
    """The tokens of a row, closed as TRL does it in training, and where its answer begins.

    All tokens of a text but the first, which nothing predicts, count as its answer.
    """
    (ids,) = encode_row(tokenizer, row, answer_columns(row)).texts
    if "prompt" not in row:
        return ids, 1
    prompt_ids = encode_prompt(tokenizer, row["prompt"], row)
    # A token that joins prompt and answer belongs to the answer.
    return ids, max(1, shared_length(prompt_ids, ids))
