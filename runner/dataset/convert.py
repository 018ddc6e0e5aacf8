"""The raw row forms, and one arrow from each of them to every form that a trainer takes.

A row goes two hops. Read by its :class:`RowLayout` it becomes canonical: one key per role, and all of
it conversations or all of it text. Then one arrow takes it to the trainer's form. Rows that cannot
be meant, and rows that TRL would silently take for something else, are refused by their number.

Which layout a source has is found in ``detect``, files and splits in ``load``. Nothing here needs
torch or datasets, because the config check asks :func:`fits` before either is imported.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import isfinite
from typing import Any, TypeGuard

from runner.dataset.step import Cells, Row, Step, apply_steps
from runner.errors import DataError, Fault
from runner.io.turns import text_of

log = logging.getLogger(__name__)

Turns = list[dict[str, Any]]

# Part of the key under which converted rows are cached: count up when a row comes out otherwise.
CONVERT_VERSION = 2

# Which raw form can feed which trainer form. The order is the order of recognition: what needs more
# columns comes first, and messages before prompt_completion, which would lose the earlier turns.
ARROWS: dict[str, tuple[str, ...]] = {
    "preference": ("demonstration", "messages", "preference", "unpaired", "prompt", "answer"),
    "unpaired": ("demonstration", "messages", "unpaired", "prompt", "answer"),
    "messages": ("demonstration", "messages", "prompt", "answer"),
    "prompt_completion": ("demonstration", "messages", "prompt", "answer"),
    "text": ("demonstration", "answer"),
    "prompt": ("prompt",),
}
TRAINER_FORMS = ("demonstration", "messages", "preference", "unpaired", "prompt")
# The last feeds no trainer: metrics read known answers.
FORMS_FOR = {to: tuple(raw for raw, ends in ARROWS.items() if to in ends) for to in (*TRAINER_FORMS, "answer")}

SPEAKERS = {name: name for name in ("system", "developer", "user", "assistant", "tool")}
SPEAKERS |= {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
# What a turn may carry besides its text, because templates render it, or a rule of weights reads it; scores and ids
# stay behind.
TURN_EXTRAS = ("tool_calls", "tool_call_id", "name", "reasoning_content", "thinking", "weight")
TWINS = {"prompt": "input", "completion": "target"}
SHOWN = 5


def fits(raw: str | None, trainer: str | None) -> bool:
    """True where rows of a raw form can feed a trainer form; an unknown one (None) is not refused.

    >>> fits("preference", "demonstration"), fits("text", "preference"), fits(None, "unpaired")
    (True, False, True)
    """
    return trainer is None or trainer in ARROWS.get(raw or "", (trainer,))


@dataclass(frozen=True)
class RowLayout:
    """The way to read the rows of one source: their raw form, and the column that plays each role."""

    form: str
    columns: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.form} ({', '.join(f'{role}={name}' for role, name in self.columns.items())})"


# --- Raw to canonical ---------------------------------------------------------------------------


def to_canonical(row: Cells, layout: RowLayout, system: str | None = None) -> Row:
    """The row with one key per role of its form, all of it conversations or all of it text.

    ``system`` opens each conversation that has no system turn of its own.
    Raises DataError at the role that is wrong.
    """
    cells = {role: row.get(column) for role, column in layout.columns.items()}
    system = cells.pop("system", None) or system
    canonical = _CANONICAL[layout.form](cells)
    if not system:
        return canonical
    key = next(key for key in ("messages", "prompt", "text") if key in canonical)
    turns = canonical[key]
    if isinstance(turns, str):
        fix = "dataset.columns.input=<column> (and .target) make conversations of prompts"
        raise _bad(key, "a system prompt for rows of plain text", "conversations", fix)
    if turns[0]["role"] in ("system", "developer"):
        return canonical
    return canonical | {key: _one_turn(_text(system, "system"), "system") + turns}


def _bad(where: str, found: str, expected: str = "", fix: str = "") -> DataError:
    return DataError(Fault(where, found, expected, fix))


def _text(value: object, where: str, *, empty: bool = False) -> str:
    """The value if it is text; blank text only where ``empty`` allows it."""
    if not isinstance(value, str):
        raise _bad(where, _shown(value), "text")
    if not empty and not value.strip():
        raise _bad(where, "empty text", "text")
    return value


def is_finite_number(value: Any) -> bool:
    """True for a finite number, also one in text, as csv has them.

    >>> is_finite_number("-0.5"), is_finite_number(True), is_finite_number(None)
    (True, False, False)
    """
    with suppress(TypeError, ValueError):
        return not isinstance(value, bool) and isfinite(float(value))
    return False


def _shown(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def _is_turns(value: object) -> TypeGuard[Turns]:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def to_turns(value: object, where: str) -> Turns:
    """A conversation as turns of role and content, read from role/content or from/value."""
    if not _is_turns(value):
        raise _bad(where, _shown(value), "a list of turns")
    turns = []
    for index, turn in enumerate(value):
        if not isinstance(turn, Mapping):
            raise _bad(f"{where}[{index}]", _shown(turn), "a turn with role and content")
        speaker = turn.get("role") or turn.get("from")
        role = SPEAKERS.get(str(speaker).lower())
        if role is None:
            raise _bad(f"{where}[{index}].role", _shown(speaker), "one of " + ", ".join(SPEAKERS))
        extras = {key: turn[key] for key in TURN_EXTRAS if turn.get(key) is not None}
        content = turn.get("value") if turn.get("content") is None else turn["content"]
        if content is None and "tool_calls" in extras:
            content = ""  # a turn that only calls a tool says nothing
        if _is_turns(content) and all(isinstance(part.get("text"), str) for part in content):
            content = "".join(part["text"] for part in content)  # given in parts, all of them text
        turns.append({"role": role, "content": _text(content, f"{where}[{index}].content", empty=True)} | extras)
    return turns


def _one_turn(text: str, role: str) -> Turns:
    return [{"role": role, "content": text}]


def _side(cells: Cells, name: str) -> str | Turns:
    """A prompt or a completion as it stands, or one turn where it was given as input or target."""
    where = TWINS[name] if TWINS[name] in cells else name
    value = cells[where]
    if isinstance(value, list):
        return to_turns(value, where)
    text = _text(value, where, empty=name == "completion")
    if where == name:
        return text
    if name == "prompt" and cells.get("context"):  # the input below an instruction, if it has one
        text += "\n\n" + _text(cells["context"], "context")
    return _one_turn(text, "user" if name == "prompt" else "assistant")


def _alike(prompt: str | Turns, *answers: str | Turns) -> tuple[Any, ...]:
    """Prompt and answers as they are if all are text, else all of them as conversations."""
    if isinstance(prompt, str) and all(isinstance(answer, str) for answer in answers):
        return prompt, *answers
    turns = [_one_turn(side, "assistant") if isinstance(side, str) else side for side in answers]
    return (_one_turn(prompt, "user") if isinstance(prompt, str) else prompt), *turns


def _check_answer(answer: str | Turns, where: str, *, empty: bool = False) -> None:
    """Refuse an answer that does not end with the assistant, or that says nothing."""
    if isinstance(answer, str):
        _text(answer, where, empty=empty)
        return
    last = answer[-1]
    if last["role"] != "assistant":
        found = f"a conversation that ends with the {last['role']}"
        raise _bad(where, found, "one that ends with the assistant")
    if not empty and not last["content"].strip() and not last.get("tool_calls"):
        raise _bad(where, "empty text from the assistant", "text")


def _canonical_exchange(cells: Row) -> Row:
    """Prompt and completion, and of an unpaired row its label."""
    label = cells.get("label", True)
    if isinstance(label, str):
        label = {"true": True, "1": True, "false": False, "0": False}.get(label.lower(), label)
    if label not in (0, 1):  # True and False equal them
        raise _bad("label", _shown(label), "true or false")
    prompt, completion = _alike(_side(cells, "prompt"), _side(cells, "completion"))
    # An empty answer judged bad teaches something; one judged good teaches silence.
    _check_answer(completion, "completion", empty=not label)
    row = {"prompt": prompt, "completion": completion}
    return row | {"label": bool(label)} if "label" in cells else row


def _canonical_preference(cells: Row) -> Row:
    """Prompt, chosen and rejected, also where the prompt is repeated in both or stands nowhere."""
    chosen, rejected = cells["chosen"], cells["rejected"]
    if isinstance(chosen, list) != isinstance(rejected, list):
        raise _bad("rejected", "text beside a conversation, or the reverse", "two of a kind")
    prompt = _side(cells, "prompt") if {"prompt", "input"} & set(cells) else None
    if isinstance(chosen, list):
        turns = to_turns(chosen, "chosen"), to_turns(rejected, "rejected")
        listed = isinstance(cells.get("prompt", cells.get("input")), list)
        parts = _split_turns(prompt, *turns, listed=listed)
    else:
        texts = _text(chosen, "chosen"), _text(rejected, "rejected", empty=True)
        parts = _split_text(*texts) if prompt is None else _alike(prompt, *texts)
    row: Row = dict(zip(("prompt", "chosen", "rejected"), parts, strict=True))
    if "margin" in cells:
        if not is_finite_number(cells["margin"]):
            raise _bad("margin", _shown(cells["margin"]), "a number", "dataset.without=[margin]")
        row["margin"] = float(cells["margin"])
    _check_answer(row["chosen"], "chosen")
    _check_answer(row["rejected"], "rejected", empty=True)
    return row


def _split_turns(
    prompt: str | Turns | None, chosen: Turns, rejected: Turns, *, listed: bool
) -> tuple[Turns, Turns, Turns]:
    """The turns that both conversations open with are the prompt; without any, the given one is.

    Each conversation keeps its last turn, also where both are equal, and no prompt ends with the
    assistant. A given text repeats the shared turns; given turns (``listed``) may precede them.
    """
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    while shared and chosen[shared - 1]["role"] == "assistant":
        shared -= 1
    opening = chosen[:shared]
    if not opening and prompt is None:
        found = "conversations that share no first turn, and no prompt"
        raise _bad("chosen", found, "a prompt", "dataset.columns.prompt=<column>")
    given = _one_turn(prompt, "user") if isinstance(prompt, str) else prompt or []
    repeated = opening and (not listed or given[-1] in opening)
    return (opening if repeated else given + opening), chosen[shared:], rejected[shared:]


def _split_text(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Two texts cut where their answers begin: after a last shared ``Assistant:``, else at a word.

    The texts alone cannot say where the prompt ends if the answers begin alike. Whole words on the
    wrong side weigh nothing in the difference that preferences are learnt from; half a word would
    change the tokens, so none is cut.
    """
    if chosen == rejected:
        return "", chosen, rejected
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    shared, marker = "".join(left for left, _ in pairs), "\n\nAssistant:"
    if marker in shared:
        cut = shared.rindex(marker) + len(marker)
    else:
        # Where one text only continues the other, the last shared word belongs to the answer.
        within = shared.rstrip() if shared in (chosen, rejected) else shared
        cut = max(within.rfind(blank) for blank in " \n\t")
    if not shared[: max(cut, 0)].strip():
        found = "texts that share no beginning, and no prompt"
        raise _bad("chosen", found, "a prompt", "dataset.columns.prompt=<column>")
    return chosen[:cut], chosen[cut:], rejected[cut:]


