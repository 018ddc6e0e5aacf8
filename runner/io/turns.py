"""Prompts and completions, each a text or a conversation: a list of turns with ``role`` and ``content``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Turns = Sequence[Mapping[str, Any]]
Completion = str | list[dict[str, Any]]  # a text, or a conversation that ends with the answer
Values = Sequence[Any]  # of a column of the rows
TEMPLATE_ARGUMENTS = "chat_template_kwargs"  # a column of rows, as TRL calls it


def text_of(side: str | Turns) -> str:
    """The text of a prompt or a completion, of a conversation that of its last turn; what a tool says is no answer."""
    return side if isinstance(side, str) else "" if side[-1].get("role") == "tool" else side[-1]["content"]


def dialogue(side: str | Turns) -> str:
    """A completion as one text: of several turns what was said, what tools were asked, and what they answered."""
    if isinstance(side, str):
        return side
    said = []
    for turn in side:
        said.append(f"= {turn['content']}" if turn["role"] == "tool" else str(turn["content"] or ""))
        calls = [call.get("function", call) for call in turn.get("tool_calls") or () if isinstance(call, Mapping)]
        said += [f"{call.get('name')}({json.dumps(call.get('arguments'), ensure_ascii=False)})" for call in calls]
    return " ".join(filter(None, said))


def template_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which a template writes a row's conversation beside its turns: tools, and those of its own."""
    tools = row.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    return {"tools": tools or None} | (row.get(TEMPLATE_ARGUMENTS) or {})
