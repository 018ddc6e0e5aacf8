"""Texts of rows that a chat template does not write.

They are looked for before anything is trained on the rows or sampled after them.

Each text of a conversation is replaced by a mark of its own, once for every shape of a conversation
(its roles and keys): a mark that is not in what the template writes stands for a text that no model
would see. Nothing of torch.
"""

import json
import mmap
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Literal

from runner.errors import Fault, describe
from runner.io.turns import (
    TEMPLATE_ARGUMENTS,
    THOUGHTS,
    Join,
    Row,
    Turns,
    WriteRow,
    fit_turns,
    join_turns,
    probe_habits,
    template_arguments,
)
from runner.model.jinja import (
    MAX_LETTERS,
    compile_template,
    find_excess,
    read_shared,
    write_shared,
)
from runner.model.turn_texts import (
    LAST_THOUGHT,
    THOUGHT,
    THOUGHT_PARTS,
    TOOL_PARTS,
    TOOLS,
    RowText,
    list_texts,
    rewrite,
)
from runner.schema.text import short_text

MAX_ROWS = 1000  # that are looked at
CLOSED_THOUGHT = re.compile(r"(?s)^\s*<think>(.*?)</think>")
JOINS: tuple[Join, ...] = ("system", "all")  # the one that changes more comes last
# Keys of turns that need not be looked for as unread ones.
READ_KEYS = frozenset(("role", "content", "tool_calls", "weight", *THOUGHTS))


@dataclass(frozen=True)
class Conversation:
    """The turns of a row, which may wait for an answer."""

    turns: Turns
    row: Row
    is_opened: bool

    def shape(self) -> str:
        """All of the conversation but its texts and the numbers of its calls."""
        turns, arguments = rewrite(self.turns, self.row, lambda part, text: "text")
        for turn in turns:
            for key in turn.keys() & {"name", "tool_call_id", "weight"}:
                turn[key] = None
            if turn.get("tool_calls"):
                turn["tool_calls"] = [call["function"] for call in turn["tool_calls"]]
        tools = arguments.get("tools") or ()
        shape = [turns, arguments[TEMPLATE_ARGUMENTS], len(tools), self.is_opened]
        return json.dumps(shape, sort_keys=True, default=str)


@dataclass(frozen=True)
class ShapeLosses:
    """The losses of all conversations of one shape.

    Lost texts go by their number; keys of turns that are not read, by name.
    """

    lost: frozenset[int]
    unread: frozenset[str]


@dataclass(frozen=True)
class TextLoss:
    """A text that a template leaves out, writes otherwise, or writes without some of its blanks."""

    kind: Literal["lost", "altered", "spaced"]
    text: RowText


@dataclass
class RowLosses:
    """The parts of one row that do not reach the model as they are."""

    refused: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    altered: set[str] = field(default_factory=set)
    spaced: set[str] = field(default_factory=set)
    marked: set[str] = field(default_factory=set)


