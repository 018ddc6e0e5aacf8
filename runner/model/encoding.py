"""Rows of a dataset as token ids, without any limit, and the tokens at which a model stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_TEXT = 12  # tokens that may share characters, before what is no text at all is shown as that


@dataclass(frozen=True)
class Spelling:
    """A row of the dataset, spelt without any limit: ``prompts`` as generation opens them, and the whole texts."""

    prompts: list[list[int]]
    texts: list[list[int]]

    @property
    def length(self) -> int:
        return max(map(len, self.texts), default=0)


def stop_ids(model: Any) -> list[int]:
    """The tokens that stop a model's generation; none of a model that only scores."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def spell_prompt(tokenizer: Any, prompt: Any, row: Mapping[str, Any]) -> list[int]:
    """The token ids of a prompt, a conversation opened for the answer with the tools of its row."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return _spell(tokenizer, prompt, row, add_generation_prompt=True)


def spell_row(tokenizer: Any, row: Mapping[str, Any]) -> Spelling:
    """A row of the dataset as the tokenizer's own template spells it, which is how generation will."""
    turns = row.get("messages")
    if turns:
        answered = turns[-1]["role"] == "assistant" and len(turns) > 1
        opened = [spell_prompt(tokenizer, turns[:-1], row)] if answered else []
        return Spelling(opened, [_spell(tokenizer, turns, row)])
    prompt, names = row.get("prompt", ""), ("completion", "chosen", "rejected", "text")
    answers = [row[name] for name in names if row.get(name) is not None]
    if isinstance(prompt, str):
        end = tokenizer.eos_token or ""
        return Spelling([], [tokenizer(f"{prompt}{answer.removesuffix(end)}{end}")["input_ids"] for answer in answers])
    return Spelling([spell_prompt(tokenizer, prompt, row)], [_spell(tokenizer, prompt + each, row) for each in answers])


def _spell(tokenizer: Any, turns: list[Any], row: Mapping[str, Any], **how: Any) -> list[int]:
    tools = row.get("tools")
    if isinstance(tools, str):
        import json

        tools = json.loads(tools)
    return list(tokenizer.apply_chat_template(turns, tools=tools or None, return_dict=False, **how))


def to_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token; where several share one character, the last of them has it."""
    texts, waiting = [], []
    for place, token in enumerate(ids):
        waiting.append(token)
        before = ids[max(0, place - len(waiting)) : place - len(waiting) + 1]
        text = decode(tokenizer, [*before, *waiting])[len(decode(tokenizer, before)) :]
        unfinished = text.endswith("\ufffd") and len(waiting) < LONGEST_TEXT and place + 1 < len(ids)
        texts.append("" if unfinished else text)
        if not unfinished:
            waiting = []
    return texts


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of token ids as they are, special tokens too."""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) if ids else ""