_CANONICAL: dict[str, Callable[[Row], Row]] = {
    "preference": _canonical_preference,
    "unpaired": _canonical_exchange,
    "messages": lambda cells: {"messages": to_turns(cells["messages"], "messages")},
    "prompt_completion": _canonical_exchange,
    "text": lambda cells: {"text": _text(cells["text"], "text")},
    "prompt": lambda cells: {"prompt": _side(cells, "prompt")},
}


# --- Canonical to trainer form ------------------------------------------------------------------
# Each arrow takes a canonical row of any form that ARROWS lets through and returns what it becomes:
# usually one row, two for a pair that is taken apart, none where it teaches nothing in this form.


def to_demonstration(row: Row) -> list[Row]:
    """Something to imitate: text, a conversation, or a prompt with its chosen completion."""
    if "chosen" in row:
        return [{"prompt": row["prompt"], "completion": row["chosen"]}]
    if row.get("label") is False:
        return []
    if "messages" in row:
        _check_answer(row["messages"], "messages")
    return [{key: row[key] for key in ("text", "messages", "prompt", "completion") if key in row}]


def to_messages(row: Row) -> list[Row]:
    """One conversation that ends with the assistant; texts become turns, without outer blanks."""
    found = []
    for made in to_demonstration(row):
        if isinstance(made.get("prompt"), str):
            turns = _one_turn(made["prompt"].strip(), "user") + _one_turn(made["completion"].strip(), "assistant")
        else:
            turns = made["messages"] if "messages" in made else made["prompt"] + made["completion"]
        found.append({"messages": turns})
    return found