@dataclass
class Reach:
    """The losses of rows in a template.

    Of each part that it leaves out, the number of rows is counted, and the first text kept.
    """

    rows: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by the words of the template
    lost: Counter[str] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)
    spaced: Counter[str] = field(default_factory=Counter)  # written, but for blanks
    # Texts with a special token, by what holds it.
    marked: Counter[str] = field(default_factory=Counter)
    unread: dict[str, None] = field(default_factory=dict)  # in order
    examples: dict[str, str] = field(default_factory=dict)  # by part
    # The way of joining turns that helps, by part or by the words of the template.
    mended_by: dict[str, Join | None] = field(default_factory=dict)
    knows_thoughts: bool = False  # the template has a place for those of some turns

    def add(self, losses: RowLosses) -> None:
        """Count the losses of one more row."""
        self.refused.update(sorted(losses.refused))
        self.lost.update(sorted(losses.lost))
        self.altered.update(sorted(losses.altered))
        self.spaced.update(sorted(losses.spaced))
        self.marked.update(sorted(losses.marked))

    def faults(self, parts: Sequence[str] = (), *, tolerated: bool = False) -> list[Fault]:
        """Faults of rows that the template refuses, or of which it leaves out a text.

        ``parts`` are the names of the parts of a mixture of datasets.
        """
        faults = []
        for error, count in self.refused.items():
            mend = "mend the rows, or leave them out with dataset.map"
            faults.append(
                Fault(
                    where="dataset",
                    found=f"the chat template refuses {count} of {self.rows} rows: {error}",
                    expected="turns that it accepts",
                    fix=self._join_words(error, parts) or mend,
                )
            )
        if tolerated:
            return faults
        lines_by_fix: dict[str, list[str]] = {}
        for part, count in self.lost.items():
            if part not in THOUGHT_PARTS:
                line = f"{part}, {self._in_rows(count)}{self._example(part)}"
                fix = self._fix_of_lost(part, parts)
                lines_by_fix.setdefault(fix, []).append(line)
        for fix, lines in lines_by_fix.items():
            faults.append(
                Fault(
                    where="dataset",
                    found=f"the chat template leaves out {'; '.join(lines)}",
                    expected="a template that writes each text of the rows",
                    fix=fix,
                )
            )
        return faults

    def _fix_of_lost(self, part: str, parts: Sequence[str]) -> str:
        """The ways out for a part that the template leaves out, the likeliest first."""
        fixes = []
        joined = self._join_words(part, parts)
        if joined:
            fixes.append(joined)
        if part == TOOLS and not parts:
            fixes.append("dataset.without=[tools]")
        if part in TOOL_PARTS:
            fixes.append("template=hermes")
        fixes.append("tolerate.lost_text=true")
        return ", or ".join(fixes)

    def notes(self, *, tolerated: bool = False) -> Iterator[str]:
        """Lines on what does not reach the model and may be meant so.

        They tell of thoughts, keys of turns, and texts that are written otherwise.
        """
        for part in THOUGHT_PARTS:
            if self.lost[part]:
                yield self._line(part) + self._thought_advice(part)
        if tolerated:
            texts = [part for part in self.lost if part not in THOUGHT_PARTS]
            yield from map(self._line, texts)
        if self.unread:
            yield f"not used by the chat template: {', '.join(self.unread)}"
        for part, count in self.altered.items():
            writes = f"the chat template writes {part} differently"
            yield f"{self._in_rows(count)} {writes}{self._example(part)}"
        for part, count in self.spaced.items():
            strips = f"the chat template strips blanks of {part}"
            yield f"{self._in_rows(count)} {strips}{self._example(part)}"
        for part, count in self.marked.items():
            reads = "which the model reads as a special token, not as text"
            yield f"{self._in_rows(count)} {part}, {reads}"

    def _line(self, part: str) -> str:
        """A line on a part that the template leaves out, with how often and an example."""
        in_rows = self._in_rows(self.lost[part])
        leaves_out = f"the chat template leaves out {part}"
        return f"{in_rows} {leaves_out}{self._example(part)}"

    def _in_rows(self, count: int) -> str:
        return f"in {count} of {self.rows} rows"

    def _thought_advice(self, part: str) -> str:
        """The end of a line on thoughts that are left out: a way to keep them, or why they are."""
        if not self.knows_thoughts:
            return "; dataset.thoughts=inline writes it as <think> before the content"
        if part == THOUGHT:
            return ", which is its own rule for earlier turns"
        return ", and it is not learnt; model.tokenizer.chat_template=<another> may write it"

    def _example(self, part: str) -> str:
        example = self.examples.get(part)
        return f", such as {example}" if example else ""

    def _join_words(self, part: str, parts: Sequence[str]) -> str:
        """The words to type that join turns so that a part is written; empty where no way does."""
        join = self.mended_by.get(part)
        if not join:
            return ""
        datasets = [f"dataset.parts.{name}" for name in parts] or ["dataset"]
        return " ".join(f"{dataset}.join_turns={join}" for dataset in datasets)


