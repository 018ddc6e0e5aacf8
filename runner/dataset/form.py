"""The forms of rows: one record of each in ``form.yaml``, which everything that knows of forms asks.

A row goes two hops. Its form reads it from the columns that play its roles, and it is canonical: one key per role, and
all of it conversations or all of it text. Then one arrow takes it to the form of a trainer, whose rows have the same
keys. Rows that cannot be meant, and rows that TRL would silently take for something else, are refused.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from math import isfinite
from typing import Any, Literal, TypeGuard, get_args

from runner.dataset.step import Cells, Row
from runner.errors import DataError, Fault, fault
from runner.io.turns import INSTRUCTING, THOUGHTS, Join, inline_thoughts, join_turns, text_of
from runner.schema.text import read_tables

Turns = list[dict[str, Any]]
# Text in `prompt` or `completion` is continued as it stands; in `input` or `target` it is a turn of a conversation.
Role = Literal[
    "prompt", "completion", "chosen", "rejected", "label", "messages", "system", "input", "target", "text", "margin",
    "reference", "input_ids", "labels", "attention_mask", "completion_mask", "assistant_masks", "chosen_ids",
    "rejected_ids", "images", "history", "context",
]  # fmt: skip
ROLES = get_args(Role)
RoleColumns = Mapping[Role, str]  # the column that plays each role
TWINS = {"prompt": "input", "completion": "target"}
SPOKEN = ("messages", "prompt", "completion", "chosen", "rejected")  # keys of a canonical row that may hold turns
SPEAKERS = {name: name for name in ("system", "developer", "user", "assistant", "tool")}
SPEAKERS |= {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
CALLING = ("function_call", "tool_call")  # whose text is JSON of one call or several
SPEAKERS |= dict.fromkeys(CALLING, "assistant")
SPEAKERS |= dict.fromkeys(("observation", "function", "tool_response", "ipython"), "tool")
# What a turn may carry besides its text, because templates render it, or a rule of weights reads it.
TURN_EXTRAS = ("tool_calls", "tool_call_id", "name", *THOUGHTS, "weight")
TURN_KEYS = frozenset({"role", "from", "content", "value", "function_call", *TURN_EXTRAS})  # that are read
PART_KEYS = frozenset({"type", "text", "value", "cache_control"})  # of a part of a turn that is text
PARAMETERS = ("arguments", "parameters")  # the keys under which a call holds what it asks with


@dataclass(frozen=True)
class RowForm:
    """A form of rows: the roles that its columns play, the way it is read, and what its rows can become.

    ``needs`` has for each key of its canonical rows the roles that stand in for each other, the key first; ``also`` are
    those that it reads where they are there. ``known_as`` has others' names for columns of roles, the first being meant
    that are all there. ``read`` makes a canonical row of the cells by role, an empty one where it teaches
    nothing. ``becomes`` has an arrow to each form that a trainer takes, and to ``answer``, which metrics read: to a
    row, to two of a pair, or, as ``left_out`` says, to none. ``answers`` are the keys of what is learnt to write.
    """

    needs: Sequence[Sequence[str]]
    answers: Sequence[str]
    read: Callable[[Row], Row]
    becomes: Mapping[str, Callable[[Row], list[Row]]]
    also: Sequence[Sequence[str]] = ()
    known_as: Sequence[Mapping[str, str]] = ()
    left_out: str = ""


@dataclass(frozen=True)
class RowLayout:
    """The way to read the rows of one source: their raw form, and the column that plays each role.

    ``left_out`` are columns with the name of a role which they cannot play, as it was said.
    """

    form: str
    columns: Mapping[str, str]
    left_out: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.form} ({self.by_role})"

    @property
    def by_role(self) -> str:
        """The column of each role, as one types them."""
        return ", ".join(f"{role}={name}" for role, name in self.columns.items())


# --- Cells --------------------------------------------------------------------------------------
def _bad(where: str, found: str, expected: str = "", fix: str = "") -> DataError:
    return DataError(Fault(where, found, expected, fix))


def _text(value: object, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise _bad(where, describe_cell(value), "text")
    if not empty and not value.strip():
        raise _bad(where, "empty text", "text")
    return value


def is_finite_number(value: Any) -> bool:
    """True for a finite number, also one in text, as csv has them."""
    with suppress(TypeError, ValueError):
        return not isinstance(value, bool) and isfinite(float(value))
    return False


def describe_cell(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def is_conversation(value: object) -> TypeGuard[Turns]:
    """True for a list of turns; a list of texts is none."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def to_turns(value: object, where: str) -> Turns:
    """A conversation as turns of role and content, read from role/content or from/value, also from JSON of them."""
    if isinstance(value, str):  # as a cell of CSV holds turns
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not is_conversation(value):
        raise _bad(where, describe_cell(value), "a list of turns")
    turns = []
    for index, turn in enumerate(value):
        if not isinstance(turn, Mapping):
            raise _bad(f"{where}[{index}]", describe_cell(turn), "a turn with role and content")
        speaker = turn.get("role") or turn.get("from")
        if (role := SPEAKERS.get(str(speaker).lower())) is None:
            raise _bad(f"{where}[{index}].role", describe_cell(speaker), "one of " + ", ".join(SPEAKERS))
        extras = {key: turn[key] for key in TURN_EXTRAS if turn.get(key) is not None}
        place = f"{where}[{index}]"
        content = turn.get("value") if turn.get("content") is None else turn["content"]
        if str(speaker).lower() in CALLING:
            extras["tool_calls"], content = _read_calls(content, f"{place}.content"), ""
        elif "tool_calls" in extras:
            extras["tool_calls"] = _read_calls(extras["tool_calls"], f"{place}.tool_calls")
        elif turn.get("function_call"):  # as OpenAI wrote a call before there were several
            extras["tool_calls"] = _read_calls(turn["function_call"], f"{place}.function_call")
        if not extras.get("tool_calls", True):
            del extras["tool_calls"]
        if content is None and "tool_calls" in extras:
            content = ""  # a turn that only calls a tool says nothing
        if is_conversation(content):  # some parts may be the text itself
            content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        for number, part in enumerate(content if is_conversation(content) else []):
            if not isinstance(part, Mapping):
                raise _bad(f"{place}.content[{number}]", describe_cell(part), "a part with type and text")
        if is_conversation(content) and all(isinstance(text, str) for text in map(part_text, content)):
            content = "".join(map(part_text, content))  # given in parts, all of them text
        elif is_conversation(content):  # images are text already, namely their marks
            for number, part in enumerate(content):
                if not isinstance(part_text(part), str):
                    found = f"a part of the type {part.get('type')!r}"
                    fix = "dataset.map._target_=<your function that writes it as text, as tool_calls, or as a turn>"
                    raise _bad(f"{place}.content[{number}]", found, "a text or an image", fix)
        turns.append({"role": role, "content": _text(content, f"{place}.content", empty=True)} | extras)
    return turns


