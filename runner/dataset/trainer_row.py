"""Rows of a trainer's form, made of raw rows by way of canonical ones."""

from collections.abc import Callable, Mapping

from runner.dataset.canonical_row import READERS, SEPARATOR
from runner.dataset.conversation import (
    alike,
    bad_cell,
    check_learnt,
    is_conversation,
    one_turn,
    read_text,
    to_turns,
)
from runner.dataset.form import FORMS, SPOKEN, Arrow, Cells, Row, RowLayout
from runner.io.turns import INSTRUCTING, Join, inline_thoughts, join_turns, text_of


def convert(
    row: Cells,
    layout: RowLayout,
    to: str,
    system: str | None = None,
    *,
    join: Join | None = None,
    thoughts: str | None = None,
    context_separator: str | None = None,
) -> list[Row]:
    """The rows of a trainer form that one raw row becomes; none where it teaches nothing.

    ``system`` opens each conversation that has no system turn of its own; then turns are joined
    (``join_turns``), and ``thoughts`` written ``inline``. ``context_separator`` stands between a
    question and its context. Raises DataError at the role that is wrong.
    """
    form = FORMS[layout.form]
    cells: Row = {}
    for role, column in layout.columns.items():
        cell = row.get(column)
        # A side that is one turn is a conversation of it.
        if isinstance(cell, Mapping) and ("role" in cell or "from" in cell):
            cell = [cell]
        cells[role] = cell
    system = cells.pop("system", None) or system
    if context_separator is not None:
        cells[SEPARATOR] = context_separator.replace("\\n", "\n")
    canonical = READERS[form.read](cells)
    if not canonical:
        return []
    if system:
        canonical = _with_system(canonical, system)
    for name in SPOKEN:
        turns = canonical.get(name)
        if is_conversation(turns):
            if thoughts == "inline":
                turns = inline_thoughts(turns)
            if join:
                turns = join_turns(turns, join)
            canonical[name] = turns
    arrow = ARROWS[form.becomes[to]]
    return arrow(canonical)


def _with_system(canonical: Row, system: object) -> Row:
    """The row with a system turn first, where its conversation has none.

    Raises DataError for a row without a conversation.
    """
    for key in ("messages", "prompt", "text"):
        turns = canonical.get(key)
        if isinstance(turns, str):
            raise bad_cell(
                where=key,
                found="a system prompt for rows of plain text",
                expected="conversations",
                fix="dataset.columns.input=<column> (and .target) make conversations of prompts",
            )
        if turns:
            if turns[0]["role"] in INSTRUCTING:
                return canonical
            opening = one_turn(read_text(system, "system"), "system")
            return {**canonical, key: opening + turns}
    raise bad_cell(
        where="system",
        found="a system prompt for rows of tokens",
        expected="conversations",
        fix="dataset.system=null, or dataset.without=[system]",
    )


# --- Arrows -------------------------------------------------------------------------------------
def keep_row(row: Row) -> list[Row]:
    """The canonical row, which is what the trainer takes."""
    return [row]


def drop_reference(row: Row) -> list[Row]:
    """A pair without its third answer."""
    return [{name: value for name, value in row.items() if name != "reference"}]


def imitate(row: Row) -> list[Row]:
    """The good answer to the prompt, if there is one."""
    if not row.get("label", True):
        return []
    answer = row["chosen"] if "chosen" in row else row["completion"]
    return [{"prompt": row["prompt"], "completion": answer}]


def join_sides(row: Row) -> list[Row]:
    """The prompt and its good answer as one conversation."""
    conversations = []
    for exchange in imitate(row):
        prompt = exchange["prompt"]
        answer = exchange["completion"]
        if isinstance(prompt, str):
            prompt = one_turn(prompt.strip(), "user")
            answer = one_turn(answer.strip(), "assistant")
        conversations.append({"messages": prompt + answer})
    return conversations


def judge_both(row: Row) -> list[Row]:
    """Both answers of a pair, each with its prompt and whether it is good."""
    return [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for side in ("chosen", "rejected")
    ]


def keep_reference(row: Row) -> list[Row]:
    """A pair with a third answer to learn from; the prompt may be repeated in front of that."""
    reference = row["reference"]
    if isinstance(reference, list):
        reference = to_turns(reference, "reference")
    else:
        reference = read_text(reference, "reference")
    prompt, chosen, rejected, answer = alike(
        row["prompt"], row["chosen"], row["rejected"], reference
    )
    opening = prompt
    if not isinstance(prompt, str):
        opening = [turn for turn in prompt if turn["role"] != "system"]
    if answer[: len(opening)] == opening:
        answer = answer[len(opening) :]
    check_learnt(answer, "reference")
    return [{"prompt": prompt, "chosen": chosen, "rejected": rejected, "reference": answer}]


def ask(row: Row) -> list[Row]:
    """The prompt, and the text of the good answer for rewards that compare with it."""
    exchanges = imitate(row)
    reference = text_of(exchanges[0]["completion"]) if exchanges else None
    return [{"prompt": row["prompt"], "reference": reference}]


def know(row: Row) -> list[Row]:
    """A right answer with its prompt, or a text."""
    return [{**row, "label": True}]


def check_turns(row: Row) -> list[Row]:
    """A conversation that ends with something to learn."""
    check_learnt(row["messages"], "messages")
    return [row]


def ask_last(row: Row) -> list[Row]:
    """All turns but the last answer as the prompt, and that answer as the reference."""
    *opening, last = row["messages"]
    if last["role"] != "assistant":  # nobody has answered, so all of it is a prompt
        return [{"prompt": row["messages"], "reference": None}]
    if not opening:
        raise bad_cell("messages", "an answer without a prompt", "a question before it")
    return [{"prompt": opening, "reference": last["content"]}]


def know_last(row: Row) -> list[Row]:
    """The last answer with the turns before it as its prompt."""
    *prompt, answer = row["messages"]
    if not prompt or answer["role"] != "assistant":
        return []
    return [{"prompt": prompt, "completion": [answer], "label": True}]


ARROWS: Mapping[Arrow, Callable[[Row], list[Row]]] = {
    "ask": ask,
    "ask_last": ask_last,
    "check_turns": check_turns,
    "drop_reference": drop_reference,
    "imitate": imitate,
    "join": join_sides,
    "judge_both": judge_both,
    "keep": keep_row,
    "keep_reference": keep_reference,
    "know": know,
    "know_last": know_last,
}
