"""The style of a prompt: a turn of a chat, or a text that is continued as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.io.files import read_rows
from runner.run import Run
from runner.run.history import SAMPLE_FILES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def is_chat_model(run: Run | None, tokenizer: PreTrainedTokenizerBase, style: str | None) -> bool:
    """True where a prompt is a turn of a chat, as it was in the samples of the run.

    ``style`` is chat or text where that was typed.
    """
    if style is not None:
        return style == "chat"
    if not tokenizer.chat_template:
        return False
    if run:
        for name in ("samples.jsonl", *SAMPLE_FILES):
            # The first row, because those of a training may hold the text of a prompt's tokens.
            for sample in read_rows(run.folder / name, most=1):
                return not isinstance(sample.get("prompt"), str)
    return True