def part_text(part: Cells) -> Any:
    """The text of a part of a turn, which some write as its ``value``; None where it is no text."""
    return part.get("value") if part.get("text") is None and part.get("type") == "text" else part.get("text")


def _read_calls(value: object, where: str) -> list[dict[str, Any]]:
    """Calls of tools in one writing, from a list of them, one alone, or JSON of either."""
    calls = value
    if isinstance(value, str):
        calls = None
        with suppress(ValueError, RecursionError):
            calls = json.loads(value)
    calls = [calls] if isinstance(calls, Mapping) else calls
    if isinstance(calls, list):
        return [_read_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]
    raise _bad(where, describe_cell(value), "JSON of a call with name and arguments, or of several")


def _read_call(call: object, where: str) -> dict[str, Any]:
    """A call with its arguments as a mapping, where their text is JSON of one."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _bad(where, describe_cell(call), "a call with name and arguments")
    arguments: Any = next((function[key] for key in PARAMETERS if function.get(key) is not None), {})
    if isinstance(arguments, str):
        text, arguments = arguments, None
        with suppress(ValueError, RecursionError):
            arguments = json.loads(text or "{}")
    if not isinstance(arguments, Mapping):  # which would be JSON in JSON where a template writes it
        given = next(function[key] for key in PARAMETERS if function.get(key) is not None)
        raise _bad(f"{where}.arguments", describe_cell(given), "a mapping, or JSON of one")
    around = {key: value for key, value in call.items() if value is not None and "function" in call}
    return {**around, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _one_turn(text: str, role: str) -> Turns:
    return [{"role": role, "content": text}]


def _side(cells: Cells, name: str) -> str | Turns:
    where = TWINS[name] if TWINS[name] in cells else name
    value = cells[where]
    if where == "target":
        value = _first_answer(value)
    history = _read_history(cells["history"]) if name == "prompt" and "history" in cells else None
    if isinstance(value, list):
        return (history or []) + to_turns(value, where)
    text = _text(value, where, empty=name == "completion")
    if where == name and history is None:
        if name == "prompt" and cells.get("context"):
            makes_turns = "dataset.columns.input=<column> dataset.columns.target=<column>"
            raise _bad("context", "a text beside plain text, which has no place for it", "a question", makes_turns)
        return text
    if name == "prompt" and cells.get("context"):  # the input below an instruction, if it has one
        text += "\n\n" + _text(cells["context"], "context")
    return (history or []) + _one_turn(text, "user" if name == "prompt" else "assistant")


def _first_answer(value: Any) -> Any:
    """The first of several answers to a question, also as SQuAD lists them; one alone as it is."""
    texts = value.get("text", value) if isinstance(value, Mapping) else value
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return texts[0] if texts else None
    return texts


def _read_history(value: object) -> Turns:
    """The turns before a prompt, given as pairs of what was asked and answered, or as turns."""
    if is_conversation(value):
        return to_turns(value, "history")
    turns: Turns = []
    pairs = value if isinstance(value, list) else [value]
    for index, pair in enumerate([] if value is None else pairs):
        where = f"history[{index}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise _bad(where, describe_cell(pair), "a pair of what was asked and answered", "dataset.without=[history]")
        turns += _one_turn(_text(pair[0], where), "user") + _one_turn(_text(pair[1], where), "assistant")
    return turns


def _alike(prompt: str | Turns, *answers: str | Turns) -> tuple[Any, ...]:
    if isinstance(prompt, str) and all(isinstance(answer, str) for answer in answers):
        return prompt, *answers
    turns = [_one_turn(side, "assistant") if isinstance(side, str) else side for side in answers]
    return (_one_turn(prompt, "user") if isinstance(prompt, str) else prompt), *turns


def _check_answer(answer: str | Turns, where: str, *, empty: bool = False) -> None:
    if isinstance(answer, str):
        _text(answer, where, empty=empty)
        return
    last = answer[-1]
    if last["role"] != "assistant":
        raise _bad(where, f"a conversation that ends with the {last['role']}", "one that ends with the assistant")
    if not empty and not last["content"].strip() and not last.get("tool_calls"):
        raise _bad(where, "empty text from the assistant", "text")


# --- Raw to canonical ---------------------------------------------------------------------------
def _read_exchange(cells: Row) -> Row:
    label = cells.get("label", True)
    if isinstance(label, str):
        label = {"true": True, "1": True, "false": False, "0": False}.get(label.lower(), label)
    if label not in (0, 1):  # True and False equal them
        raise _bad("label", describe_cell(label), "true or false")
    prompt, completion = _alike(_side(cells, "prompt"), _side(cells, "completion"))
    # An empty answer judged bad teaches something; one judged good teaches silence.
    _check_answer(completion, "completion", empty=not label)
    row = {"prompt": prompt, "completion": completion}
    return row | {"label": bool(label)} if "label" in cells else row


def _read_judged(cells: Row) -> Row:
    """A conversation and a label of its last turn, as prompt and completion."""
    *prompt, last = to_turns(cells["messages"], "messages")
    if not prompt:
        raise _bad("messages", "an answer alone", "something to answer before it")
    return _read_exchange({"prompt": prompt, "completion": [last], "label": cells["label"]})


def _read_preference(cells: Row) -> Row:
    """Prompt, chosen and rejected, also where the prompt is repeated in both or stands nowhere; none of equals."""
    request = cells.get("input")
    if isinstance(request, Mapping):  # as OpenAI's preferences have it
        if request.get("tools"):
            fix = "dataset.map._target_=<your function that makes them a column tools>"
            raise _bad("input", "tools inside of the input", "turns alone", fix)
        cells = {**cells, "input": request.get("messages")}
    chosen, rejected = cells["chosen"], cells["rejected"]
    if isinstance(chosen, list) != isinstance(rejected, list):
        raise _bad("rejected", "text beside a conversation, or the reverse", "two of a kind")
    prompt = _side(cells, "prompt") if {"prompt", "input"} & set(cells) else None
    if isinstance(chosen, list):
        turns = to_turns(chosen, "chosen"), to_turns(rejected, "rejected")
        is_listed = isinstance(cells.get("prompt", cells.get("input")), list) or bool(cells.get("history"))
        parts = _split_turns(prompt, *turns, listed=is_listed)
    else:
        texts = _text(chosen, "chosen"), _text(rejected, "rejected", empty=True)
        parts = _split_text(*texts) if prompt is None else _alike(prompt, *texts)
    row = _with_margin(dict(zip(("prompt", "chosen", "rejected"), parts, strict=True)), cells)
    if "reference" in cells:
        row["reference"] = cells["reference"]  # which is read where it is learnt from
    _check_answer(row["chosen"], "chosen")
    _check_answer(row["rejected"], "rejected", empty=True)
    return row if row["chosen"] != row["rejected"] else {}


def _split_turns(
    prompt: str | Turns | None, chosen: Turns, rejected: Turns, *, listed: bool
) -> tuple[Turns, Turns, Turns]:
    """The turns that both conversations open with are the prompt; without any, the given one is.

    Each conversation keeps its last turn, also where both are equal, and no prompt ends with the
    assistant. A given text repeats the shared turns; given turns (``listed``) may precede them, or end with them.
    """
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    while shared and chosen[shared - 1]["role"] == "assistant":
        shared -= 1
    opening = chosen[:shared]
    if not opening and prompt is None:
        raise DataError(fault("dataset.no_shared_prompt", found="conversations that share no first turn"))
    given = _one_turn(prompt, "user") if isinstance(prompt, str) else prompt or []
    if opening and given[-len(opening) :] == opening:
        opening = given  # which may have a system turn, or a history, before what is shared
    elif not (opening and (not listed or given[-1] in opening)):
        opening = given + opening
    return opening, chosen[shared:], rejected[shared:]


def _split_text(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Two texts cut where their answers begin: after a last shared ``Assistant:``, else at a word.

    The texts alone cannot say where the prompt ends if the answers begin alike. Whole words on the wrong side weigh
    nothing in the difference that preferences are learnt from; half a word would change the tokens, so none is cut.
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
        raise DataError(fault("dataset.no_shared_prompt", found="texts that share no beginning"))
    return chosen[:cut], chosen[cut:], rejected[cut:]


def _read_tokens(cells: Row) -> Row:
    """Sequences of whole numbers: those of one text of one length, those of a pair each of its own."""
    for name, value in cells.items():
        if name != "margin" and not (isinstance(value, list) and value and all(type(each) is int for each in value)):
            raise _bad(name, describe_cell(value), "a list of whole numbers")
    lengths = {name: len(value) for name, value in cells.items() if name != "margin"}
    if "input_ids" in lengths and len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} of {length}" for name, length in lengths.items())
        raise _bad("input_ids", found, "as many of each as there are tokens")
    return _with_margin(cells, cells)


def _with_margin(row: Row, cells: Row) -> Row:
    if "margin" in cells and not is_finite_number(cells["margin"]):
        raise _bad("margin", describe_cell(cells["margin"]), "a number", "dataset.without=[margin]")
    return row | {"margin": float(cells["margin"])} if "margin" in cells else row


# --- Canonical to trainer form ------------------------------------------------------------------
def _imitate(row: Row) -> list[Row]:
    good = row["chosen"] if "chosen" in row else row["completion"]
    return [{"prompt": row["prompt"], "completion": good}] if row.get("label", True) else []


def _join(row: Row) -> list[Row]:
    found = []
    for made in _imitate(row):
        prompt, answer = made["prompt"], made["completion"]
        if isinstance(prompt, str):
            prompt, answer = _one_turn(prompt.strip(), "user"), _one_turn(answer.strip(), "assistant")
        found.append({"messages": prompt + answer})
    return found


def _keep_three(row: Row) -> list[Row]:
    given = row["reference"]
    answer = to_turns(given, "reference") if isinstance(given, list) else _text(given, "reference")
    prompt, chosen, rejected, answer = _alike(row["prompt"], row["chosen"], row["rejected"], answer)
    opening = prompt if isinstance(prompt, str) else [turn for turn in prompt if turn["role"] != "system"]
    answer = answer[len(opening) :] if answer[: len(opening)] == opening else answer
    _check_answer(answer, "reference")
    return [{"prompt": prompt, "chosen": chosen, "rejected": rejected, "reference": answer}]


def _check_turns(row: Row) -> list[Row]:
    _check_answer(row["messages"], "messages")
    return [row]


def _ask_last(row: Row) -> list[Row]:
    *opening, last = row["messages"]
    if last["role"] != "assistant":  # nobody has answered, so all of it is a prompt
        return [{"prompt": row["messages"], "reference": None}]
    if not opening:
        raise _bad("messages", "an answer alone", "something to answer before it")
    return [{"prompt": opening, "reference": last["content"]}]


def _know_last(row: Row) -> list[Row]:
    *prompt, answer = row["messages"]
    if not prompt or answer["role"] != "assistant":
        return []
    return [{"prompt": prompt, "completion": [answer], "label": True}]


# --- The forms ----------------------------------------------------------------------------------
READ: Mapping[str, Callable[[Row], Row]] = {
    **{each.__name__[6:]: each for each in (_read_preference, _read_exchange, _read_judged, _read_tokens)},
    "messages": lambda cells: {"messages": to_turns(cells["messages"], "messages")},
    "text": lambda cells: {"text": _text(cells["text"], "text")},
    "prompt": lambda cells: {"prompt": _side(cells, "prompt")},
}
ARROWS: Mapping[str, Callable[[Row], list[Row]]] = {
    **{each.__name__[1:]: each for each in (_imitate, _join, _keep_three, _check_turns, _ask_last, _know_last)},
    "ask": lambda row: [
        {"prompt": row["prompt"], "reference": next((text_of(good["completion"]) for good in _imitate(row)), None)}
    ],
    "keep": lambda row: [row],
    "drop_third": lambda row: [{key: value for key, value in row.items() if key != "reference"}],
    "judge": lambda row: [  # both answers of a pair, each with its prompt and whether it is good
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"} for side in ("chosen", "rejected")
    ],
    "know": lambda row: [row | {"label": True}],  # a right answer with its prompt, or a text
}
FORMS = {  # in the order of recognition
    name: RowForm(**own | {"read": READ[own["read"]], "becomes": {to: ARROWS[by] for to, by in own["becomes"].items()}})
    for name, own in read_tables(__file__).items()
}
# The raw forms that can feed each form that is asked for; the last of these feeds no trainer.
FORMS_FOR = {
    to: tuple(raw for raw, form in FORMS.items() if to in form.becomes)
    for first in (FORMS["preference"], *FORMS.values())  # pairs become most of them, in the order of messages
    for to in first.becomes
}
TRAINER_FORMS = tuple(to for to in FORMS_FOR if to != "answer")


def fits(raw: str | None, trainer: str | None) -> bool:
    """True where rows of a raw form can feed a trainer form; an unknown one (None) is not refused."""
    return trainer is None or raw not in FORMS or trainer in FORMS[raw].becomes


def roles_without_use(form: str, to: str) -> tuple[str, ...]:
    """The roles that rows of a form have and that a trainer form leaves out, though they are of the rows' own form."""
    if form not in ("triple", "preference") or not to:
        return ()
    left = ("reference",) if form == "triple" and to != "triple" else ()
    return (*left, "rejected", "margin") if to in ("demonstration", "messages", "prompt") else left


