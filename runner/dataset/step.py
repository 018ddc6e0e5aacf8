"""Steps that rows go through first: functions row -> row, or None to leave it out.

A step (``dataset.map``) sees each row once, and the first 10 again at each start; what comes out is
kept on disk. A collator is for what should change.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from runner.dataset.form import Row
from runner.errors import DataError, Fault, describe, own_place
from runner.schema.text import select

Step = Callable[[Row], Row | None]
PLACEHOLDER = re.compile(r"\{\{ ?(\w+) ?\}\}")


def list_steps(
    steps: Step | Sequence[Step | None] | Mapping[str, Step | None] | None,
) -> tuple[Step, ...]:
    """The steps in order, from one, a list of them, or a mapping from names; null is no step."""
    candidates: Iterable[Step | None]
    if isinstance(steps, Mapping):
        candidates = steps.values()
    elif isinstance(steps, Sequence):
        candidates = steps
    else:
        candidates = [steps]
    listed = tuple(step for step in candidates if step is not None)
    faults: list[Fault] = []
    for step in listed:
        if not callable(step):
            faults.append(
                Fault(
                    where="dataset.map",
                    found=repr(step),
                    expected="a function of a row",
                )
            )
    DataError.refuse(faults)
    return listed


def apply_steps(row: Row, steps: Sequence[Step]) -> Row | None:
    """The row that the steps make of a row; None where one of them leaves it out.

    Raises DataError with the line of the user's code that failed.
    """
    expected = "a row, or None to leave it out"
    made: Any = dict(row)
    for step in steps:
        try:
            made = step(made)
        except DataError:
            raise
        except Exception as error:
            fault = Fault(
                where="map",
                found=describe(error),
                expected=expected,
                fix=f"mend {own_place(error) or step}, or dataset.map=null",
            )
            raise DataError(fault) from error
        if made is None:
            return None
        if not isinstance(made, Mapping):
            function = step.func if isinstance(step, functools.partial) else step
            name = getattr(function, "__name__", type(function).__name__)
            raise DataError(
                Fault(
                    where="map",
                    found=f"{name} returned {type(made).__name__}",
                    expected=expected,
                )
            )
    return dict(made)


def first_made(rows: Iterable[Row], steps: Sequence[Step]) -> Row:
    """The first row that comes out of the steps.

    Raises DataError where none does, with the last error if there was one.
    """
    failure = DataError(
        Fault(
            where="dataset.map",
            found="every row is left out",
            expected="at least one row",
            fix="dataset.map=null, or a step that keeps some",
        )
    )
    for number, row in enumerate(rows):
        try:
            made = apply_steps(row, steps)
        except DataError as error:
            faults = [
                replace(fault, where=f"row {number}, {fault.where}") for fault in error.faults
            ]
            failure = DataError(faults)
            continue
        if made is not None:
            return made
    raise failure


def made_rows(rows: Iterable[Row], steps: Sequence[Step]) -> Iterator[Row]:
    """The rows that come out of the steps.

    A row on which a step fails is skipped: it is refused where all rows are made.
    """
    for row in rows:
        made = None
        with suppress(DataError):
            made = apply_steps(row, steps)
        if made is not None:
            yield made


def fill(row: Row, names: Mapping[str, str]) -> Row:
    """The row with a text for each ``{{NAME}}`` in its texts.

    Those of its conversations count, too. A name without a text stays.
    """

    def replacement(match: re.Match[str]) -> str:
        return str(names.get(match[1], match[0]))

    def filled(value: object) -> object:
        if isinstance(value, str):
            return PLACEHOLDER.sub(replacement, value)
        if isinstance(value, Mapping):
            return {key: filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [filled(inner) for inner in value]
        return value

    return {column: filled(value) for column, value in row.items()}


def lift(row: Row, columns: Mapping[str, str]) -> Row:
    """The row with further columns, each from a dotted place inside of another one.

    >>> lift({"extra": {"question": "1 + 1?"}}, {"question": "extra.question"})["question"]
    '1 + 1?'
    """
    lifted = dict(row)
    for name, place in columns.items():
        value = select(row, place)
        if value is None:
            raise DataError(
                Fault(
                    where="dataset.map",
                    found=f"nothing at {place}",
                    expected=f"a value for the column {name}",
                    fix=f"dataset.map.columns.{name}=<column>.<key>",
                )
            )
        lifted[name] = value
    return lifted


def render_text(row: Row, column: str, text: str, empty: Mapping[str, str] | None = None) -> Row:
    """The row with ``text`` in ``column``, in which ``{{NAME}}`` becomes the text of that column.

    ``empty`` has other texts for rows in which the column of their name is empty or missing.
    """
    chosen_text = text
    for name, other_text in (empty or {}).items():
        if not row.get(name):
            chosen_text = other_text

    def replacement(match: re.Match[str]) -> str:
        return str(row.get(match[1], match[0]))

    return dict(row) | {column: PLACEHOLDER.sub(replacement, chosen_text)}
