"""Canonical rows, made of the cells that play the roles of a raw form: one key per role.

All of a canonical row is text, or all of it is conversations.
"""

import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.dataset.conversation import (
    Side,
    Turns,
    alike,
    bad_cell,
    check_learnt,
    describe_cell,
    is_conversation,
    is_finite_number,
    one_turn,
    read_text,
    to_turns,
)
from runner.dataset.form import TWINS, Cells, Reading, Row
from runner.errors import DataError, Fault
from runner.schema.literal import to_list

LABELS = {"true": True, "1": True, "false": False, "0": False}
SEPARATOR = "context_separator"  # the cell with what stands between a question and its context
LAST_SPEAKER = "\n\nAssistant:"  # before the answer, in dialogues that are written as one text


@dataclass(frozen=True)
class Comparison:
    """A prompt and two answers to it."""

    prompt: Side
    chosen: Side
    rejected: Side


def read_exchange(cells: Cells) -> Row:
    """A prompt and its answer, and the label where there is one."""
    label = cells.get("label", True)
    if isinstance(label, str):
        label = LABELS.get(label.lower(), label)
    if label not in (0, 1):  # True and False equal them
        raise bad_cell("label", describe_cell(label), "true or false")
    prompt, completion = alike(_read_side(cells, "prompt"), _read_side(cells, "completion"))
    # An empty answer judged bad teaches something; one judged good teaches silence.
    check_learnt(completion, "completion", empty=not label)
    row: Row = {"prompt": prompt, "completion": completion}
    if "label" in cells:
        row["label"] = bool(label)
    return row


def read_judged(cells: Cells) -> Row:
    """A conversation and a label of its last turn, as prompt and completion."""
    *prompt, last = to_turns(cells["messages"], "messages")
    if not prompt:
        raise bad_cell("messages", "an answer without a prompt", "a question before it")
    return read_exchange({"prompt": prompt, "completion": [last], "label": cells["label"]})


def read_messages(cells: Cells) -> Row:
    """A conversation whose last turn is learnt."""
    return {"messages": to_turns(cells["messages"], "messages")}


def read_plain_text(cells: Cells) -> Row:
    """A text that is learnt from its beginning."""
    return {"text": read_text(cells["text"], "text")}


def read_prompt(cells: Cells) -> Row:
    """A prompt alone, which a policy answers."""
    return {"prompt": _read_side(cells, "prompt")}


# --- Prompts and answers ------------------------------------------------------------------------
def _read_side(cells: Cells, name: str) -> Side:
    """The ``prompt`` or the ``completion``, from the column of that role or of its twin.

    In front of a prompt stands its history, below it the context, both of which make it a turn.
    """
    where = TWINS[name] if TWINS[name] in cells else name
    value = cells[where]
    if where == "target":
        value = _first_answer(value)
    is_prompt = name == "prompt"
    history = _read_history(cells["history"]) if is_prompt and "history" in cells else None
    if isinstance(value, list):
        return (history or []) + to_turns(value, where)
    text = read_text(value, where, empty=not is_prompt)
    context = cells.get("context") if is_prompt else None
    if where == name and history is None:
        if context:
            raise bad_cell(
                where="context",
                found="a text in addition to plain text, which has no place for it",
                expected="a question",
                fix="dataset.columns.input=<column> dataset.columns.target=<column>",
            )
        return text
    if context:
        text += cells.get(SEPARATOR, "\n\n") + read_text(context, "context")
    role = "user" if is_prompt else "assistant"
    return (history or []) + one_turn(text, role)


def _first_answer(value: Any) -> Any:
    """The first of several answers to a question, also as SQuAD lists them; one alone as it is."""
    answers = value
    if isinstance(value, Mapping):
        answers = value.get("text", value)
    if isinstance(answers, list) and all(isinstance(text, str) for text in answers):
        return answers[0] if answers else None
    return answers


def _read_history(value: object) -> Turns:
    """The turns before a prompt, from pairs of a question and its answer, or from turns."""
    if is_conversation(value):
        return to_turns(value, "history")
    turns: Turns = []
    if value is None:
        return turns
    for index, pair in enumerate(to_list(value)):
        where = f"history[{index}]"
        if not isinstance(pair, list) or len(pair) != 2:
            expected = "a pair of question and answer"
            raise bad_cell(where, describe_cell(pair), expected, "dataset.without=[history]")
        turns += one_turn(read_text(pair[0], where), "user")
        turns += one_turn(read_text(pair[1], where), "assistant")
    return turns


