"""Rows and prompts as token ids, without any limit, token ids as text, and the tokens at which a model stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.io.turns import template_arguments, turns_for, with_images

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

Row = Mapping[str, Any]

LONGEST_TEXT = 12  # tokens that may share characters, before what is no text at all is shown as that


@dataclass(frozen=True)
class EncodedRow:
    """The token ids of a row of the dataset: ``prompts`` as generation opens them, and the whole texts."""

    prompts: list[list[int]]
    texts: list[list[int]]

    @property
    def length(self) -> int:
        return max(map(len, self.texts), default=0)


class TokenIds(list[int]):
    """The token ids of a text, with what a model takes beside them of its images, by name: pixels and their sizes."""

    pixels: Mapping[str, Tensor] | None = None


def processor_of(tokenizer: PreTrainedTokenizerBase | ProcessorMixin) -> Any:
    """The processor that a tokenizer came with, of a model that sees; else the tokenizer itself."""
    return getattr(tokenizer, "processor", tokenizer)


def tokenizer_of(processor: PreTrainedTokenizerBase | ProcessorMixin) -> PreTrainedTokenizerBase:
    """The tokenizer of a processor, or the tokenizer itself: what a trainer was given to process rows with."""
    return getattr(processor, "tokenizer", processor)


def stop_ids(model: nn.Module) -> list[int]:
    """The tokens that stop a model's generation; none of a model that only scores."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | list[Any], row: Row) -> list[int]:
    """The token ids of a prompt, a conversation opened for the answer with the tools of its row."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return write(tokenizer, prompt, row, add_generation_prompt=True)


def write_prompt(tokenizer: PreTrainedTokenizerBase, row: Row) -> str:
    """The text of a row's prompt as ``encode_prompt`` takes it, without the begin token that the tokenizer adds."""
    text: str = write(tokenizer, row["prompt"], row, tokenize=False, add_generation_prompt=True)
    adds_bos = tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
    return text.removeprefix(tokenizer.bos_token) if adds_bos else text


def encode_row(tokenizer: PreTrainedTokenizerBase, row: Row, answers: Iterable[str]) -> EncodedRow:
    """A row as the tokenizer's own template writes it, which is how generation will; ``answers`` are columns."""
    prompt, sides = row.get("prompt"), [row[name] for name in answers]
    if any(isinstance(side, str) for side in sides):
        end = tokenizer.eos_token or ""
        texts = [f"{prompt or ''}{side.removesuffix(end)}{end}" for side in sides]
        return EncodedRow([], [tokenizer(text)["input_ids"] for text in texts])
    opened, whole = _conversations(row, answers)
    prompts = [encode_prompt(tokenizer, turns, row) for turns in opened]
    return EncodedRow(prompts, [write(tokenizer, turns, row) for turns in whole])


def render_row(tokenizer: PreTrainedTokenizerBase, row: Row, answers: Iterable[str]) -> str:
    """All that the template writes for a row of conversations; of one that it refuses nothing."""
    opened, whole = _conversations(row, answers)
    try:
        texts = [write(tokenizer, turns, row, tokenize=False, add_generation_prompt=True) for turns in opened]
        return "".join([*texts, *(write(tokenizer, turns, row, tokenize=False) for turns in whole)])
    except MemoryError:
        raise
    except Exception:  # a template computes, and can fail in any way; whoever tokenizes the row says so
        return ""


def _conversations(row: Row, answers: Iterable[str]) -> tuple[list[Any], list[Any]]:
    prompt, sides = row.get("prompt"), [row[name] for name in answers]
    opened = [prompt] if prompt else [turns[:-1] for turns in sides if turns[-1]["role"] == "assistant" and turns[1:]]
    return opened, [[*(prompt or ()), *turns] for turns in sides]


def write(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Any], row: Row, **how: bool) -> Any:
    """Turns, as the template takes them, written with the arguments and images of a row: token ids, or else a text."""
    processor, arguments = processor_of(tokenizer), how | template_arguments(row)
    turns = turns_for(processor, turns)
    if processor is tokenizer:
        return tokenizer.apply_chat_template(turns, return_dict=False, **arguments)
    turns = with_images(turns, row.get("images") or ())
    if how.get("tokenize") is False:
        return processor.apply_chat_template(turns, **arguments)
    found = processor.apply_chat_template([turns], **arguments, tokenize=True, return_dict=True, return_tensors="pt")
    ids = TokenIds(found.pop("input_ids")[0].tolist())
    ids.pixels = {name: each for name, each in found.items() if name != "attention_mask"} if row.get("images") else None
    return ids


def to_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text of each token; where several share one character, the last of them has it."""
    texts, waiting = [], []
    for index, token in enumerate(ids):
        waiting.append(token)
        before = ids[max(0, index - len(waiting)) : index - len(waiting) + 1]
        text = decode(tokenizer, [*before, *waiting])[len(decode(tokenizer, before)) :]
        unfinished = text.endswith("\ufffd") and len(waiting) < LONGEST_TEXT and index + 1 < len(ids)
        texts.append("" if unfinished else text)
        if not unfinished:
            waiting = []
    return texts


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of token ids as they are, special tokens too."""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) if ids else ""
