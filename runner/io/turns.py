"""Prompts and completions, each a text or a conversation: a list of turns with ``role`` and ``content``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Turns = Sequence[Mapping[str, Any]]
Completion = str | list[dict[str, Any]]  # a text, or a conversation that ends with the answer
Values = Sequence[Any]  # of a column of the rows
TEMPLATE_ARGUMENTS = "chat_template_kwargs"  # a column of rows, as TRL calls it


def text_of(side: str | Turns) -> str:
    """The text of a prompt or a completion, of a conversation that of its last turn."""
    return side if isinstance(side, str) else side[-1]["content"]


def template_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which a template writes a row's conversation beside its turns: tools, and those of its own."""
    tools = row.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    return {"tools": tools or None} | (row.get(TEMPLATE_ARGUMENTS) or {})
