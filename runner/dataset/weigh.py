"""Weights of tokens in the loss (``training.objective``): the rules of the ``weight`` group, and row -> weights."""

import functools
import inspect
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, Json
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl import pack_dataset

from runner.config.build import arguments_of
from runner.dataset.form import FORMS, answer_columns, is_conversation
from runner.dataset.load import Rows, cache_key
from runner.dataset.step import Cells
from runner.errors import ConfigError, DataError, fault
from runner.io.turns import template_arguments
from runner.schema import upstream
from runner.schema.text import short_text

log = logging.getLogger(__name__)

Span = tuple[int, int, float]
Entry = float | tuple[float, Sequence[Span]]
Rule = Callable[..., Sequence[Entry]]
Turns = Sequence[Cells]

WEIGH_VERSION = 2  # of the key under which weighed rows are cached: count up when weights come out otherwise
WEIGHTS = "token_weights"
PAIR = tuple(f"{side}_weights" for side in FORMS["preference"].answers)
SEEN_OF_STREAM = 100  # rows of a stream in which weights of turns are looked for
SEEN_FOR_RULES = 1000  # rows in which each rule of weights should find something
STAND_IN = "\ue0fe\ue0ff\ue0fe"  # private use characters, which no text holds and no template treats specially


def answers(messages: Turns, weight: float = 1.0, rest: float = 0.0) -> list[Entry]:
    """The assistant's messages, and ``rest`` for all else."""
    return [weight if turn["role"] == "assistant" else rest for turn in messages]


def last_round(messages: Turns, weight: float = 1.0, rest: float = 0.0) -> list[Entry]:
    """The assistant's messages after the last of the user, and ``rest`` for all else."""
    last = max((index for index, turn in enumerate(messages) if turn["role"] == "user"), default=-1)
    return [weight if turn["role"] == "assistant" and index > last else rest for index, turn in enumerate(messages)]


def pattern(
    messages: Turns, pattern: str, weight: float = 2.0, rest: float = 1.0, roles: Sequence[str] = ("assistant",)
) -> list[Entry]:
    """The matches of a regular expression in the messages of these roles, and ``rest`` for all else."""
    search = re.compile(pattern)
    return [
        (rest, [(*found.span(), weight) for found in search.finditer(turn["content"])] if turn["role"] in roles else [])
        for turn in messages
    ]


def by_column(messages: Turns, row: Mapping[str, Any], column: str = "weight") -> list[Entry]:
    """A number in a column of the rows, for all of the row."""
    if column not in row:
        raise DataError(fault("dataset.no_weight_column", column=column, there=", ".join(row)))
    return [row[column]] * len(messages)


def by_message(messages: Turns, key: str = "weight", default: float = 1.0) -> list[Entry]:
    """A number that messages carry under ``key``, as in ``{"role": ..., "content": ..., "weight": 0}``.

    Without one the assistant's weigh ``default``, and those of others nothing.
    """
    usual = [default if turn["role"] == "assistant" else 0.0 for turn in messages]
    return [weight if turn.get(key) is None else turn[key] for turn, weight in zip(messages, usual, strict=True)]


def carries_weights(rows: Rows) -> bool:
    """True where a turn of the rows has a weight, as OpenAI's files for fine-tuning may give it to each answer."""
    if not isinstance(rows, Dataset):
        head = itertools.islice(rows, SEEN_OF_STREAM)
        turns = (turn for row in head for cell in row.values() if is_conversation(cell) for turn in cell)
        return any(turn.get("weight") is not None for turn in turns)
    plain = rows.with_format("arrow")
    for name, kind in rows.features.items():
        if isinstance(getattr(kind, "feature", None), Json):  # else its turns have a role and a content alone
            texts = pc.list_flatten(plain[name][:]).cast(pa.string())
            likely = texts.filter(pc.match_substring(texts, '"weight":'))
            if any(json.loads(text).get("weight") is not None for text in likely.to_pylist()):
                return True
    return False


def columns_of(rule: Rule) -> frozenset[str]:
    """The columns of the rows that a rule asks for: its arguments without a value, ``row`` being all of them."""
    given, every = inspect.signature(rule).parameters.values(), {"row"} if arguments_of(rule) is None else set[str]()
    needed = {each.name for each in given if each.default is each.empty and each.kind is not each.VAR_KEYWORD}
    return frozenset(needed - {"messages"} | every)


@dataclass(frozen=True)
class RenderedSequence:
    """A sequence as text, its messages as they stand in it, and where they do: start, end, and end of the mark."""

    text: str
    messages: list[dict[str, Any]]
    spans: list[tuple[int, int, int]]
    is_chat: bool


