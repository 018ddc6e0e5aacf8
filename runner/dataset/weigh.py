"""The rules of the ``weight`` group: weights of messages, or of spans of letters, in the loss.

A rule is a function of the ``messages`` of a row, and of columns of the row that are its further
arguments without a default. What a weight does in the loss stands in
``training.sequence_objective``.
"""

import inspect
import itertools
import json
import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Json

from runner.dataset.conversation import is_conversation
from runner.dataset.form import Cells
from runner.dataset.loaded_rows import Rows
from runner.errors import DataError, Fault
from runner.schema.code import arguments_of
from runner.schema.ranges import NotNegative

Span = tuple[int, int, float]  # the first letter of a message, the one behind the last, the weight
Entry = float | tuple[float, Sequence[Span]]  # of one message; with spans, the weight of the rest
Rule = Callable[..., Sequence[Entry]]
Messages = Sequence[Cells]

SEEN_OF_STREAM = 100  # rows of a stream in which weights of turns are looked for


def answers(messages: Messages, weight: NotNegative = 1.0, rest: NotNegative = 0.0) -> list[Entry]:
    """The assistant's messages, and ``rest`` for all else."""
    entries: list[Entry] = []
    for turn in messages:
        entries.append(weight if turn["role"] == "assistant" else rest)
    return entries


def last_round(
    messages: Messages, weight: NotNegative = 1.0, rest: NotNegative = 0.0
) -> list[Entry]:
    """The assistant's messages after the last of the user, and ``rest`` for all else."""
    last_question = -1
    for index, turn in enumerate(messages):
        if turn["role"] == "user":
            last_question = index
    entries: list[Entry] = []
    for index, turn in enumerate(messages):
        is_last_answer = turn["role"] == "assistant" and index > last_question
        entries.append(weight if is_last_answer else rest)
    return entries


def pattern(
    messages: Messages,
    pattern: str,
    weight: NotNegative = 2.0,
    rest: NotNegative = 1.0,
    roles: Sequence[str] = ("assistant",),
) -> list[Entry]:
    """The matches of a regular expression in messages, and ``rest`` for all else.

    Only messages of these ``roles`` are searched.
    """
    search = re.compile(pattern)
    entries: list[Entry] = []
    for turn in messages:
        spans: list[Span] = []
        if turn["role"] in roles:
            for match in search.finditer(turn["content"]):
                spans.append((match.start(), match.end(), weight))
        entries.append((rest, spans))
    return entries


def by_column(messages: Messages, row: Cells, column: str = "weight") -> list[Entry]:
    """A number in a column of the rows, for all of the row."""
    if column not in row:
        fault = Fault(
            where="weight.column",
            found=f"the rows have no column {column!r}",
            expected=f"one of {', '.join(row)}",
        )
        raise DataError(fault)
    return [row[column]] * len(messages)


def by_message(messages: Messages, key: str = "weight", default: NotNegative = 1.0) -> list[Entry]:
    """A number that messages carry under ``key``: ``{"role": ..., "content": ..., "weight": 0}``.

    Without one the assistant's weigh ``default``, and those of others nothing.
    """
    entries: list[Entry] = []
    for turn in messages:
        weight = turn.get(key)
        if weight is None:
            weight = default if turn["role"] == "assistant" else 0.0
        entries.append(weight)
    return entries


def columns_of(rule: Rule) -> frozenset[str]:
    """The columns of the rows that a rule asks for: its arguments without a value.

    ``row`` stands for all columns, also for those of a rule that takes any argument.
    """
    columns = set()
    for parameter in inspect.signature(rule).parameters.values():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            columns.add(parameter.name)
    columns.discard("messages")
    if arguments_of(rule) is None:  # it takes any argument
        columns.add("row")
    return frozenset(columns)


def carries_weights(rows: Rows) -> bool:
    """True where a turn of the rows has a weight.

    OpenAI's files for fine-tuning may give one to each answer.
    """
    if not isinstance(rows, Dataset):
        return any(_has_weight(row) for row in itertools.islice(rows, SEEN_OF_STREAM))
    plain = rows.with_format("arrow")
    for name, kind in rows.features.items():
        # Turns that are no JSON have a role and a content alone.
        if not isinstance(getattr(kind, "feature", None), Json):
            continue
        texts = pc.list_flatten(plain[name][:]).cast(pa.string())
        likely = texts.filter(pc.match_substring(texts, '"weight":'))
        for turn_text in likely.to_pylist():
            if json.loads(turn_text).get("weight") is not None:
                return True
    return False


def _has_weight(row: Cells) -> bool:
    """True for a row with a weight in one of its turns."""
    for cell in row.values():
        if is_conversation(cell) and any(turn.get("weight") is not None for turn in cell):
            return True
    return False
