"""The forms of rows: one record of each, which everything that knows of forms asks.

A row goes two hops. Its form reads it from the columns that play its roles (``canonical_row``), and
it is canonical: one key per role, and all of it conversations or all of it text. Then one arrow
takes it to the form of a trainer (``trainer_row``), whose rows have the same keys. Rows that cannot
be meant, and rows that TRL would silently take for something else, are refused.

A new form is a record here, with its new roles in Role and, where rows are read or turned in a way
that is not there yet, a function in READERS or ARROWS. Nothing else changes: its documents are the
table and the roles in conf/dataset/README.md and conf/dataset/hub.yaml, its tests the tables of
tests/test_convert.py (CELLS, FORMS_FOR, fixes). A raw list, as of good answers, is spread by its
arrows over several rows. What a reward gets as reference is one text, or None. The first role of a
group in ``needs`` names a column that no reward can ask for, since its rows are of that form. A
form that only a trainer takes is a name in the ``becomes`` of those that can be turned into it.
Only where a trainer's own row holds something else than one text or one conversation as an answer,
its tokens are made in model.encoding.encode_row and weighed in weigher.Weigher, and convert
compares it with the first row's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.schema.role import Role

Row = dict[str, Any]
Cells = Mapping[str, Any]  # a row that is only read

TWINS = {"prompt": "input", "completion": "target"}
# Keys of a canonical row that may hold turns.
SPOKEN = ("messages", "prompt", "completion", "chosen", "rejected")

# The ways to make a canonical row of the cells by role: functions in canonical_row.READERS.
Reading = Literal["exchange", "judged", "messages", "preference", "prompt", "text", "tokens"]
# The ways from a canonical row to rows of a trainer: functions in trainer_row.ARROWS.
Arrow = Literal[
    "ask",
    "ask_last",
    "check_turns",
    "drop_reference",
    "imitate",
    "join",
    "judge_both",
    "keep",
    "keep_reference",
    "know",
    "know_last",
]
# Roles that stand in for each other, the key of canonical rows first.
Group = tuple[Role, ...]


@dataclass(frozen=True)
class RowForm:
    """A form of rows: the roles of its columns, the way it is read, and what it can become."""

    needs: Sequence[Group]  # one column of each group
    answers: Sequence[str]  # the keys of what is learnt to write
    read: Reading
    # The arrow to each form that a trainer takes, and to ``answer``, which metrics read. One row
    # becomes one, two of a pair, or none, as ``left_out`` says.
    becomes: Mapping[str, Arrow]
    also: Sequence[Group] = ()  # groups that it reads where they are there
    # Names that others give to columns of roles; the first whose columns are all there counts.
    known_as: Sequence[Mapping[Role, str]] = ()
    left_out: str = ""  # why some rows become none


@dataclass(frozen=True)
class RowLayout:
    """The way to read the rows of one source: their raw form, and the column of each role."""

    form: str
    columns: Mapping[str, str]
    # Columns with the name of a role that they cannot play; a warning has said so.
    left_out: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.form} ({self.by_role})"

    @property
    def by_role(self) -> str:
        """The column of each role, as one types them."""
        return ", ".join(f"{role}={name}" for role, name in self.columns.items())


QUESTION: Group = ("prompt", "input")
ANSWER: Group = ("completion", "target")
CONVERSATIONS: Sequence[Mapping[Role, str]] = (
    {"messages": "messages"},
    {"messages": "conversations"},
    {"messages": "conversation"},
)
QUESTIONS_OF_PAIRS: Sequence[Mapping[Role, str]] = (
    {"input": "input", "chosen": "preferred_output", "rejected": "non_preferred_output"},
    {"input": "instruction", "context": "input"},
    {"input": "instruction"},
    {"input": "input"},
    {"input": "question"},
    {"input": "query"},
)
EXCHANGES: Sequence[Mapping[Role, str]] = (
    {"prompt": "prompt", "input": "input", "target": "target"},
    {"input": "input", "target": "target"},
    {"input": "instruction", "target": "output", "context": "input"},
    {"input": "instruction", "target": "output"},
    {"input": "instruction", "target": "response", "context": "context"},
    {"input": "instruction", "target": "response"},
    {"input": "input", "target": "output"},
    {"input": "question", "target": "answer"},
    {"input": "question", "target": "answers"},
    {"input": "question", "target": "response"},
    {"input": "query", "target": "response"},
    {"input": "prompt", "target": "response"},
)

# In the order of recognition: what needs more columns comes first, and messages before
# prompt_completion, which would lose the earlier turns.
FORMS: Mapping[str, RowForm] = {
    "triple": RowForm(
        read="preference",
        needs=[("chosen",), ("rejected",), ("reference",)],
        also=[QUESTION, ("context",), ("history",), ("margin",)],
        known_as=QUESTIONS_OF_PAIRS,
        answers=["chosen", "rejected"],
        left_out="chosen equals rejected",
        becomes={
            "preference": "drop_reference",
            "triple": "keep_reference",
            "demonstration": "imitate",
            "messages": "join",
            "unpaired": "judge_both",
            "prompt": "ask",
            "answer": "judge_both",
        },
    ),
    "preference": RowForm(
        read="preference",
        needs=[("chosen",), ("rejected",)],
        also=[QUESTION, ("context",), ("history",), ("margin",)],
        known_as=QUESTIONS_OF_PAIRS,
        answers=["chosen", "rejected"],
        left_out="chosen equals rejected",
        becomes={
            "demonstration": "imitate",
            "messages": "join",
            "preference": "keep",
            "unpaired": "judge_both",
            "prompt": "ask",
            "answer": "judge_both",
        },
    ),
    "unpaired": RowForm(
        read="exchange",
        needs=[QUESTION, ANSWER, ("label",)],
        also=[("context",), ("history",)],
        answers=["completion"],
        left_out="the label is false",
        becomes={
            "demonstration": "imitate",
            "messages": "join",
            "unpaired": "keep",
            "prompt": "ask",
            "answer": "keep",
        },
    ),
    # A conversation and whether its last turn is good; without the label it is messages.
    "judged": RowForm(
        read="judged",
        needs=[("messages",), ("label",)],
        known_as=CONVERSATIONS,
        answers=["completion"],
        becomes={"unpaired": "keep", "answer": "keep"},
    ),
    "messages": RowForm(
        read="messages",
        needs=[("messages",)],
        known_as=CONVERSATIONS,
        answers=["messages"],
        left_out="it has no answer after a prompt",
        becomes={
            "demonstration": "check_turns",
            "messages": "check_turns",
            "prompt": "ask_last",
            "answer": "know_last",
        },
    ),
    "prompt_completion": RowForm(
        read="exchange",
        needs=[QUESTION, ANSWER],
        also=[("context",), ("history",)],
        known_as=EXCHANGES,
        answers=["completion"],
        becomes={
            "demonstration": "keep",
            "messages": "join",
            "prompt": "ask",
            "answer": "know",
        },
    ),
    "text": RowForm(
        read="text",
        needs=[("text",)],
        answers=["text"],
        becomes={"demonstration": "keep", "answer": "know"},
    ),
    "prompt": RowForm(
        read="prompt",
        needs=[QUESTION],
        also=[("context",), ("history",)],
        answers=[],
        becomes={"prompt": "keep"},
    ),
    # Rows that are tokens already; of several sequences each has a number per token.
    "tokens": RowForm(
        read="tokens",
        needs=[("input_ids",)],
        also=[("labels",), ("attention_mask",), ("completion_mask",), ("assistant_masks",)],
        answers=[],
        becomes={"demonstration": "keep"},
    ),
    "token_pair": RowForm(
        read="tokens",
        needs=[("chosen_ids",), ("rejected_ids",)],
        also=[("margin",)],
        answers=[],
        becomes={"preference": "keep"},
    ),
}


def _raw_forms_of_trainers() -> dict[str, tuple[str, ...]]:
    """The raw forms of each trainer form, in the order of recognition."""
    # Pairs become most trainer forms, in the order of messages.
    trainer_forms = list(FORMS["preference"].becomes)
    for form in FORMS.values():
        trainer_forms += form.becomes
    raw_forms = {}
    for trainer_form in dict.fromkeys(trainer_forms):
        names = [name for name, form in FORMS.items() if trainer_form in form.becomes]
        raw_forms[trainer_form] = tuple(names)
    return raw_forms


# The raw forms that can feed each form that is asked for; ``answer`` feeds no trainer.
FORMS_FOR = _raw_forms_of_trainers()
TRAINER_FORMS = tuple(name for name in FORMS_FOR if name != "answer")


def fits(raw: str | None, trainer: str | None) -> bool:
    """True where rows of a raw form can feed a trainer form.

    An unknown form (None) is not refused.
    """
    if raw is None or raw not in FORMS or trainer is None:
        return True
    return trainer in FORMS[raw].becomes


def roles_without_use(form: str, to: str) -> list[Role]:
    """The roles of a raw form that a trainer form leaves out, although they belong to the rows."""
    roles: list[Role] = []
    if form not in ("triple", "preference") or not to:
        return roles
    if form == "triple" and to != "triple":
        roles.append("reference")
    if to in ("demonstration", "messages", "prompt"):
        roles += ["rejected", "margin"]
    return roles


def answer_columns(row: Cells) -> tuple[str, ...]:
    """The columns of a row in a trainer's form that hold what is learnt to write.

    Of a pair there are two, of a prompt there is none.
    """
    columns = {name for name, value in row.items() if value is not None}
    for form in FORMS.values():
        if form.answers and columns.issuperset(form.answers):
            return tuple(form.answers)
    return ()