@dataclass(frozen=True)
class Weigher:
    """Gives tokens their weights by these rules, row for row."""

    rules: Sequence[Rule]
    tokenizer: PreTrainedTokenizerBase

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise ConfigError(fault("dataset.slow_tokenizer", kind=type(self.tokenizer).__name__))

    def __call__(self, row: Cells) -> dict[str, tuple[list[int], list[float]]]:
        """The token ids of each sequence of a row, and the weight of each token; nothing is cut off yet.

        The sequences are ``token_weights``; of a preference, ``chosen_weights`` and ``rejected_weights``, each with the
        prompt. Raises DataError where a message has no place in what the template writes, or a rule gives no weight.
        """
        return {name: self._weigh(rendered, row) for name, rendered in self._render_row(row)}

    def find_idle_rules(self, rows: Iterable[Cells]) -> list[Rule]:
        """The rules that weigh all messages of some rows alike, with all that is in them."""
        given: list[set[float]] = [set() for _ in self.rules]
        for row in rows:
            for _, rendered in self._render_row(row):
                for rule, weights in zip(self.rules, given, strict=True):
                    for base, spans in _entries(rule, rendered.messages, row):
                        weights |= {base, *(weight for _, _, weight in spans)}
            if all(len(weights) > 1 for weights in given):
                break
        return [rule for rule, weights in zip(self.rules, given, strict=True) if len(weights) < 2]

    def _render_row(self, row: Cells) -> Iterator[tuple[str, RenderedSequence]]:
        end, how = self.tokenizer.eos_token or "", template_arguments(row)
        answers, prompt = answer_columns(row), row.get("prompt")
        for column in answers:
            side, name = row[column], WEIGHTS if len(answers) == 1 else f"{column}_weights"
            if isinstance(side, str):  # behind plain text, TRL puts the end token
                text = side if side.endswith(end) else side + end
                turns = [("user", prompt or "", 0), ("assistant", text, len(prompt or ""))]
                turns = [turn for turn in turns if turn[1]]
                messages = [{"role": role, "content": content} for role, content, _ in turns]
                spans = [(at, at + len(content), at + len(content)) for _, content, at in turns]
                rendered = RenderedSequence((prompt or "") + text, messages, spans, is_chat=False)
            else:
                rendered = self._render([*(prompt or ()), *side], how)
            yield name, rendered

    def _render(self, turns: Turns, how: Cells) -> RenderedSequence:
        """A conversation as the template writes it, each message found by what changes if it says something else."""
        text, spans, begin = self._write(turns, how), [], 0
        for index, turn in enumerate(turns):
            other = {key: turn[key] for key in ("role", "name", "tool_call_id") if turn.get(key) is not None}
            other["content"] = STAND_IN
            try:
                start, end = _changed(text, self._write([*turns[:index], other, *turns[index + 1 :]], how), begin)
            except (TemplateError, ValueError) as error:
                raise DataError(fault("dataset.message_without_place", index=index, error=error)) from error
            # An answer starts right after its opening, whatever the template then writes by itself.
            if turn["role"] == "assistant" and self._opening in text[begin:start]:
                start = text.rfind(self._opening, begin, start) + len(self._opening)
            begin = end + self._mark(text[end:])
            spans.append((start, end, begin))
        messages = [dict(turn) | {"content": text[a:b]} for turn, (a, b, _) in zip(turns, spans, strict=True)]
        return RenderedSequence(text, messages, spans, is_chat=True)

    def _write(self, turns: Turns, how: Cells) -> str:
        return self.tokenizer.apply_chat_template(list(turns), tokenize=False, **how)

    @functools.cached_property
    def _opening(self) -> str:
        """The text that the template writes before an answer that is yet to come; empty where it does not show."""
        question = [{"role": "user", "content": "?"}]
        opening = self._write(question, {})
        waiting = self.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
        return waiting.removeprefix(opening) if waiting.startswith(opening) else ""

    @functools.cached_property
    def _marks(self) -> list[str]:
        added = self.tokenizer.added_tokens_decoder.values()
        return [*self.tokenizer.all_special_tokens, *(token.content for token in added if token.special)]

    def _mark(self, rest: str) -> int:
        """The length of the mark that follows a message, with blanks before it and an end token that closes it."""
        blank, end = len(rest) - len(rest.lstrip()), self.tokenizer.eos_token or ""
        if not (found := [len(mark) for mark in self._marks if rest.startswith(mark, blank)]):
            return 0
        length = blank + max(found)
        return length + (len(end) if rest.startswith(end, length) else 0)

    def _weigh(self, rendered: RenderedSequence, row: Cells) -> tuple[list[int], list[float]]:
        encoded = self.tokenizer(rendered.text, add_special_tokens=not rendered.is_chat, return_offsets_mapping=True)
        weights = [1.0] * len(encoded["input_ids"])
        solid = [not letter.isspace() for letter in rendered.text]
        for rule in self.rules:
            entries = _entries(rule, rendered.messages, row)
            least = float(min((base for base, _ in entries), default=1.0))  # the weight of what no message holds
            own, in_span = np.full(len(solid), least), np.zeros(len(solid), bool)
            for (start, end, mark), (base, spans) in zip(rendered.spans, entries, strict=True):
                own[start:mark] = base
                for first, last, weight in spans:
                    part = slice(start + first, min(start + last, end))
                    own[part], in_span[part] = weight, True
            # Of the letters of a token the greatest decides: blanks come last, and those in a span first.
            letters = list(zip(solid, in_span.tolist(), own.tolist(), strict=True))
            for index, (a, b) in enumerate(encoded["offset_mapping"]):
                weights[index] *= max(letters[a:b])[2] if b > a else least
        return encoded["input_ids"], weights