def look_at_rows(
    rows: Iterable[tuple[Row, Sequence[str]]],
    write: WriteRow,
    template: str,
    special_tokens: Sequence[str] = (),
) -> Reach:
    """The losses of the first rows, each of which comes with the columns of its answers.

    ``special_tokens`` are those that a tokenizer finds in any text.
    """
    knows_thoughts = any(word in template for word in (*THOUGHTS, "</think>"))
    reach = Reach(knows_thoughts=knows_thoughts)
    inspection = _Inspection(write, template, special_tokens, reach)
    for row, answers in rows:
        if reach.rows == MAX_ROWS:
            break
        reach.rows += 1
        losses = RowLosses()
        for conversation in _conversations(row, answers):
            inspection.look_at(conversation, losses)
        reach.add(losses)
    return reach


@dataclass
class _Inspection:
    """A look at conversations, of which those of one shape are rendered with marks only once."""

    write: WriteRow
    template: str
    special_tokens: Sequence[str]
    reach: Reach
    shapes: dict[str, ShapeLosses] = field(default_factory=dict)

    def look_at(self, conversation: Conversation, losses: RowLosses) -> None:
        """Note what a conversation loses, or that the template refuses it."""
        turns, row = conversation.turns, conversation.row
        try:
            written = self.write(turns, row, conversation.is_opened)
        except Exception as error:  # a template computes, and can fail in any way
            reason = describe(error)
            losses.refused.add(reason)
            self._note_join(reason, conversation)
            return
        shape = conversation.shape()
        if shape not in self.shapes:
            self.shapes[shape] = _find_shape_losses(conversation, self.write, written)
        texts = list_texts(turns, row)
        for loss in _find_losses(self.shapes[shape], texts, written):
            part = loss.text.part
            getattr(losses, loss.kind).add(part)
            example = short_text(loss.text.text)
            is_quoted = example[0] in "'\""
            self.reach.examples.setdefault(part, example if is_quoted else repr(example))
            if loss.kind == "lost" and part not in THOUGHT_PARTS:
                self._note_join(part, conversation)
        for text in texts:
            for token in self.special_tokens:
                if token in text.text:
                    losses.marked.add(f"{text.part} holds {token}")
        unread = self.shapes[shape].unread | _unread_arguments(row, self.template)
        self.reach.unread |= dict.fromkeys(sorted(unread))

    def _note_join(self, part: str, conversation: Conversation) -> None:
        """Note the way of joining turns after which all is written.

        The way of an earlier conversation stays where it changes more.
        """
        mended_by = self.reach.mended_by
        if part in mended_by and mended_by[part] in (None, JOINS[-1]):
            return
        mended_by[part] = self._find_join(conversation)

    def _find_join(self, conversation: Conversation) -> Join | None:
        """The first way of joining turns after which the template writes all texts but thoughts."""
        if any(not isinstance(turn.get("content"), str) for turn in conversation.turns):
            return None
        row, is_opened = conversation.row, conversation.is_opened
        for join in JOINS:
            turns = join_turns(conversation.turns, join)
            joined = Conversation(turns, row, is_opened)
            try:
                written = self.write(turns, row, is_opened)
            except Exception:  # the template refuses these turns, too
                continue
            lost = _find_shape_losses(joined, self.write, written).lost
            texts = list_texts(turns, row)
            if all(texts[number].part in THOUGHT_PARTS for number in lost):
                return join
        return None


def _conversations(row: Row, answers: Sequence[str]) -> Iterator[Conversation]:
    """The conversations of a row of chats; none of a row of plain texts."""
    prompt = row.get("prompt")
    sides = [row[name] for name in answers]
    if any(isinstance(side, str) for side in [prompt, *sides]):
        return
    if prompt and not sides:
        yield Conversation(prompt, row, is_opened=True)
    for side in sides:
        yield Conversation([*(prompt or ()), *side], row, is_opened=False)


