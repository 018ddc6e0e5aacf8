"""Prompts and completions, each a text or a conversation: a list of turns with role and content."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

Row = Mapping[str, Any]  # of a dataset, which is only read
Turn = Mapping[str, Any]
Turns = Sequence[Turn]
TurnDict = dict[str, Any]  # a turn that may be changed
Completion = str | list[TurnDict]  # a text, or a conversation that ends with the answer
Values = Sequence[Any]  # of a column of the rows
Columns = Mapping[str, Values]  # by their names
# Writes turns with these arguments as a template does, and raises what that raises.
WriteTurns = Callable[[Turns, Row], str]
# The same with all arguments of a row, opened for an answer or not.
WriteRow = Callable[[Turns, Row, bool], str]
Join = Literal["system", "all"]

TEMPLATE_ARGUMENTS = "chat_template_kwargs"  # a column of rows, as TRL calls it
# the keys under which a turn may hold what was thought
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
INSTRUCTING = ("system", "developer")  # roles
BLANK_LINE = "\n\n"
PROBE_TEXT = "Qx7probeQx7"  # which no template writes by itself
PROBE_ID = "abcdefghi"  # Mistral's templates want nine letters


# --- Turns as text ------------------------------------------------------------------------------
def text_of(side: str | Turns) -> str:
    """The text of a prompt or a completion; of a conversation that of its last turn.

    What a tool says is no answer, and its text is empty.
    """
    if isinstance(side, str):
        return side
    last = side[-1]
    if last.get("role") == "tool":
        return ""
    content = last["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def ends_with_tool(side: str | Turns) -> bool:
    """True for a completion whose last turn is the answer of a tool, or calls one."""
    if isinstance(side, str) or not side:
        return False
    return side[-1]["role"] == "tool" or bool(side[-1].get("tool_calls"))


def dialogue(side: str | Turns) -> str:
    """A completion as one text: what each turn says, which tools it calls, and what they answer."""
    if isinstance(side, str):
        return side
    texts: list[str] = []
    for turn in side:
        text = _content_text(turn["content"])
        if turn["role"] == "tool":
            text = f"= {text}"
        texts.append(text)
        for call in turn.get("tool_calls") or ():
            if isinstance(call, Mapping):
                function = call.get("function", call)
                arguments = json.dumps(function.get("arguments"), ensure_ascii=False)
                texts.append(f"{function.get('name')}({arguments})")
    return " ".join(filter(None, texts))


def _content_text(content: object) -> str:
    """The text of a turn's content, or of its parts; an image, say, is its name in brackets."""
    if not isinstance(content, list):
        return str(content or "")
    texts = []
    for part in content:
        if isinstance(part, Mapping):
            medium = part.get(str(part.get("type")))
            part = part.get("text", f"[{medium}] ")
        texts.append(str(part or ""))
    return "".join(texts)


def thought_of(turn: Turn) -> str:
    """The thought before a turn, under whichever key it stands; empty where there is none."""
    for key in THOUGHTS:
        text = turn.get(key)
        if isinstance(text, str) and text.strip():
            return text
    return ""


# --- What a template takes beside turns ---------------------------------------------------------
def template_arguments(row: Row) -> dict[str, Any]:
    """The arguments of a template for a row's conversation: its tools, and arguments of its own."""
    tools = read_tools(row.get("tools"))
    return {"tools": tools, **(row.get(TEMPLATE_ARGUMENTS) or {})}


def read_tools(value: object) -> list[Any] | None:
    """A list of tools, or None; the list, and each tool in it, may be JSON in a text.

    Raises ValueError for a text that is no JSON, and for what is no list.
    """
    tools = value
    if isinstance(value, str):
        tools = json.loads(value) if value.strip() else None
    if not tools:
        return None
    if isinstance(tools, Mapping):  # a single tool
        tools = [tools]
    if not isinstance(tools, list):
        raise ValueError("no list of tools")
    read = []
    for tool in tools:
        if isinstance(tool, str):
            tool = json.loads(tool)
        read.append(tool)
    return read


# --- Turns as a template takes them -------------------------------------------------------------
@dataclass(frozen=True)
class TemplateHabits:
    """The way in which a template takes what data writes in several: roles, keys and tool calls."""

    developer: str = "developer"  # the role under which it writes the turn of a developer
    thoughts: tuple[str, ...] = THOUGHTS  # the keys from which it reads thoughts
    takes_mappings: bool = True  # as the arguments of a call; else their JSON as one text