def answer_columns(row: Cells) -> tuple[str, ...]:
    """The columns of a row in a trainer's form that hold what is learnt to write; of a pair two, of a prompt none."""
    there = {name for name, value in row.items() if value is not None}
    return next((tuple(form.answers) for form in FORMS.values() if form.answers and there.issuperset(form.answers)), ())


def convert(
    row: Cells,
    layout: RowLayout,
    to: str,
    system: str | None = None,
    *,
    join: Join | None = None,
    thoughts: str | None = None,
) -> list[Row]:
    """The rows of a trainer form that one raw row becomes; none where it teaches nothing in this form.

    ``system`` opens each conversation that has no system turn of its own; then turns are joined (``join_turns``), and
    ``thoughts`` written ``inline``. Raises DataError at the role that is wrong.
    """
    form, cells = FORMS[layout.form], {role: row.get(column) for role, column in layout.columns.items()}
    # A side that is one turn is a conversation of it.
    is_turn = {role: isinstance(cell, Mapping) and bool({"role", "from"} & set(cell)) for role, cell in cells.items()}
    cells = {role: [cell] if is_turn[role] else cell for role, cell in cells.items()}
    system = cells.pop("system", None) or system
    if (canonical := form.read(cells)) and system:
        key = next(key for key in ("messages", "prompt", "text") if key in canonical)
        turns = canonical[key]
        if isinstance(turns, str):
            raise DataError(fault("dataset.system_beside_text", key=key))
        if turns[0]["role"] not in INSTRUCTING:
            canonical |= {key: _one_turn(_text(system, "system"), "system") + turns}
    for name in SPOKEN:
        turns = canonical.get(name)
        if is_conversation(turns):
            turns = inline_thoughts(turns) if thoughts == "inline" else turns
            canonical = canonical | {name: join_turns(turns, join) if join else turns}
    return form.becomes[to](canonical) if canonical else []