def _find_losses(shape: ShapeLosses, texts: Sequence[RowText], written: str) -> Iterator[TextLoss]:
    """The texts of a conversation that the template leaves out, or writes otherwise."""
    squeezed = _squeeze(written)
    said = [number for number, text in enumerate(texts) if text.is_said]
    for number, text in enumerate(texts):
        if number in shape.lost:
            yield TextLoss("lost", text)
        elif not text.is_said or text.text in written:
            continue
        elif _squeeze(text.text) in squeezed:
            yield TextLoss("spaced", text)
        else:
            # A template may leave out the thought that opens a text, or write it elsewhere.
            thought = CLOSED_THOUGHT.match(text.text)
            if not thought or _squeeze(text.text[thought.end() :]) not in squeezed:
                yield TextLoss("altered", text)
            elif _squeeze(thought[1]) not in squeezed:
                part = LAST_THOUGHT if number == said[-1] else THOUGHT
                yield TextLoss("lost", RowText(part, thought[1].strip()))


def _find_shape_losses(conversation: Conversation, write: WriteRow, written: str) -> ShapeLosses:
    """The losses of a conversation, of which the template writes ``written``."""
    unread = _find_unread_keys(conversation, write, written)
    marks: list[str] = []

    def mark(part: str, text: str) -> str:
        marks.append(f"Qx{len(marks)}markxQ")
        return marks[-1]

    turns, arguments = rewrite(conversation.turns, conversation.row, mark)
    try:
        marked = write(turns, arguments, conversation.is_opened)
    except Exception:  # where it takes these texts alone, they are looked for themselves
        squeezed = _squeeze(written)
        texts = [_squeeze(text.text) for text in list_texts(conversation.turns, conversation.row)]
        lost = [number for number, text in enumerate(texts) if text not in squeezed]
    else:
        lost = [number for number, text in enumerate(marks) if text not in marked]
    return ShapeLosses(frozenset(lost), unread)


def _find_unread_keys(conversation: Conversation, write: WriteRow, written: str) -> frozenset[str]:
    """The keys of turns without which a template writes the same."""
    keys: set[str] = set()
    for turn in conversation.turns:
        keys |= turn.keys() - READ_KEYS
    unread = set()
    for key in keys:
        turns = []
        for turn in conversation.turns:
            without_key = dict(turn)
            without_key.pop(key, None)
            turns.append(without_key)
        try:
            if write(turns, conversation.row, conversation.is_opened) == written:
                unread.add(key)
        except Exception:  # the template asks for the key
            continue
    return frozenset(unread)


def _unread_arguments(row: Row, template: str) -> set[str]:
    """The arguments of a row for its template that the template does not mention."""
    unread = set()
    for name in row.get(TEMPLATE_ARGUMENTS) or ():
        if not re.search(rf"\b{re.escape(name)}\b", template):
            unread.add(f"{TEMPLATE_ARGUMENTS}.{name}")
    return unread


def _squeeze(text: str) -> str:
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
    """Faults of rows with a template that is a text.

    They are looked for in a fork, which the system ends.
    """
    import jinja2.sandbox  # noqa: F401  once, rather than in the fork

    shared = mmap.mmap(-1, MAX_LETTERS)

    def attempt() -> Iterator[str]:
        write = compile_writer(template, tokens)
        faults = look_at_rows(rows, write, template).faults(parts, tolerated=tolerated)
        write_shared(shared, [astuple(fault) for fault in faults])
        yield ""

    excess = find_excess(attempt())
    written = read_shared(shared)
    if not isinstance(written, list) or excess is not None:
        return []
    return [Fault(*beats) for beats in written]


def compile_writer(template: str, tokens: Mapping[str, str]) -> WriteRow:
    """A function that writes turns with a template.

    It does so as a tokenizer with these special tokens would.
    """
    compiled = compile_template(template)
    defaults: dict[str, object] = {"tools": None, "documents": None, "add_generation_prompt": False}

    def render_turns(turns: Turns, arguments: Row) -> str:
        text: str = compiled.render(**{**tokens, **defaults, **arguments, "messages": turns})
        return text

    habits = probe_habits(render_turns)

    def write(turns: Turns, row: Row, is_opened: bool) -> str:
        arguments = template_arguments(row) | {"add_generation_prompt": is_opened}
        return render_turns(fit_turns(turns, habits), arguments)

    return write