def _changed(text: str, other: str, begin: int) -> tuple[int, int]:
    """The place in ``text`` of what ``other`` has a stand-in for; ValueError where something else has changed too."""
    if text == other:  # the template has no place for such a message
        return begin, begin
    if STAND_IN not in other:
        raise ValueError("the template leaves this message out")
    tail = other.rpartition(STAND_IN)[2]
    end = len(text) - len(tail)
    if end < begin or not text.endswith(tail) or not other.startswith(text[:begin]):
        raise ValueError("the template writes what is around it otherwise, depending on this message")
    return next((place for place in range(begin, end) if text[place] != other[place]), end), end


def _entries(rule: Rule, messages: Sequence[Cells], row: Cells) -> list[tuple[float, Sequence[Span]]]:
    given = rule(messages=messages, **{name: row if name == "row" else row[name] for name in columns_of(rule)})
    if len(given) != len(messages):
        raise DataError(fault("dataset.entries_of_rule", count=len(given), wanted=len(messages)))
    entries = [entry if isinstance(entry, tuple | list) else (entry, ()) for entry in given]
    for weight in (weight for base, spans in entries for weight in (base, *(span[2] for span in spans))):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
            raise DataError(fault("dataset.bad_weight", weight=weight))
    return entries


def weigh_rows(rows: Rows, weigher: Weigher, key: str, workers: int | None = None) -> Rows:
    """A trainer's rows with weights of tokens, but for those that teach nothing; ``key`` names the rules in a cache."""
    names = list(next(iter(rows)))
    kept = [name for name in names if name.endswith(("_ids", "_logps")) or name in ("label", "labels")]
    if not isinstance(rows, Dataset):
        return rows.map(lambda row: weigh_row(row, weigher)).filter(_teaches)
    tokenizer = weigher.tokenizer
    encoding = cache_key(tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, tokenizer.eos_token)
    made = cache_key(WEIGH_VERSION, rows._fingerprint, key, encoding)
    how = {"with_indices": True, "num_proc": workers, "new_fingerprint": made}
    weighed = rows.map(lambda row, index: weigh_row(row, weigher, index), desc="weights of tokens", **how)
    teaching = weighed.filter(_teaches, new_fingerprint=cache_key(made, "teaching")) if "labels" in names else weighed
    if lost := len(weighed) - len(teaching):
        log.warning("%d of %d rows left out: all that is trained of them weighs nothing", lost, len(weighed))
    if not len(teaching):
        raise DataError(fault("dataset.all_weighs_nothing", count=len(weighed)))
    return teaching.select_columns([*kept, *(name for name in weighed.column_names if name.endswith("_weights"))])


def warn_of_idle_rules(rows: Rows, weigher: Weigher) -> None:
    """Tell of each rule that makes no difference in the first rows, such as a pattern that nothing matches."""
    count = SEEN_FOR_RULES if isinstance(rows, Dataset) else SEEN_OF_STREAM
    for rule in weigher.find_idle_rules(itertools.islice(rows, count)):
        asked = rule if isinstance(rule, functools.partial) else functools.partial(rule)
        name = getattr(asked.func, "__name__", type(asked.func).__name__)
        settings = ", ".join(f"{key}={short_text(value)}" for key, value in asked.keywords.items())
        log.warning(
            "not used: the weights of %s(%s), which are alike in all rows looked at, at most %d", name, settings, count
        )


