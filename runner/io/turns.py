"""Prompts and completions, each a text or a conversation: a list of turns with ``role`` and ``content``."""

from collections.abc import Mapping, Sequence
from typing import Any

Turns = Sequence[Mapping[str, Any]]
Completion = str | list[dict[str, Any]]  # a text, or a conversation that ends with the answer
Values = Sequence[Any]  # of a column of the rows


def text_of(side: str | Turns) -> str:
    """The text of a prompt or a completion, of a conversation that of its last turn.

    >>> text_of("2"), text_of([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}])
    ('2', '2')
    """
    return side if isinstance(side, str) else side[-1]["content"]
