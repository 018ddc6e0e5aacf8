"""Texts of rows that a chat template does not write, looked for before anything is trained on or sampled after them.

Each text of a conversation is replaced by a mark of its own, once for every shape of a conversation (its roles and
keys): a mark that is not in what the template writes stands for a text that no model would see. Nothing of torch.
"""

import json
import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from typing import Any

from runner.errors import Fault, describe
from runner.io.turns import (
    TEMPLATE_ARGUMENTS,
    THOUGHTS,
    Join,
    Turns,
    fit_turns,
    join_turns,
    probe_habits,
    template_arguments,
    thought_of,
)
from runner.model.jinja import MAX_LETTERS, compile_template, find_excess
from runner.schema.text import short_text

Row = Mapping[str, Any]
WriteRow = Callable[[Turns, Row, bool], str]  # turns with the arguments of a row, opened for an answer or not

MAX_ROWS = 1000  # that are looked at
MARK = "Qx{}markxQ".format
CLOSED_THOUGHT = re.compile(r"(?s)^\s*<think>(.*?)</think>")
JOINS: tuple[Join, ...] = ("system", "all")
OF_ROLES = ("role", "content", "tool_calls", "weight", *THOUGHTS)  # keys of turns that are looked for otherwise
THOUGHT = "the thought"
LAST_THOUGHT = "the thought before the last turn"
THOUGHT_PARTS = (THOUGHT, LAST_THOUGHT)
TOOLS = "the tools"
CALL = "a call of a tool"
ARGUMENT = "an argument of a call"
SAID = "what "  # begins the part of a text that somebody says
OF_TOOLS = (TOOLS, CALL, ARGUMENT, f"{SAID}the tool says")


@dataclass(frozen=True)
class RowText:
    """A text of a conversation, and the part of it that the text is."""

    part: str
    text: str


@dataclass(frozen=True)
class ShapeLosses:
    """The losses of all conversations of one shape: texts by their number, and keys that are not read."""

    lost: tuple[int, ...] = ()
    unread: frozenset[str] = frozenset()


@dataclass
class Reach:
    """The losses of rows in a template: of each part that it leaves out the number of rows, and a text of the first."""

    rows: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # rows by the words of the template
    lost: Counter[str] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)
    spaced: Counter[str] = field(default_factory=Counter)  # written, but for blanks
    marked: Counter[str] = field(default_factory=Counter)  # texts with a special token, by what holds it
    unread: dict[str, None] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    mended_by: dict[str, Join | None] = field(default_factory=dict)  # the way of joining turns that helps, by part
    knows_thoughts: bool = False  # whether the template has a place for those of some turns

    def faults(self, parts: Sequence[str] = (), *, tolerated: bool = False) -> list[Fault]:
        """Faults of rows that the template refuses, or of which it leaves out a text; ``parts`` are of a mixture."""
        faults = []
        for error, count in self.refused.items():
            fix = self._join_words(error, parts) or "mend the rows, or leave them out with dataset.map"
            found = f"the chat template refuses {count} of {self.rows} rows: {error}"
            faults.append(Fault("dataset", found, "turns that it takes", fix))
        by_fix: dict[str, list[str]] = {}
        for part, count in self.lost.items() if not tolerated else ():
            if part not in THOUGHT_PARTS:
                words = [self._join_words(part, parts)]
                words.append("dataset.without=[tools]" if part == TOOLS and not parts else "")
                words.append("template=hermes" if part in OF_TOOLS else "")
                fix = ", or ".join(filter(None, [*words, "tolerate.lost_text=true"]))
                line = f"{part}, in {count} of {self.rows} rows{self._example(part)}"
                by_fix.setdefault(fix, []).append(line)
        for fix, lines in by_fix.items():
            found = f"the chat template leaves out {'; '.join(lines)}"
            faults.append(Fault("dataset", found, "a template that writes each text of the rows", fix))
        return faults

    def notes(self, *, tolerated: bool = False) -> Iterator[str]:
        """Lines on what does not reach the model and may be meant so: thoughts, keys of turns, other writings."""
        for part in filter(self.lost.get, THOUGHT_PARTS):
            advice = "; dataset.thoughts=inline writes it as <think> before the content"
            if self.knows_thoughts and part == THOUGHT:
                advice = ", as is its own rule for earlier turns"
            elif self.knows_thoughts:
                advice = ", and it is not learnt; model.tokenizer.chat_template=<another> may write it"
            yield self._line(part) + advice
        for part in self.lost if tolerated else ():
            if part not in THOUGHT_PARTS:
                yield self._line(part)
        if self.unread:
            yield f"not used by the chat template: {', '.join(self.unread)}"
        for part, count in self.altered.items():
            yield f"in {count} of {self.rows} rows the chat template writes {part} otherwise{self._example(part)}"
        for part, count in self.spaced.items():
            yield f"in {count} of {self.rows} rows the chat template strips blanks of {part}{self._example(part)}"
        for part, count in self.marked.items():
            yield f"in {count} of {self.rows} rows {part}, which the model reads as its own mark and not as text"

    def _line(self, part: str) -> str:
        count = f"{self.lost[part]} of {self.rows} rows"
        return f"in {count} the chat template leaves out {part}{self._example(part)}"

    def _example(self, part: str) -> str:
        return f", such as {self.examples[part]}" if self.examples.get(part) else ""

    def _join_words(self, part: str, parts: Sequence[str]) -> str:
        if not (join := self.mended_by.get(part)):
            return ""
        places = [f"dataset.parts.{name}" for name in parts] or ["dataset"]
        return " ".join(f"{place}.join_turns={join}" for place in places)