def _teaches(row: Cells) -> bool:
    return any(label != -100 for label in row.get("labels", [0]))


def weigh_row(row: Cells, weigher: Weigher, index: int | None = None) -> dict[str, list[Any]]:
    """Weights, and labels without what weighs nothing; raises DataError where the trainer's tokens are others."""
    new: dict[str, list[Any]] = {}
    try:
        for name, (ids, weights) in weigher(row).items():
            answer = "completion" if name == WEIGHTS else name.removesuffix("_weights")
            columns = ("input_ids",) if "input_ids" in row else ("prompt_ids", f"{answer}_ids")
            kept = [token for column in columns for token in row[column]]
            ends = slice(len(kept)), slice(len(ids) - len(kept), None)  # a trainer keeps the beginning, or the end
            if not (found := [weights[part] for part in ends if list(ids[part]) == kept]):
                raise DataError(fault("dataset.other_tokens"))
            new[name] = found[0]
    except DataError as error:
        where = "" if index is None else f"row {index} of the trainer, "
        raise DataError([replace(each, where=f"{where}{each.where}") for each in error.faults]) from error
    if "labels" in row:
        new["labels"] = [label if weight else -100 for label, weight in zip(row["labels"], new[WEIGHTS], strict=True)]
    return new


def rotate_weights(rows: Dataset, size: int) -> Dataset:
    """KTO's rows with the weights of the answers of others, which TRL pairs with each prompt within ``size`` rows."""

    def rotate(batch: Mapping[str, list]) -> dict[str, list]:
        pairs = [(weights, len(ids)) for weights, ids in zip(batch[WEIGHTS], batch["prompt_ids"], strict=True)]
        before, own = [weights[:start] for weights, start in pairs], [weights[start:] for weights, start in pairs]
        moved, ids = [own[-1], *own[:-1]], [batch["completion_ids"][-1], *batch["completion_ids"][:-1]]
        if ids != batch["KL_completion_ids"]:
            raise ConfigError(fault("dataset.other_pairs_of_kto"))
        return {f"KL_{WEIGHTS}": [left + right for left, right in zip(before, moved, strict=True)]}

    return rows.map(rotate, batched=True, batch_size=size)


def pack_rows(rows: Dataset, seed: int, *, seq_length: int, strategy: str, shuffle: bool) -> Dataset:
    """Weighed rows packed as TRL packs them, several to a sequence, with the weights beside the tokens."""
    packed = pack_dataset(rows.select_columns(["input_ids", "labels", WEIGHTS]), seq_length, strategy)
    return packed.shuffle(seed=seed) if shuffle else packed


class WeightCollator:
    """Adds weights to a collator's batch; what weighs nothing leaves the masks, so that means count what is trained."""

    def __init__(self, inner: Callable[[list[dict[str, Any]]], dict[str, Any]]):
        self.inner = inner
        self.from_end = getattr(inner, upstream.TRUNCATION_MODE, "keep_start") == "keep_end"

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self.inner(rows)
        if PAIR[0] in rows[0]:
            return batch | self._beside(batch, [row[name] for name in PAIR for row in rows])
        batch |= self._beside(batch, [row[WEIGHTS] for row in rows])
        if f"KL_{WEIGHTS}" in rows[0]:
            batch |= self._beside(batch, [row[f"KL_{WEIGHTS}"] for row in rows], "KL_")
        return batch

    def _beside(self, batch: Mapping[str, Tensor], weights: list[list[float]], prefix: str = "") -> dict[str, Tensor]:
        """The weights in the shape of the tokens, and the mask of the completions without what weighs nothing."""
        placed = torch.ones_like(batch[f"{prefix}input_ids"], dtype=torch.float32)
        if f"{prefix}attention_mask" not in batch:  # all sequences in one row, without padding
            flat = [weight for sequence in weights for weight in sequence]
            placed[0, : len(flat)] = torch.tensor(flat)
        else:
            for row, mask, sequence in zip(placed, batch[f"{prefix}attention_mask"].bool(), weights, strict=True):
                count = int(mask.sum())
                row[mask] = torch.tensor(sequence[len(sequence) - count :] if self.from_end else sequence[:count])
        new = {f"{prefix}{WEIGHTS}": placed}
        if (name := f"{prefix}completion_mask") in batch:
            new[name] = batch[name] * (placed != 0)
        return new