def to_unpaired(row: Row) -> list[Row]:
    """A prompt with a completion and whether it is good; a pair becomes two such rows."""
    if "label" in row:
        return [row]
    return [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"} for side in ("chosen", "rejected")
    ]


def to_prompt(row: Row) -> list[Row]:
    """The prompt of the policy, and as ``reference`` the text of a good answer or None."""
    if "messages" in row:
        *opening, last = row["messages"]
        if last["role"] != "assistant":  # nobody has answered, so all of it is a prompt
            return [{"prompt": row["messages"], "reference": None}]
        if not opening:
            raise _bad("messages", "an answer alone", "something to answer before it")
        return [{"prompt": opening, "reference": last["content"]}]
    answer = row.get("chosen", row.get("completion"))
    if answer is None:
        return [{"prompt": row["prompt"]}]
    return [{"prompt": row["prompt"], "reference": text_of(answer) if row.get("label", True) else None}]


def to_answer(row: Row) -> list[Row]:
    """Each known answer with its prompt, or a text, and as ``label`` whether it is right; a pair becomes two rows."""
    if "chosen" in row or "label" in row:
        return to_unpaired(row)
    if "messages" not in row:
        return [row | {"label": True}]
    *prompt, answer = row["messages"]
    if not prompt or answer["role"] != "assistant":
        return []
    return [{"prompt": prompt, "completion": [answer], "label": True}]