def look_at_rows(
    rows: Iterable[tuple[Row, Sequence[str]]],
    write: WriteRow,
    template: str,
    count: int = MAX_ROWS,
    special_tokens: Sequence[str] = (),
) -> Reach:
    """The losses of the first rows, each of which comes with the columns of its answers.

    ``special_tokens`` are those that a tokenizer finds in any text.
    """
    reach = Reach(knows_thoughts=any(word in template for word in (*THOUGHTS, "</think>")))
    shapes: dict[str, ShapeLosses] = {}
    for row, answers in rows:
        if reach.rows == count:
            break
        reach.rows += 1
        parts = {name: set[str]() for name in ("refused", "lost", "altered", "spaced", "marked")}
        for turns, is_opened in _conversations(row, answers):
            try:
                written = write(turns, row, is_opened)
            except Exception as error:  # a template computes, and can fail in any way
                parts["refused"].add(reason := describe(error))
                _try_joins(reach, reason, turns, row, write, is_opened=is_opened)
                continue
            key, texts = _shape_of(turns, row, is_opened=is_opened), list_texts(turns, row)
            if key not in shapes:
                shapes[key] = _look(turns, row, write, written, is_opened=is_opened)
            for name, entry in _find_losses(shapes[key], texts, written):
                parts[name].add(entry.part)
                example = short_text(entry.text)
                reach.examples.setdefault(entry.part, example if example[0] in "'\"" else repr(example))
                if name == "lost" and entry.part not in THOUGHT_PARTS:
                    _try_joins(reach, entry.part, turns, row, write, is_opened=is_opened)
            for entry in texts:
                held = [token for token in special_tokens if token in entry.text]
                parts["marked"] |= {f"{entry.part} holds {token}" for token in held}
            reach.unread |= dict.fromkeys(sorted(shapes[key].unread | _unread_arguments(row, template)))
        for name, found in parts.items():
            getattr(reach, name).update(found)
    return reach


def _find_losses(shape: ShapeLosses, texts: Sequence[RowText], written: str) -> Iterator[tuple[str, RowText]]:
    """Each text that is lost, or that the template writes otherwise than the row has it, with which of these it is."""
    squeezed = _squeezed(written)
    last = max((index for index, entry in enumerate(texts) if entry.part.startswith(SAID)), default=-1)
    for index, entry in enumerate(texts):
        if index in shape.lost:
            yield "lost", entry
        elif entry.part.startswith(SAID) and _squeezed(entry.text) not in squeezed:
            thought = CLOSED_THOUGHT.match(entry.text)
            if not thought or _squeezed(entry.text[thought.end() :]) not in squeezed:
                yield "altered", entry
            elif _squeezed(thought[1]) not in squeezed:
                yield "lost", RowText(LAST_THOUGHT if index == last else THOUGHT, thought[1].strip())
        elif entry.part.startswith(SAID) and entry.text not in written:
            yield "spaced", entry


