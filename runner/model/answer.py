"""Rows with known answers -> what a model thinks of them, in one pass without any sampling.

What the figures are good for is decided by metrics. Letters at the end of a tensor's name are its shape: B rows,
T tokens, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch

Row = Mapping[str, Any]
BUDGET = 4096  # tokens of a batch, padding too


@dataclass
class Reading:
    """What a model says of the answers of rows, an entry for each row; ``kept`` is what each function made of it."""

    labels: list[list[int]]
    log_probs: list[list[float]]
    kept: dict[str, list[Any]] = field(default_factory=dict)


@torch.no_grad()
def read_answers(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    *,
    keep: Mapping[str, Callable[..., Any]] | None = None,
    max_length: int | None = None,
) -> Reading:
    """The log-probability of each token of each answer, and what the functions in ``keep`` make of its logits.

    The functions are called for each row with logits [T, V] and labels [T] of the answer alone. Rows are cut after
    ``max_length`` tokens, so that an answer may lose its end or, behind a long prompt, all of its tokens.
    """
    encoded = [to_ids(tokenizer, row) for row in rows]
    encoded = [(ids[: max_length or len(ids)], start) for ids, start in encoded]
    reading = Reading([ids[start:] for ids, start in encoded], [[] for _ in rows])
    reading.kept = {name: [None] * len(rows) for name in keep or {}}
    with _evaluating(model):
        for group in _groups([len(ids) for ids, _ in encoded]):
            logits_BTV = _forward(model, tokenizer, [encoded[row][0] for row in group])
            for index, row in enumerate(group):
                ids, start = encoded[row]
                logits_TV = logits_BTV[index, start - 1 : len(ids) - 1].float()
                labels_T = torch.tensor(ids[start:], device=logits_TV.device, dtype=torch.long)
                said_T = logits_TV.log_softmax(-1).gather(-1, labels_T[:, None])[:, 0]
                reading.log_probs[row] = said_T.tolist()
                for name, function in (keep or {}).items():
                    reading.kept[name][row] = function(logits_TV, labels_T)
    return reading


@torch.no_grad()
def score_answers(model: Any, tokenizer: Any, rows: Sequence[Row], *, max_length: int | None = None) -> list[float]:
    """The score that a model with one score per text gives to each row, read as in its training."""
    encoded = [to_ids(tokenizer, row)[0][: max_length or None] for row in rows]
    scores = [0.0] * len(rows)
    with _evaluating(model):
        for group in _groups(list(map(len, encoded))):
            given_B = _forward(model, tokenizer, [encoded[row] for row in group])[:, 0].float()
            for row, score in zip(group, given_B.tolist(), strict=True):
                scores[row] = score
    return scores


def to_ids(tokenizer: Any, row: Row) -> tuple[list[int], int]:
    """The tokens of a row, and where its answer begins: behind the prompt, or behind the first token of a text.

    Text is closed by the end token, as TRL does in training; a chat by its template.
    """
    end = tokenizer.eos_token or ""
    if "text" in row:
        text = row["text"]
        return _tokens(tokenizer, text if text.endswith(end) else text + end), 1
    prompt, answer = row["prompt"], row["completion"]
    if isinstance(prompt, str):
        before = _tokens(tokenizer, prompt)
        whole = _tokens(tokenizer, prompt + (answer if end and answer.endswith(end) else answer + end))
    else:
        how = {"tools": row.get("tools"), "return_dict": False}
        before = list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **how))
        whole = list(tokenizer.apply_chat_template([*prompt, *answer], **how))
    # A token that joins the two belongs to the answer.
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False)))
    return whole, max(1, shared)


def _tokens(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text)["input_ids"])


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The rows that have tokens, of like length together, in batches of at most BUDGET padded tokens."""
    group: list[int] = []
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row]):
        if group and (len(group) + 1) * lengths[group[0]] > BUDGET:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _forward(model: Any, tokenizer: Any, rows: Sequence[Sequence[int]]) -> Any:
    """The logits of rows padded on the right; what a learnt prompt puts before the tokens is left out."""
    width, pad = max(map(len, rows)), tokenizer.pad_token_id or 0
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=model.device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=model.device)
    logits = model(input_ids=ids, attention_mask=mask).logits
    return logits[:, -width:] if logits.ndim == 3 else logits


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """The model without dropout inside, and as it was behind."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
