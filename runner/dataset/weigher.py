"""The weights of the tokens of a row, by the rules of the ``weight`` group."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from runner.dataset.form import FORMS, Cells, Row, answer_columns
from runner.dataset.weigh import Messages, Rule, Span, columns_of
from runner.errors import ConfigError, DataError, Fault
from runner.io.turns import template_arguments

WEIGHTS = "token_weights"
PAIR = tuple(f"{side}_weights" for side in FORMS["preference"].answers)
# Private use characters, which no text holds and no template treats specially.
STAND_IN = "\ue0fe\ue0ff\ue0fe"


@dataclass(frozen=True)
class MessagePlace:
    """The letters of a message in a rendered sequence, and the end of the mark that closes it."""

    start: int
    end: int
    mark_end: int


@dataclass(frozen=True)
class RenderedSequence:
    """A sequence as text, its messages as they stand in it, and their places."""

    text: str
    messages: list[Row]
    places: list[MessagePlace]
    is_chat: bool


@dataclass(frozen=True)
class MessageWeight:
    """The weight of a message, and of spans of its letters."""

    base: float
    spans: Sequence[Span] = ()

    @property
    def weights(self) -> list[float]:
        """All weights in it."""
        weights = [self.base]
        for _, _, weight in self.spans:
            weights.append(weight)
        return weights


@dataclass(frozen=True)
class Weigher:
    """Gives tokens their weights by these rules, row for row."""

    rules: Sequence[Rule]
    tokenizer: PreTrainedTokenizerBase

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            name = type(self.tokenizer).__name__
            fault = Fault(
                where="weight",
                found=f"{name}, which does not report the positions of its tokens",
                expected="a fast tokenizer",
                fix="=none",
            )
            raise ConfigError(fault)

    def __call__(self, row: Cells) -> dict[str, tuple[list[int], list[float]]]:
        """The token ids of each sequence of a row, and their weights; nothing is cut off yet.

        The sequences are ``token_weights``; of a preference, ``chosen_weights`` and
        ``rejected_weights``, each with the prompt. Raises DataError where a message has no place in
        what the template writes, or a rule gives no weight.
        """
        return {name: self._weigh(rendered, row) for name, rendered in self._render_row(row)}

    def find_idle_rules(self, rows: Iterable[Cells]) -> list[Rule]:
        """The rules that weigh all messages of some rows alike, with all that is in them."""
        weights_by_rule: list[set[float]] = [set() for _ in self.rules]
        for row in rows:
            for _, rendered in self._render_row(row):
                for rule, weights in zip(self.rules, weights_by_rule, strict=True):
                    for entry in _apply(rule, rendered.messages, row):
                        weights.update(entry.weights)
            if all(len(weights) > 1 for weights in weights_by_rule):
                break
        idle = []
        for rule, weights in zip(self.rules, weights_by_rule, strict=True):
            if len(weights) < 2:
                idle.append(rule)
        return idle

    # --- Rendering ------------------------------------------------------------------------------
    def _render_row(self, row: Cells) -> Iterator[tuple[str, RenderedSequence]]:
        """Each sequence of a row, with the name of its weights."""
        answers = answer_columns(row)
        prompt = row.get("prompt")
        arguments = template_arguments(row)
        for column in answers:
            name = WEIGHTS if len(answers) == 1 else f"{column}_weights"
            side = row[column]
            if isinstance(side, str):
                yield name, self._render_text(prompt or "", side)
            else:
                turns = [*(prompt or ()), *side]
                yield name, self._render(turns, arguments)

    def _render_text(self, prompt: str, answer: str) -> RenderedSequence:
        """Plain text as a message of the user and one of the assistant; an empty one is none."""
        end = self.tokenizer.eos_token or ""
        if not answer.endswith(end):
            answer += end  # as TRL does it
        messages = []
        places = []
        start = 0
        for role, content in (("user", prompt), ("assistant", answer)):
            end_of_content = start + len(content)
            if content:
                messages.append({"role": role, "content": content})
                places.append(MessagePlace(start, end_of_content, end_of_content))
            start = end_of_content
        return RenderedSequence(prompt + answer, messages, places, is_chat=False)

    def _render(self, turns: Messages, arguments: Cells) -> RenderedSequence:
        """A conversation as the template writes it.

        The place of a message is what changes if another stands for it: a template is a program,
        which nothing but its output tells apart. Raises DataError for a template in which that is
        more than one place.
        """
        text = self._write(turns, arguments)
        messages = []
        places = []
        begin = 0
        for index, turn in enumerate(turns):
            stand_in = {"role": turn["role"], "content": STAND_IN}
            for key in ("name", "tool_call_id"):
                if turn.get(key) is not None:
                    stand_in[key] = turn[key]
            others = [*turns[:index], stand_in, *turns[index + 1 :]]
            try:
                other_text = self._write(others, arguments)
                start, end = _changed(text, other_text, begin)
            except (TemplateError, ValueError) as error:
                fault = Fault(
                    where=f"messages[{index}]",
                    found=str(error),
                    expected="a template in which each message has its own place",
                    fix="weight=none",
                )
                raise DataError(fault) from error
            # An answer starts right after its opening, whatever the template then writes by itself.
            if turn["role"] == "assistant" and self._opening in text[begin:start]:
                opening_start = text.rfind(self._opening, begin, start)
                start = opening_start + len(self._opening)
            begin = end + self._mark(text[end:])
            messages.append({**turn, "content": text[start:end]})
            places.append(MessagePlace(start, end, begin))
        return RenderedSequence(text, messages, places, is_chat=True)

    def _write(self, turns: Messages, arguments: Cells) -> str:
        """The text that the template makes of a conversation."""
        text: str = self.tokenizer.apply_chat_template(list(turns), tokenize=False, **arguments)
        return text

    @functools.cached_property
    def _opening(self) -> str:
        """The text that the template writes before an answer that is yet to come.

        Empty where it does not show.
        """
        question = [{"role": "user", "content": "?"}]
        asked = self._write(question, {})
        waiting = self._write(question, {"add_generation_prompt": True})
        if not waiting.startswith(asked):
            return ""
        return waiting.removeprefix(asked)

    @functools.cached_property
    def _marks(self) -> list[str]:
        """The tokens that may close a message."""
        added = self.tokenizer.added_tokens_decoder.values()
        special = [token.content for token in added if token.special]
        return [*self.tokenizer.all_special_tokens, *special]

    def _mark(self, rest: str) -> int:
        """The length of the mark that follows a message.

        Blanks before it count, and an end token that closes it.
        """
        blank = len(rest) - len(rest.lstrip())
        marks = [mark for mark in self._marks if rest.startswith(mark, blank)]
        if not marks:
            return 0
        longest = max(map(len, marks))
        length = blank + longest
        end = self.tokenizer.eos_token or ""
        if rest.startswith(end, length):
            length += len(end)
        return length

    # --- Weighing -------------------------------------------------------------------------------
    def _weigh(self, rendered: RenderedSequence, row: Cells) -> tuple[list[int], list[float]]:
        """The token ids of a sequence, and the weight of each: the product of all rules."""
        text = rendered.text
        encoded = self.tokenizer(
            text, add_special_tokens=not rendered.is_chat, return_offsets_mapping=True
        )
        weights = [1.0] * len(encoded["input_ids"])
        solid = [not letter.isspace() for letter in text]
        for rule in self.rules:
            entries = _apply(rule, rendered.messages, row)
            # What no message holds weighs as little as the lightest message.
            bases = [entry.base for entry in entries]
            least = float(min(bases, default=1.0))
            letters = _weigh_letters(solid, rendered.places, entries, least)
            for index, (start, end) in enumerate(encoded["offset_mapping"]):
                weight = least
                if end > start:
                    # The greatest of a token's letters decides.
                    _, _, weight = max(letters[start:end])
                weights[index] *= weight
        return encoded["input_ids"], weights


def _weigh_letters(
    solid: list[bool],
    places: Sequence[MessagePlace],
    entries: Sequence[MessageWeight],
    least: float,
) -> list[tuple[bool, bool, float]]:
    """The weights of the letters of a sequence by one rule, each behind what ranks the letter.

    Letters in a span rank highest and blanks lowest, whatever they weigh: first comes True for a
    letter that is no blank (``solid``), then True for one in a span. ``least`` is the weight of all
    that is between messages.
    """
    weights = np.full(len(solid), least)
    in_span = np.zeros(len(solid), bool)
    for place, entry in zip(places, entries, strict=True):
        weights[place.start : place.mark_end] = entry.base
        for first, last, weight in entry.spans:
            end = min(place.start + last, place.end)
            span = slice(place.start + first, end)
            weights[span] = weight
            in_span[span] = True
    return list(zip(solid, in_span.tolist(), weights.tolist(), strict=True))


def _changed(text: str, other: str, begin: int) -> tuple[int, int]:
    """The start and the end in ``text`` of what ``other`` has a stand-in for.

    Raises ValueError where something else has changed too.
    """
    if text == other:  # the template has no place for such a message
        return begin, begin
    if STAND_IN not in other:
        raise ValueError("the template leaves this message out")
    _, _, tail = other.rpartition(STAND_IN)
    end = len(text) - len(tail)
    is_same_around = text.endswith(tail) and other.startswith(text[:begin])
    if end < begin or not is_same_around:
        raise ValueError(
            "the template writes the surrounding text differently, depending on this message"
        )
    for index in range(begin, end):
        if text[index] != other[index]:
            return index, end
    return end, end


def _apply(rule: Rule, messages: Messages, row: Cells) -> list[MessageWeight]:
    """The weights that a rule gives to messages; raises DataError for what is no weight."""
    columns = {}
    for name in columns_of(rule):
        columns[name] = row if name == "row" else row[name]
    weighed = rule(messages=messages, **columns)
    if len(weighed) != len(messages):
        fault = Fault(
            where="weight",
            found=f"{len(weighed)} entries for {len(messages)} messages",
            expected="one for each",
        )
        raise DataError(fault)
    entries = []
    for weight in weighed:
        if isinstance(weight, tuple | list):
            entry = MessageWeight(*weight)
        else:
            entry = MessageWeight(weight)
        entries.append(entry)
        for number in entry.weights:
            if not _is_weight(number):
                fault = Fault(
                    where="weight",
                    found=repr(number),
                    expected="a number of at least 0",
                    fix="another weight in these rows, or weight=none",
                )
                raise DataError(fault)
    return entries


def _is_weight(number: object) -> bool:
    """True for a finite number of at least 0."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    return 0 <= number < float("inf")