def _conversations(row: Row, answers: Sequence[str]) -> Iterator[tuple[Turns, bool]]:
    """The conversations of a row of chats, each with whether it waits for an answer."""
    prompt = row.get("prompt")
    sides = [row[name] for name in answers]
    if isinstance(prompt, str) or any(isinstance(side, str) for side in sides):
        return
    if prompt and not sides:
        yield prompt, True
    for side in sides:
        yield [*(prompt or ()), *side], False


def _shape_of(turns: Turns, row: Row, *, is_opened: bool) -> str:
    """All of a conversation but its texts and the numbers of its calls."""
    bare, arguments = rewrite(turns, row, lambda part, text: "text")
    for turn in bare:
        turn |= dict.fromkeys(turn.keys() & {"name", "tool_call_id", "weight"})
        if turn.get("tool_calls"):
            turn["tool_calls"] = [call["function"] for call in turn["tool_calls"]]
    shape = [bare, arguments[TEMPLATE_ARGUMENTS], len(arguments.get("tools") or ()), is_opened]
    return json.dumps(shape, sort_keys=True, default=str)


def list_texts(turns: Turns, row: Row) -> list[RowText]:
    """The texts of a conversation and of its tools, in the order in which ``rewrite`` comes to them."""
    texts: list[RowText] = []

    def keep(part: str, text: str) -> str:
        texts.append(RowText(part, text))
        return text

    rewrite(turns, row, keep)
    return texts


