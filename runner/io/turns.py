"""Prompts and completions, each a text or a conversation: a list of turns with ``role`` and ``content``."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

Turns = Sequence[Mapping[str, Any]]
WriteTurns = Callable[[Turns, Mapping[str, Any]], str]  # as a template does with these arguments; raises what it raises
Join = Literal["system", "all"]
Completion = str | list[dict[str, Any]]  # a text, or a conversation that ends with the answer
Values = Sequence[Any]  # of a column of the rows
TEMPLATE_ARGUMENTS = "chat_template_kwargs"  # a column of rows, as TRL calls it
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # the keys under which a turn may hold what was thought
INSTRUCTING = ("system", "developer")  # roles
BLANK_LINE = "\n\n"


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
    return {"tools": read_tools(row.get("tools"))} | (row.get(TEMPLATE_ARGUMENTS) or {})


def read_tools(value: Any) -> list[Any] | None:
    """A list of tools, which may be JSON in a text, as each of them may; None where there are none.

    Raises ValueError for a text that is no JSON, and for what is no list.
    """
    tools = value
    if isinstance(value, str):
        tools = json.loads(value) if value.strip() else None
    if not tools:
        return None
    if isinstance(tools, Mapping):  # one alone
        tools = [tools]
    if not isinstance(tools, list):
        raise ValueError("no list of tools")
    return [json.loads(tool) if isinstance(tool, str) else tool for tool in tools]


# --- Turns as a template takes them -------------------------------------------------------------
@dataclass(frozen=True)
class TemplateHabits:
    """The ways in which a template takes what data writes in several: names of roles and keys, and calls of tools."""

    developer: str = "developer"  # the role under which it writes the turn of a developer
    thoughts: tuple[str, ...] = THOUGHTS  # the keys that it reads thoughts from, of those that are known
    takes_mappings: bool = True  # as the arguments of a call; else their JSON as one text


def probe_habits(write: WriteTurns) -> TemplateHabits:
    """The habits of a template, by what it writes of small conversations."""
    question = {"role": "user", "content": "?"}
    answer = {"role": "assistant", "content": "yes"}

    def writes(*turns: Mapping[str, Any]) -> bool:
        with suppress(Exception):  # a template computes, and can fail in any way
            return PROBE_TEXT in write(turns, {})
        return False

    def call(arguments: Any, **more: Any) -> list[dict[str, Any]]:
        asked = {"id": PROBE_ID, "type": "function", "function": {"name": "look", "arguments": arguments}}
        result = {"role": "tool", "name": "look", "tool_call_id": PROBE_ID, "content": "seen"}
        return [{"role": "assistant", "content": "", "tool_calls": [asked], **more}, result]

    developer = "system"
    if writes({"role": "developer", "content": PROBE_TEXT}, question, answer):
        developer = "developer"
    by_mapping = writes(question, *call({"at": PROBE_TEXT}), answer)
    by_text = writes(question, *call(json.dumps({"at": PROBE_TEXT})), answer)
    takes_mappings = by_mapping or not by_text
    arguments = {"at": "here"} if takes_mappings else json.dumps({"at": "here"})
    thoughts = []
    for key in THOUGHTS:
        if writes(question, answer | {key: PROBE_TEXT}) or writes(
            question, *call(arguments, **{key: PROBE_TEXT}), answer
        ):
            thoughts.append(key)
    return TemplateHabits(developer, tuple(thoughts), takes_mappings)


def fit_turns(turns: Turns, habits: TemplateHabits) -> list[dict[str, Any]]:
    """Turns with the names of roles and keys, and with the arguments of calls, that a template reads."""
    fitted = []
    for turn in turns:
        changed = dict(turn)
        if turn["role"] == "developer":
            changed["role"] = habits.developer
        for key in THOUGHTS:
            if habits.thoughts and key in turn and key not in habits.thoughts:
                changed.setdefault(habits.thoughts[0], changed.pop(key))
        if turn.get("tool_calls") and not habits.takes_mappings:
            changed["tool_calls"] = [_with_text(call) for call in turn["tool_calls"]]
        fitted.append(changed)
    return fitted


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function.get("arguments"), Mapping):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": function}


PROBE_TEXT = "Qx7probeQx7"
PROBE_ID = "abcdefghi"  # Mistral's templates want nine letters
_HABITS: dict[str, TemplateHabits] = {}  # of a template, by its text


def habits_of(tokenizer: Any) -> TemplateHabits:
    """The habits of a tokenizer's template, looked for once."""
    template = str(tokenizer.chat_template)
    if template not in _HABITS:

        def write(turns: Turns, arguments: Mapping[str, Any]) -> str:
            text: str = tokenizer.apply_chat_template(list(turns), tokenize=False, **arguments)
            return text

        _HABITS[template] = probe_habits(write)
    habits = _HABITS[template]
    # Of a processor TRL writes the turns, and knows no developer.
    return replace(habits, developer="system") if hasattr(tokenizer, "image_processor") else habits


def turns_for(tokenizer: Any, turns: Turns) -> list[dict[str, Any]]:
    """Turns as the template of this tokenizer takes them."""
    return fit_turns(turns, habits_of(tokenizer)) if tokenizer.chat_template else list(map(dict, turns))


# --- Turns as a row's reader wants them ---------------------------------------------------------
def join_turns(turns: Turns, which: Join) -> list[dict[str, Any]]:
    """Turns without a system turn, whose text opens the next of the user, as templates want it that know no such role.

    Where the user says nothing more it ends what was said before. With ``all``, turns of one speaker that follow each
    other, and hold nothing but text, are one, too.
    """
    joined: list[dict[str, Any]] = []
    opening: list[str] = []  # what the next turn of the user begins with
    for turn in [*turns, {"role": "", "content": ""}]:
        last = joined[-1] if joined else {}
        if turn["role"] in INSTRUCTING:
            opening += [turn["content"]] if turn["content"].strip() else []
            continue
        if opening and turn["role"] == "user":
            turn = {**turn, "content": BLANK_LINE.join([*opening, turn["content"]])}
        elif opening and last.get("role") == "user":
            joined[-1] = {**last, "content": BLANK_LINE.join([last["content"], *opening])}
        elif opening:
            joined.append({"role": "user", "content": BLANK_LINE.join(opening)})
        opening = []
        is_alike = turn["role"] == last.get("role") and set(turn) == set(last) == {"role", "content"}
        if which == "all" and is_alike:
            joined[-1] = {**last, "content": BLANK_LINE.join([last["content"], turn["content"]])}
        elif turn["role"]:  # else the end
            joined.append(dict(turn))
    return joined


def inline_thoughts(turns: Turns) -> list[dict[str, Any]]:
    """Turns with their thoughts in the content, between ``<think>`` and ``</think>``, as reasoning models write."""
    written = []
    for turn in turns:
        plain = {key: value for key, value in turn.items() if key not in THOUGHTS}
        if thought := thought_of(turn):
            plain["content"] = f"<think>\n{thought.strip()}\n</think>\n\n{turn['content']}"
        written.append(plain)
    return written


def thought_of(turn: Mapping[str, Any]) -> str:
    """The thought before a turn, under whichever key; empty where nothing was."""
    texts = (turn.get(key) for key in THOUGHTS)
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")
