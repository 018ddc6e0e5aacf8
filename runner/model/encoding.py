"""Rows and prompts as token ids, token ids as text, and the tokens at which a model stops.

Nothing is cut off here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.io.turns import Row, Turns, WriteRow, template_arguments, turns_for
from runner.schema.literal import to_list
from runner.schema.modality import fill_parts, list_media

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

# Tokens that may share characters, before bytes that are no text at all are shown as such.
LONGEST_TEXT = 12
UNFINISHED = "\ufffd"  # what a tokenizer writes for a part of a character


@dataclass(frozen=True)
class EncodedRow:
    """The token ids of a row of the dataset.

    ``prompts`` are as generation opens them, ``texts`` are whole.
    """

    prompts: list[list[int]]
    texts: list[list[int]]

    @property
    def length(self) -> int:
        """The number of tokens in the longest text."""
        return max(map(len, self.texts), default=0)


def shared_length(first: Iterable[object], second: Iterable[object]) -> int:
    """The number of ids, or of letters, with which both begin."""
    length = 0
    for one_id, other_id in zip(first, second, strict=False):
        if one_id != other_id:
            break
        length += 1
    return length


class TokenIds(list[int]):
    """The token ids of a text, with what a model takes of its media beside them.

    That is, by name, what the processor makes of them: of images, pixels and their sizes.
    """

    media_inputs: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class RowConversations:
    """The conversations of a row: those that wait for an answer, and the whole ones."""

    opened: list[Turns]
    whole: list[Turns]


# --- Tokenizers and models ----------------------------------------------------------------------


def processor_of(tokenizer: PreTrainedTokenizerBase | ProcessorMixin) -> Any:
    """The processor that a tokenizer came with, of a model that sees; else the tokenizer itself."""
    return getattr(tokenizer, "processor", tokenizer)


def tokenizer_of(processor: PreTrainedTokenizerBase | ProcessorMixin) -> PreTrainedTokenizerBase:
    """The tokenizer of a processor, or the tokenizer itself.

    A trainer may have been given either to process rows with.
    """
    return getattr(processor, "tokenizer", processor)


def stop_ids(model: nn.Module) -> list[int]:
    """The tokens that stop a model's generation; none of a model that only scores."""
    settings = getattr(model, "generation_config", None)
    ends = getattr(settings, "eos_token_id", None)
    if ends is None:
        return []
    return to_list(ends)


# --- Rows as token ids --------------------------------------------------------------------------


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | Turns, row: Row) -> list[int]:
    """The token ids of a prompt, a conversation opened for the answer with the tools of its row."""
    ids: list[int]
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    else:
        ids = write(tokenizer, prompt, row, add_generation_prompt=True)
    return ids


def write_prompt(tokenizer: PreTrainedTokenizerBase, row: Row) -> str:
    """The text of a row's prompt as ``encode_prompt`` takes it.

    It lacks the begin token that the tokenizer adds by itself.
    """
    text: str = write(tokenizer, row["prompt"], row, tokenize=False, add_generation_prompt=True)
    empty_text_ids = tokenizer("")["input_ids"]
    adds_bos = empty_text_ids[:1] == [tokenizer.bos_token_id]
    if adds_bos:
        return text.removeprefix(tokenizer.bos_token)
    return text


def encode_row(tokenizer: PreTrainedTokenizerBase, row: Row, answers: Iterable[str]) -> EncodedRow:
    """A row as the tokenizer's own template writes it, which is how generation will.

    ``answers`` are the columns of the answers.
    """
    columns = list(answers)
    sides = [row[column] for column in columns]
    if any(isinstance(side, str) for side in sides):
        prompt = row.get("prompt") or ""
        end = tokenizer.eos_token or ""
        sequences = []
        for side in sides:
            answer = side.removesuffix(end)  # an answer may bring the end token itself
            text = f"{prompt}{answer}{end}"
            sequences.append(tokenizer(text)["input_ids"])
        return EncodedRow([], sequences)
    conversations = _conversations(row, columns)
    prompts = [encode_prompt(tokenizer, turns, row) for turns in conversations.opened]
    sequences = [write(tokenizer, turns, row) for turns in conversations.whole]
    return EncodedRow(prompts, sequences)


def render_row(write_turns: WriteRow, row: Row, answers: Iterable[str]) -> str:
    """All that a template writes for a row of conversations; of one that it refuses nothing."""
    conversations = _conversations(row, answers)
    texts = []
    try:
        for turns in conversations.opened:
            texts.append(write_turns(turns, row, True))
        for turns in conversations.whole:
            texts.append(write_turns(turns, row, False))
    except MemoryError:
        raise
    except Exception:
        # A template computes, and can fail in any way; that is reported where the row is tokenized.
        return ""
    return "".join(texts)


def _conversations(row: Row, answers: Iterable[str]) -> RowConversations:
    """The conversations of a row.

    Without a prompt, those before a last turn of the assistant are opened.
    """
    prompt = row.get("prompt")
    sides = [row[column] for column in answers]
    opened = []
    if prompt:
        opened.append(prompt)
    else:
        for turns in sides:
            if len(turns) > 1 and turns[-1]["role"] == "assistant":
                opened.append(turns[:-1])
    first_turns = prompt or ()
    whole: list[Turns] = [[*first_turns, *turns] for turns in sides]
    return RowConversations(opened, whole)


def write(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[Any], row: Row, **template_settings: bool
) -> Any:
    """Turns written with the template, and with the arguments and media of a row.

    Returns token ids, or a text with ``tokenize=False``.
    """
    processor = processor_of(tokenizer)
    arguments = template_settings | template_arguments(row)
    turns = turns_for(processor, turns)
    if processor is tokenizer:
        return tokenizer.apply_chat_template(turns, return_dict=False, **arguments)
    media = list_media(row)
    turns = fill_parts(turns, media)
    if template_settings.get("tokenize") is False:
        return processor.apply_chat_template(turns, **arguments)
    inputs = processor.apply_chat_template(
        [turns], **arguments, tokenize=True, return_dict=True, return_tensors="pt"
    )
    ids = TokenIds(inputs.pop("input_ids")[0].tolist())
    inputs.pop("attention_mask", None)
    if media:
        ids.media_inputs = dict(inputs.items())
    return ids


# --- Token ids as text --------------------------------------------------------------------------


def to_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text of each token; where several share one character, the last of them has it."""
    pieces = TokenTexts(tokenizer)
    texts = [pieces.add(token) for token in ids]
    if texts:
        texts[-1] += pieces.rest()
    return texts


class TokenTexts:
    """The texts of tokens as they come, which together are the text of all of them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.last: list[int] = []  # the token before those that wait
        self.waiting: list[int] = []  # tokens whose text is not written yet

    def add(self, token: int) -> str:
        """The text that a further token completes; empty in the middle of a character."""
        self.waiting.append(token)
        text = self._text()
        if text.endswith(UNFINISHED) and len(self.waiting) < LONGEST_TEXT:
            return ""
        self.last = [token]
        self.waiting = []
        return text

    def rest(self) -> str:
        """The text of the tokens that still wait where no more will come."""
        return self._text() if self.waiting else ""

    def _text(self) -> str:
        """The text of the tokens that wait."""
        # Tokenizers may write a token otherwise at the beginning of a text than behind another.
        text = decode(self.tokenizer, [*self.last, *self.waiting])
        text_before = decode(self.tokenizer, self.last)
        return text[len(text_before) :]


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of token ids as they are, special tokens too."""
    if not ids:
        return ""
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
