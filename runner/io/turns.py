"""Prompts and completions, each a text or a conversation: a list of turns with ``role`` and ``content``."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Turns = Sequence[Mapping[str, Any]]
Completion = str | list[dict[str, Any]]  # a text, or a conversation that ends with the answer
Values = Sequence[Any]  # of a column of the rows
TEMPLATE_ARGUMENTS = "chat_template_kwargs"  # a column of rows, as TRL calls it


def text_of(side: str | Turns) -> str:
    """The text of a prompt or a completion, of a conversation that of its last turn; what a tool says is no answer."""
    if isinstance(side, str) or side[-1].get("role") == "tool":
        return side if isinstance(side, str) else ""
    said = side[-1]["content"]
    return said if isinstance(said, str) else "".join(part.get("text") or "" for part in said)


def dialogue(side: str | Turns) -> str:
    """A completion as one text: of several turns what was said, what tools were asked, and what they answered."""
    if isinstance(side, str):
        return side
    said = []
    for turn in side:
        parts = turn["content"] if isinstance(turn["content"], list) else [{"text": turn["content"]}]
        known = (part if isinstance(part, Mapping) else {"text": part} for part in parts)
        text = "".join(str(part.get("text", f"[{part.get('image')}] ") or "") for part in known)
        said.append(f"= {text}" if turn["role"] == "tool" else text)
        calls = [call.get("function", call) for call in turn.get("tool_calls") or () if isinstance(call, Mapping)]
        said += [f"{call.get('name')}({json.dumps(call.get('arguments'), ensure_ascii=False)})" for call in calls]
    return " ".join(filter(None, said))


def with_images(turns: Turns, images: Iterable[Any]) -> list[dict[str, Any]]:
    """Turns whose contents are lists of parts, with the images in the places for them, in their order."""
    left, filled = iter(images), []
    for turn in turns:
        parts = [{"type": "text", "text": said}] if isinstance(said := turn["content"], str) else said
        parts = [part | {"image": next(left, None)} if part["type"] == "image" else part for part in parts]
        filled.append({**turn, "content": parts})
    return filled


def describe_image(image: Any) -> str:
    """The file of an image of Pillow's, or else a hash of its pixels, and its size."""
    name = Path(getattr(image, "filename", "")).name or hashlib.sha256(image.tobytes()).hexdigest()[:12]
    return f"{name}, {image.width} x {image.height}"


def template_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which a template writes a row's conversation beside its turns: tools, and those of its own."""
    tools = row.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    return {"tools": tools or None} | (row.get(TEMPLATE_ARGUMENTS) or {})