def rewrite(turns: Turns, row: Row, put: Callable[[str, str], str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A conversation and its row's arguments for the template, with another text in the place of each."""
    names: dict[str, str] = {}
    changed = []
    for turn in turns:
        new = dict(turn)
        part = f"{SAID}the {turn['role']} says"
        content = turn.get("content")
        if isinstance(content, str):
            new["content"] = put(part, content) if content.strip() else ""
        elif content:
            new["content"] = [
                piece | {"text": put(part, piece["text"])} if str(piece.get("text") or "").strip() else piece
                for piece in content
            ]
        if thought := thought_of(turn):
            key = next(key for key in THOUGHTS if turn.get(key) == thought)
            new[key] = put(LAST_THOUGHT if turn is turns[-1] else THOUGHT, thought)
        if turn.get("tool_calls"):
            new["tool_calls"] = [_rewrite_call(call, put, names) for call in turn["tool_calls"]]
        if turn["role"] == "tool" and turn.get("name") in names:
            new["name"] = names[turn["name"]]
        changed.append(new)
    given = template_arguments(row)
    tools = given.pop("tools", None)
    arguments: dict[str, Any] = {TEMPLATE_ARGUMENTS: given}
    if tools:
        arguments["tools"] = [_rewrite_tool(tool, put) for tool in tools]
    return changed, arguments


def _rewrite_call(call: Row, put: Callable[[str, str], str], names: dict[str, str]) -> dict[str, Any]:
    function = dict(call["function"])
    names[function["name"]] = put(CALL, function["name"])
    function["name"] = names[function["name"]]
    function["arguments"] = _rewrite_values(function.get("arguments"), put)
    return {**call, "function": function}


def _rewrite_values(value: Any, put: Callable[[str, str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _rewrite_values(inner, put) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rewrite_values(inner, put) for inner in value]
    if isinstance(value, str):
        return put(ARGUMENT, value) if value.strip() else ""
    return value


def _rewrite_tool(tool: Any, put: Callable[[str, str], str]) -> Any:
    if not isinstance(tool, Mapping):
        return tool
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return tool
    named = {**function, "name": put(TOOLS, function["name"])}
    return {**tool, "function": named} if "function" in tool else named


def _look(turns: Turns, row: Row, write: WriteRow, plain: str, *, is_opened: bool) -> ShapeLosses:
    """The losses of a conversation, of which the template writes ``plain``."""
    marks: list[str] = []

    def mark(part: str, text: str) -> str:
        marks.append(MARK(len(marks)))
        return marks[-1]

    unread = frozenset(key for key in _other_keys(turns) if _is_unread(key, turns, row, write, plain, is_opened))
    marked, arguments = rewrite(turns, row, mark)
    with suppress(Exception):  # where it takes these texts alone, they are looked for themselves
        written = write(marked, arguments, is_opened)
        return ShapeLosses(tuple(index for index, text in enumerate(marks) if text not in written), unread)
    squeezed = _squeezed(plain)
    texts = list_texts(turns, row)
    return ShapeLosses(
        tuple(index for index, entry in enumerate(texts) if _squeezed(entry.text) not in squeezed), unread
    )


def _other_keys(turns: Turns) -> list[str]:
    return list(dict.fromkeys(key for turn in turns for key in turn if key not in OF_ROLES))


def _is_unread(key: str, turns: Turns, row: Row, write: WriteRow, plain: str, is_opened: bool) -> bool:
    bare = [{name: value for name, value in turn.items() if name != key} for turn in turns]
    with suppress(Exception):  # then the template asks for it
        return write(bare, row, is_opened) == plain
    return False


def _unread_arguments(row: Row, template: str) -> set[str]:
    given = row.get(TEMPLATE_ARGUMENTS) or {}
    return {f"{TEMPLATE_ARGUMENTS}.{key}" for key in given if not re.search(rf"\b{re.escape(key)}\b", template)}


def _try_joins(reach: Reach, part: str, turns: Turns, row: Row, write: WriteRow, *, is_opened: bool) -> None:
    """Note the way of joining turns after which all of a conversation is written, unless an earlier one needs more."""
    if part in reach.mended_by and reach.mended_by[part] in (None, JOINS[-1]):
        return
    if any(not isinstance(turn.get("content"), str) for turn in turns):
        reach.mended_by[part] = None
        return
    reach.mended_by[part] = None
    for join in JOINS:
        joined = join_turns(turns, join)
        with suppress(Exception):
            shape = _look(joined, row, write, write(joined, row, is_opened), is_opened=is_opened)
            texts = list_texts(joined, row)
            if all(texts[index].part in THOUGHT_PARTS for index in shape.lost):
                reach.mended_by[part] = join
                return


def _squeezed(text: str) -> str:
    return "".join(text.split())


# --- Without the tokenizer ----------------------------------------------------------------------
def find_reach_faults(
    rows: Sequence[tuple[Row, Sequence[str]]],
    template: str,
    tokens: Mapping[str, str],
    *,
    parts: Sequence[str] = (),
    tolerated: bool = False,
) -> list[Fault]:
    """Faults of rows with a template that is a text; they are looked for in a fork, which the system ends."""
    import jinja2.sandbox  # noqa: F401  once, rather than in the fork

    shared = mmap.mmap(-1, MAX_LETTERS)

    def attempt() -> Iterator[str]:
        compiled = compile_template(template)

        def plainly(turns: Turns, arguments: Row) -> str:
            known = {"tools": None, "documents": None, "add_generation_prompt": False}
            text: str = compiled.render(**{**tokens, **known, **arguments, "messages": turns})
            return text

        habits = probe_habits(plainly)

        def write(turns: Turns, row: Row, is_opened: bool) -> str:
            return plainly(fit_turns(turns, habits), template_arguments(row) | {"add_generation_prompt": is_opened})

        faults = look_at_rows(rows, write, template).faults(parts, tolerated=tolerated)
        shared.write(json.dumps([astuple(fault) for fault in faults]).encode())
        yield ""

    excess = find_excess(attempt())
    written = shared[:].rstrip(b"\0")
    return [Fault(*beats) for beats in json.loads(written)] if written and excess is None else []
