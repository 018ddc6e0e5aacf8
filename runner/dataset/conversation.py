"""Cells that hold text or a conversation, in the many ways that files write turns and calls."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, TypeGuard

from runner.dataset.form import Cells, Row
from runner.errors import DataError, Fault
from runner.io.turns import THOUGHTS
from runner.schema.modality import MODALITIES

Turns = list[Row]
Side = str | Turns  # a prompt or an answer

CALLING = ("function_call", "tool_call")  # speakers whose text is JSON of one call or several
# The role of a turn by the names that others give to its speaker.
SPEAKERS = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "function": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
# Keys of a turn beside its text, because templates render them, or a rule of weights reads them.
TURN_EXTRAS = ("tool_calls", "tool_call_id", "name", *THOUGHTS, "weight")
MAPPINGS = (dict, Mapping)  # dict first, because the look at an abstract class is slow
# All keys of a turn that are read, and all keys of a part of a turn that is text.
TURN_KEYS = frozenset({"role", "from", "content", "value", "function_call", *TURN_EXTRAS})
PART_KEYS = frozenset({"type", "text", "value", "cache_control"})
PARAMETERS = ("arguments", "parameters")  # the keys under which a call holds what it asks with


def bad_cell(where: str, found: str, expected: str = "", fix: str = "") -> DataError:
    """The error of a cell that cannot be meant; ``where`` begins with the role that it plays."""
    return DataError(
        Fault(
            where=where,
            found=found,
            expected=expected,
            fix=fix,
        )
    )


def describe_cell(value: object) -> str:
    """The type of a cell, and the beginning of its text."""
    if value is None:
        return "null"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def is_finite_number(value: Any) -> bool:
    """True for a finite number, also one in text, as csv has them."""
    with suppress(TypeError, ValueError):
        return not isinstance(value, bool) and isfinite(float(value))
    return False


def is_conversation(value: object) -> TypeGuard[Turns]:
    """True for a list of turns; a list of texts is none."""
    if not isinstance(value, list) or not value:
        return False
    return isinstance(value[0], MAPPINGS)


def read_text(value: object, where: str, *, empty: bool = False) -> str:
    """The text of a cell.

    Raises DataError for another value and, unless it may be ``empty``, for blanks.
    """
    if not isinstance(value, str):
        raise bad_cell(where, describe_cell(value), "text")
    if not empty and not value.strip():
        raise bad_cell(where, "empty text", "text")
    return value


# --- Turns --------------------------------------------------------------------------------------
def to_turns(value: object, where: str) -> Turns:
    """A conversation as turns of role and content.

    It may be written as role/content or as from/value, and as JSON in a text. Raises DataError at
    the turn that cannot be read.
    """
    if isinstance(value, str):  # as a cell of CSV holds turns
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not is_conversation(value):
        raise bad_cell(where, describe_cell(value), "a list of turns")
    turns = []
    for index, turn in enumerate(value):
        place = f"{where}[{index}]"
        turns.append(_to_turn(turn, place))
    return turns


def _to_turn(turn: object, where: str) -> Row:
    """One turn; its calls of tools are read from any of the keys that hold them."""
    if not isinstance(turn, MAPPINGS):
        raise bad_cell(where, describe_cell(turn), "a turn with role and content")
    speaker = turn.get("role") or turn.get("from")
    speaker_name = str(speaker).lower()
    role = SPEAKERS.get(speaker_name)
    if role is None:
        expected = f"one of {', '.join(SPEAKERS)}"
        raise bad_cell(f"{where}.role", describe_cell(speaker), expected)
    content = turn.get("content")
    if content is None:
        content = turn.get("value")
    extras = {key: turn[key] for key in TURN_EXTRAS if turn.get(key) is not None}

    if speaker_name in CALLING:
        extras["tool_calls"] = _read_calls(content, f"{where}.content")
        content = ""
    elif "tool_calls" in extras:
        extras["tool_calls"] = _read_calls(extras["tool_calls"], f"{where}.tool_calls")
    elif turn.get("function_call"):  # as OpenAI wrote a call before there were several
        extras["tool_calls"] = _read_calls(turn["function_call"], f"{where}.function_call")
    if not extras.get("tool_calls", True):
        del extras["tool_calls"]
    if content is None and "tool_calls" in extras:
        content = ""  # a turn that only calls a tool has no text
    if is_conversation(content):
        content = _join_parts(content, f"{where}.content")
    text = read_text(content, f"{where}.content", empty=True)
    return {"role": role, "content": text, **extras}


def _join_parts(parts: Sequence[object], where: str) -> str:
    """The text of a turn whose content is a list of parts; media are marks in a text already."""
    texts = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            expected = "a part with type and text"
            raise bad_cell(f"{where}[{number}]", describe_cell(part), expected)
        text = part_text(part)
        if not isinstance(text, str):
            media = [modality.one for modality in MODALITIES]
            raise bad_cell(
                where=f"{where}[{number}]",
                found=f"a part of the type {part.get('type')!r}",
                expected=" or ".join(["a text", *media]),
                fix="dataset.map._target_=<your function that writes it as text, as tool_calls, or "
                "as a turn>",
            )
        texts.append(text)
    return "".join(texts)


def part_text(part: Cells) -> Any:
    """The text of a part of a turn, which some write as its ``value``; None where it is no text."""
    if part.get("text") is None and part.get("type") == "text":
        return part.get("value")
    return part.get("text")


def one_turn(text: str, role: str) -> Turns:
    """A conversation of one turn."""
    return [{"role": role, "content": text}]


# --- Calls of tools -----------------------------------------------------------------------------
def _read_calls(value: object, where: str) -> list[Row]:
    """Calls of tools, all written in the same way, from a list, one alone, or JSON of either."""
    calls = value
    if isinstance(value, str):
        calls = _parse_or_none(value)
    if isinstance(calls, Mapping):
        calls = [calls]
    if not isinstance(calls, list):
        expected = "JSON of a call with name and arguments, or of several"
        raise bad_cell(where, describe_cell(value), expected)
    read_calls = []
    for index, call in enumerate(calls):
        place = f"{where}[{index}]"
        read_calls.append(_read_call(call, place))
    return read_calls


def _read_call(call: object, where: str) -> Row:
    """A call with its arguments as a mapping, where their text is JSON of one."""
    function: object = None
    around: Row = {}  # other keys of the call, such as its id
    if isinstance(call, Mapping):
        function = call.get("function", call)
        if "function" in call:
            around = {key: value for key, value in call.items() if value is not None}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad_cell(where, describe_cell(call), "a call with name and arguments")
    arguments: object = {}
    for key in PARAMETERS:
        if function.get(key) is not None:
            arguments = function[key]
            break
    parsed = arguments
    if isinstance(arguments, str):
        parsed = _parse_or_none(arguments or "{}")
    # A text would be JSON in JSON where a template writes it.
    if not isinstance(parsed, Mapping):
        expected = "a mapping, or JSON of one"
        raise bad_cell(f"{where}.arguments", describe_cell(arguments), expected)
    named = {"name": function["name"], "arguments": parsed}
    return {**around, "type": "function", "function": named}


def _parse_or_none(text: str) -> object:
    """The value of a text in JSON, None where it is none."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


# --- Prompts and answers ------------------------------------------------------------------------
def alike(prompt: Side, *answers: Side) -> list[Side]:
    """The prompt and the answers, all of them texts or else all of them conversations."""
    if all(isinstance(side, str) for side in (prompt, *answers)):
        return [prompt, *answers]
    if isinstance(prompt, str):
        prompt = one_turn(prompt, "user")
    sides: list[Side] = [prompt]
    for answer in answers:
        if isinstance(answer, str):
            answer = one_turn(answer, "assistant")
        sides.append(answer)
    return sides


def check_learnt(answer: Side, where: str, *, empty: bool = False) -> None:
    """Raise DataError for an answer that is not the assistant's, or that holds nothing to learn."""
    if isinstance(answer, str):
        read_text(answer, where, empty=empty)
        return
    last = answer[-1]
    if last["role"] != "assistant":
        found = f"a conversation that ends with the {last['role']}"
        raise bad_cell(where, found, "one that ends with the assistant")
    if not empty and not last["content"].strip() and not last.get("tool_calls"):
        raise bad_cell(where, "empty text from the assistant", "text")