def probe_habits(write: WriteTurns) -> TemplateHabits:
    """The habits of a template, by what it writes of small conversations."""
    question = {"role": "user", "content": "?"}
    answer = {"role": "assistant", "content": "yes"}

    def writes_probe(*turns: Turn) -> bool:
        with suppress(Exception):  # a template computes, and can fail in any way
            return PROBE_TEXT in write(turns, {})
        return False

    def call(arguments: object, **thoughts: str) -> list[Turn]:
        function = {"name": "look", "arguments": arguments}
        request = {"id": PROBE_ID, "type": "function", "function": function}
        return [
            {"role": "assistant", "content": "", "tool_calls": [request], **thoughts},
            {"role": "tool", "name": "look", "tool_call_id": PROBE_ID, "content": "seen"},
        ]

    developer = "system"
    if writes_probe({"role": "developer", "content": PROBE_TEXT}, question, answer):
        developer = "developer"
    writes_mapping = writes_probe(question, *call({"at": PROBE_TEXT}), answer)
    turns_of_text = call(json.dumps({"at": PROBE_TEXT}))
    writes_text = writes_probe(question, *turns_of_text, answer)
    takes_mappings = writes_mapping or not writes_text
    arguments: object = {"at": "here"}
    if not takes_mappings:
        arguments = json.dumps(arguments)
    thoughts = []
    for key in THOUGHTS:
        thought = {key: PROBE_TEXT}
        in_answer = writes_probe(question, answer | thought)
        if in_answer or writes_probe(question, *call(arguments, **thought), answer):
            thoughts.append(key)
    return TemplateHabits(developer, tuple(thoughts), takes_mappings)


_HABITS: dict[str, TemplateHabits] = {}  # of a template, by its text


def habits_of(tokenizer: "PreTrainedTokenizerBase | ProcessorMixin") -> TemplateHabits:
    """The habits of a tokenizer's template, each probed once."""
    template = str(tokenizer.chat_template)
    if template not in _HABITS:

        def write(turns: Turns, arguments: Row) -> str:
            text: str = tokenizer.apply_chat_template(list(turns), tokenize=False, **arguments)
            return text

        _HABITS[template] = probe_habits(write)
    habits = _HABITS[template]
    if hasattr(tokenizer, "tokenizer"):
        # TRL writes the turns of a processor, and knows no developer.
        return replace(habits, developer="system")
    return habits


def turns_for(
    tokenizer: "PreTrainedTokenizerBase | ProcessorMixin", turns: Turns
) -> list[TurnDict]:
    """Turns as the template of this tokenizer takes them."""
    if not tokenizer.chat_template:
        return list(map(dict, turns))
    return fit_turns(turns, habits_of(tokenizer))


def fit_turns(turns: Turns, habits: TemplateHabits) -> list[TurnDict]:
    """Turns with the roles, keys and arguments of calls that a template reads."""
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


def _with_text(call: Row) -> TurnDict:
    """A call of a tool whose arguments are a text of JSON."""
    function = dict(call["function"])
    if isinstance(function.get("arguments"), Mapping):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": function}


# --- Turns as a row's reader wants them ---------------------------------------------------------
def join_turns(turns: Turns, which: Join) -> list[TurnDict]:
    """Turns without a system turn, for templates that know no such role.

    Its text opens the next turn of the user. Where the user says nothing more, it ends what was
    said before. With ``all``, turns of one speaker that follow each other, and hold nothing but
    text, are one, too.
    """
    joined: list[TurnDict] = []
    opening: list[str] = []  # what the next turn of the user begins with
    end = {"role": "", "content": ""}
    for turn in [*turns, end]:
        if turn["role"] in INSTRUCTING:
            if turn["content"].strip():
                opening.append(turn["content"])
            continue
        if opening:
            if turn["role"] == "user":
                turn = {**turn, "content": BLANK_LINE.join([*opening, turn["content"]])}
            elif joined and joined[-1]["role"] == "user":
                _extend(joined[-1], *opening)
            else:
                joined.append({"role": "user", "content": BLANK_LINE.join(opening)})
            opening = []
        if which == "all" and joined and _is_same_speaker(joined[-1], turn):
            _extend(joined[-1], turn["content"])
        elif turn["role"]:  # the end has none
            joined.append(dict(turn))
    return joined


def _is_same_speaker(last: Turn, turn: Turn) -> bool:
    """True for two turns of one role that hold nothing but text."""
    plain = {"role", "content"}
    return last["role"] == turn["role"] and set(last) == set(turn) == plain


def _extend(turn: TurnDict, *texts: str) -> None:
    turn["content"] = BLANK_LINE.join([turn["content"], *texts])


def inline_thoughts(turns: Turns) -> list[TurnDict]:
    """Turns with their thoughts in the content, between ``<think>`` and ``</think>``.

    This is how reasoning models write them.
    """
    written = []
    for turn in turns:
        plain = {key: value for key, value in turn.items() if key not in THOUGHTS}
        thought = thought_of(turn)
        if thought:
            plain["content"] = f"<think>\n{thought.strip()}\n</think>\n\n{turn['content']}"
        written.append(plain)
    return written