_TO: dict[str, Callable[[Row], list[Row]]] = {
    "demonstration": to_demonstration,
    "messages": to_messages,
    "preference": lambda row: [row],
    "unpaired": to_unpaired,
    "prompt": to_prompt,
    "answer": to_answer,
}


def convert(row: Cells, layout: RowLayout, to: str, system: str | None = None) -> list[Row]:
    """The rows of a trainer form that one raw row becomes; none for a pair of equals."""
    canonical = to_canonical(row, layout, system)
    if layout.form == "preference" and canonical["chosen"] == canonical["rejected"]:
        return []
    return _TO[to](canonical)


# --- Many rows ----------------------------------------------------------------------------------


@dataclass
class Conversion:
    """Converts one source batch by batch, and raises all its bad rows once the last row was seen.

    Raising inside the last batch keeps a half-good result out of the cache. ``total`` None is a
    stream, whose end nobody knows: it raises with each batch. ``label`` is how messages call the
    source, and ``first`` must be called before the first batch.
    """

    layout: RowLayout
    to: str
    system: str | None = None
    kept: tuple[str, ...] = ()
    bad_rows: str = "refuse"
    label: str = "rows"
    total: int | None = None
    steps: tuple[Step, ...] = ()
    chats: bool = False  # whether the steps hand over conversations, whose turns may hold anything
    like: Row = field(default_factory=dict)
    seen: int = 0
    faults: list[Fault] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why rows were left out, all in all

    def one(self, row: Row) -> list[Row] | None:
        """The rows that one source row becomes, with the columns that go along; None where a step leaves it out."""
        changed = apply_steps(row, self.steps) if self.steps else row
        if changed is None:
            return None
        along = {name: changed.get(name) for name in self.kept}
        return [made | along for made in convert(changed, self.layout, self.to, self.system)]

    def first(self, rows: Iterable[Row]) -> Row:
        """The first row that comes out, which shows the columns of all; empty where none does."""
        for row in rows:
            with suppress(DataError):
                self.like = next(iter(self.one(row) or ()), {})
            if self.like:
                break
        return self.like

    def nothing_left(self, count: int) -> Fault:
        """The fault of rows of which none comes out, with the reasons."""
        why = "".join(f", {number} because {reason}" for reason, number in self.reasons.items())
        fix = "another dataset, or other rows: dataset.path=<file, or org/name>"
        return Fault(self.label, f"none of {count} rows is left{why}", "at least one", fix)

    def batch(self, columns: Mapping[str, list], numbers: Sequence[int]) -> dict[str, list]:
        """The converted batch; ``numbers`` are the numbers of its rows in messages."""
        made: list[Row] = []
        cells = zip(*columns.values(), strict=True)
        for number, values in zip(numbers, cells, strict=True):
            made += self._try(dict(zip(columns, values, strict=True)), number)
        self.seen += len(numbers)
        if self.total is None or self.seen >= self.total:
            self._settle()
        return {name: [row[name] for row in made] for name in self.like}

    def _try(self, row: Row, number: int) -> list[Row]:
        try:
            made = self.one(row)
            if made is None:
                self.left_out["dataset.map gave None"] += 1
                return []
            for new in made:
                for name in ("prompt", "completion", "chosen"):
                    is_chat = isinstance(self.like.get(name), list)
                    if isinstance(new.get(name), list) != is_chat:
                        kind = "conversations" if is_chat else "plain text"
                        raise _bad(name, _shown(new.get(name)), f"{kind}, as in the rows before")
        except DataError as error:  # its fault gets the row's number, and the column that plays the role
            fault, columns = error.faults[0], self.layout.columns
            role = fault.where.split("[")[0]
            column = columns.get(role) or columns.get(TWINS.get(role, ""), role)
            where = f"{self.label} row {number}, {column}{fault.where.removeprefix(role)}"
            self.faults.append(replace(fault, where=where))
            return []
        if not made:
            pair = self.layout.form == "preference"
            self.left_out["chosen equals rejected" if pair else "the label is false"] += 1
        return made

    def _settle(self) -> None:
        """Say what was left out, and raise what is refused."""
        for reason, count in self.left_out.items():
            log.warning("%s: %d rows left out: %s", self.label, count, reason)
        self.reasons += self.left_out
        self.left_out.clear()
        faults, self.faults = self.faults, []
        if not faults:
            return
        of = f" of {self.total}" if self.total is not None else ""
        more = f", the first {SHOWN} are below" if len(faults) > SHOWN else ""
        fix = "mend them, or leave them out with dataset.bad_rows=drop"
        summary = Fault(self.label, f"{len(faults)}{of} rows are bad{more}", f"{self.layout.form} rows", fix)
        error = DataError([summary, *faults[:SHOWN]])
        if self.bad_rows != "drop":
            raise error
        log.warning("left out, because dataset.bad_rows=drop:\n%s", error)