# --- Pairs --------------------------------------------------------------------------------------
def read_preference(cells: Cells) -> Row:
    """Prompt, chosen and rejected; an empty row where both answers are equal.

    The prompt may also be repeated in both answers, or stand nowhere else.
    """
    request = cells.get("input")
    if isinstance(request, Mapping):  # a whole request, as OpenAI's preferences have it
        if request.get("tools"):
            raise bad_cell(
                where="input",
                found="tools inside of the input",
                expected="turns alone",
                fix="dataset.map._target_=<your function that makes them a column tools>",
            )
        cells = {**cells, "input": request.get("messages")}
    chosen = cells["chosen"]
    rejected = cells["rejected"]
    if isinstance(chosen, list) != isinstance(rejected, list):
        found = "a text on one side and a conversation on the other"
        raise bad_cell("rejected", found, "two texts or two conversations")
    prompt = None
    if "prompt" in cells or "input" in cells:
        prompt = _read_side(cells, "prompt")
    if isinstance(chosen, list):
        question = cells.get("prompt", cells.get("input"))
        is_listed = isinstance(question, list) or bool(cells.get("history"))
        good_turns = to_turns(chosen, "chosen")
        bad_turns = to_turns(rejected, "rejected")
        pair = _split_turns(prompt, good_turns, bad_turns, listed=is_listed)
    else:
        good_text = read_text(chosen, "chosen")
        bad_text = read_text(rejected, "rejected", empty=True)
        if prompt is None:
            pair = _split_texts(good_text, bad_text)
        else:
            pair = Comparison(*alike(prompt, good_text, bad_text))
    row: Row = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
    row = _with_margin(row, cells)
    if "reference" in cells:
        row["reference"] = cells["reference"]  # which is read where it is learnt from
    check_learnt(pair.chosen, "chosen")
    check_learnt(pair.rejected, "rejected", empty=True)
    return row if pair.chosen != pair.rejected else {}


def _split_turns(
    prompt: Side | None, chosen: Turns, rejected: Turns, *, listed: bool
) -> Comparison:
    """The turns that both conversations open with as the prompt, or else the given prompt.

    Each conversation keeps its last turn, also where both are equal, and no prompt ends with the
    assistant. A given text repeats the shared turns; given turns (``listed``) may precede them, or
    end with them.
    """
    shared = 0
    for chosen_turn, rejected_turn in zip(chosen[:-1], rejected[:-1], strict=False):
        if chosen_turn != rejected_turn:
            break
        shared += 1
    while shared and chosen[shared - 1]["role"] == "assistant":
        shared -= 1
    opening = chosen[:shared]
    if not opening and prompt is None:
        raise DataError(_no_shared_prompt("conversations that share no first turn"))
    asked = one_turn(prompt, "user") if isinstance(prompt, str) else prompt or []
    if opening and asked[-len(opening) :] == opening:
        # The prompt may have a system turn, or a history, before what is shared.
        opening = asked
    else:
        is_repeated = bool(opening) and (not listed or asked[-1] in opening)
        if not is_repeated:
            opening = asked + opening
    return Comparison(opening, chosen[shared:], rejected[shared:])


def _split_texts(chosen: str, rejected: str) -> Comparison:
    """Two texts cut where their answers begin: after a last shared ``Assistant:``, else at a word.

    The texts alone cannot say where the prompt ends if the answers begin alike. Whole words on the
    wrong side weigh nothing in the difference that preferences are learnt from; half a word would
    change the tokens, so none is cut.
    """
    if chosen == rejected:
        return Comparison("", chosen, rejected)
    shared = os.path.commonprefix([chosen, rejected])  # noqa: RUF071 (of letters, not of folders)
    if LAST_SPEAKER in shared:
        cut = shared.rindex(LAST_SPEAKER) + len(LAST_SPEAKER)
    else:
        # Where one text only continues the other, the last shared word belongs to the answer.
        words = shared
        if shared in (chosen, rejected):
            words = shared.rstrip()
        cut = max(words.rfind(blank) for blank in " \n\t")
    if not shared[: max(cut, 0)].strip():
        raise DataError(_no_shared_prompt("texts that share no beginning"))
    return Comparison(chosen[:cut], chosen[cut:], rejected[cut:])


def _no_shared_prompt(answers: str) -> Fault:
    """The fault of two answers with nothing in common that could be their prompt."""
    return Fault(
        where="chosen",
        found=f"{answers}, but no prompt",
        expected="a prompt",
        fix="dataset.columns.prompt=<column>",
    )


def _with_margin(row: Cells, cells: Cells) -> Row:
    """The row with the margin of the cells as a number, where they have one."""
    if "margin" not in cells:
        return dict(row)
    margin = cells["margin"]
    if not is_finite_number(margin):
        raise bad_cell("margin", describe_cell(margin), "a number", "dataset.without=[margin]")
    return {**row, "margin": float(margin)}


# --- Tokens -------------------------------------------------------------------------------------
def read_tokens(cells: Cells) -> Row:
    """Sequences of whole numbers.

    Those of one text have one length; the two of a pair may differ.
    """
    lengths = {}
    for name, value in cells.items():
        if name == "margin":
            continue
        if (
            not isinstance(value, list)
            or not value
            or any(type(token) is not int for token in value)
        ):
            raise bad_cell(name, describe_cell(value), "a list of whole numbers")
        lengths[name] = len(value)
    if "input_ids" in lengths and len(set(lengths.values())) > 1:
        found = [f"{name} of {length}" for name, length in lengths.items()]
        raise bad_cell("input_ids", ", ".join(found), "as many of each as there are tokens")
    return _with_margin(cells, cells)


# An empty row is one that teaches nothing.
READERS: Mapping[Reading, Callable[[Cells], Row]] = {
    "exchange": read_exchange,
    "judged": read_judged,
    "messages": read_messages,
    "preference": read_preference,
    "prompt": read_prompt,
    "text": read_plain_text,
    "tokens": read_tokens,
}
