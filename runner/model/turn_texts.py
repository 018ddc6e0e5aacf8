"""The texts of a conversation and of its tools, listed or replaced by others. No templates here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.io.files import JsonObject
from runner.io.turns import (
    TEMPLATE_ARGUMENTS,
    THOUGHTS,
    Row,
    Turns,
    template_arguments,
    thought_of,
)

# A text in place of one of a conversation, which is given with its part.
ReplaceText = Callable[[str, str], str]

# The parts of a conversation that a text can be, as users read them.
THOUGHT = "the thought"
LAST_THOUGHT = "the thought before the last turn"
THOUGHT_PARTS = (THOUGHT, LAST_THOUGHT)
TOOLS = "the tools"
CALL = "a call of a tool"
ARGUMENT = "an argument of a call"
SAID = "what "  # begins the part of a text that somebody says
TOOL_PARTS = (TOOLS, CALL, ARGUMENT, f"{SAID}the tool says")


@dataclass(frozen=True)
class RowText:
    """A text of a conversation, and the part of it that the text is."""

    part: str
    text: str

    @property
    def is_said(self) -> bool:
        """True for the content of a turn."""
        return self.part.startswith(SAID)


def list_texts(turns: Turns, row: Row) -> list[RowText]:
    """The texts of a conversation and of its tools.

    They come in the order in which ``rewrite`` replaces them.
    """
    texts: list[RowText] = []

    def note(part: str, text: str) -> str:
        texts.append(RowText(part, text))
        return text

    rewrite(turns, row, note)
    return texts


def rewrite(turns: Turns, row: Row, replace: ReplaceText) -> tuple[list[JsonObject], JsonObject]:
    """A conversation and its row's arguments for the template, with other texts.

    ``replace`` is called once for each text.
    """
    tool_names: dict[str, str] = {}  # those of called tools, with what replaces them
    changed = []
    for turn in turns:
        new = dict(turn)
        if turn.get("content"):
            new["content"] = _rewrite_content(turn, replace)
        thought = thought_of(turn)
        if thought:
            part = LAST_THOUGHT if turn is turns[-1] else THOUGHT
            key = next(key for key in THOUGHTS if turn.get(key) == thought)
            new[key] = replace(part, thought)
        if turn.get("tool_calls"):
            calls = [_rewrite_call(call, replace, tool_names) for call in turn["tool_calls"]]
            new["tool_calls"] = calls
        if turn["role"] == "tool" and turn.get("name") in tool_names:
            new["name"] = tool_names[turn["name"]]
        changed.append(new)
    given_arguments = template_arguments(row)
    tools = given_arguments.pop("tools", None)
    arguments: JsonObject = {TEMPLATE_ARGUMENTS: given_arguments}
    if tools:
        arguments["tools"] = [_rewrite_tool(tool, replace) for tool in tools]
    return changed, arguments


def _rewrite_content(turn: Row, replace: ReplaceText) -> object:
    """The content of a turn, a text or a list of parts, with other texts.

    Blank texts become empty.
    """
    part = f"{SAID}the {turn['role']} says"
    content = turn["content"]
    if isinstance(content, str):
        if not content.strip():
            return ""
        return replace(part, content)
    pieces = []
    for piece in content:
        if str(piece.get("text") or "").strip():
            piece = {**piece, "text": replace(part, piece["text"])}
        pieces.append(piece)
    return pieces


def _rewrite_call(call: Row, replace: ReplaceText, tool_names: dict[str, str]) -> JsonObject:
    """A call of a tool with another name, which is noted, and other texts in its arguments."""
    function = dict(call["function"])
    name = function["name"]
    tool_names[name] = replace(CALL, name)
    function["name"] = tool_names[name]
    function["arguments"] = _rewrite_values(function.get("arguments"), replace)
    return {**call, "function": function}


def _rewrite_values(value: object, replace: ReplaceText) -> object:
    """The arguments of a call, JSON of any depth, with other texts."""
    if isinstance(value, Mapping):
        return {key: _rewrite_values(inner, replace) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rewrite_values(inner, replace) for inner in value]
    if isinstance(value, str):
        if not value.strip():
            return ""
        return replace(ARGUMENT, value)
    return value


def _rewrite_tool(tool: object, replace: ReplaceText) -> object:
    """A tool with another name, whether it is a function itself or holds one."""
    if not isinstance(tool, Mapping):
        return tool
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return tool
    renamed = {**function, "name": replace(TOOLS, function["name"])}
    return {**tool, "function": renamed} if "function" in tool else renamed
