"""Steps that rows go through before anything else is made of them: functions row -> row, or None to leave it out.

A step (``dataset.map``) sees each row once, the first 100 again at each start, and what comes out is kept on disk: a
collator is for what should change.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from runner.errors import DataError, Fault, describe, fault, own_place

Row = dict[str, Any]
Cells = Mapping[str, Any]  # a row that is only read
Step = Callable[[Row], Row | None]


def list_steps(steps: Step | Sequence[Step | None] | Mapping[str, Step | None] | None) -> tuple[Step, ...]:
    """The steps in order, from one, a list of them, or a mapping from names; null entries are none."""
    listed = steps.values() if isinstance(steps, Mapping) else steps if isinstance(steps, Sequence) else [steps]
    found = tuple(step for step in listed if step is not None)
    DataError.refuse([Fault("dataset.map", repr(step), "a function of a row") for step in found if not callable(step)])
    return found


def apply_steps(row: Row, steps: Sequence[Step]) -> Row | None:
    """The row that the steps make of a row; raises DataError with the line of the user's code that failed."""
    made: Any = dict(row)
    for step in steps:
        try:
            made = step(made)
        except Exception as error:
            if isinstance(error, DataError):
                raise
            found, fix = describe(error), f"mend {own_place(error) or step}, or dataset.map=null"
            raise DataError(Fault("map", found, "a row, or None to leave it out", fix)) from error
        if made is None:
            return None
        if not isinstance(made, Mapping):
            function = step.func if isinstance(step, functools.partial) else step
            found = f"{getattr(function, '__name__', type(function).__name__)} gave {type(made).__name__}"
            raise DataError(Fault("map", found, "a row, or None to leave it out"))
    return dict(made)


def first_made(rows: Iterable[Row], steps: Sequence[Step]) -> Row:
    """The first row that comes out of the steps; raises DataError where none does, with the first error if any."""
    failed = DataError(fault("dataset.every_row_left_out"))
    for place, row in enumerate(rows):
        try:
            if (made := apply_steps(row, steps)) is not None:
                return made
        except DataError as error:
            failed = DataError([replace(each, where=f"row {place}, {each.where}") for each in error.faults])
    raise failed


def made_rows(rows: Iterable[Row], steps: Sequence[Step]) -> Iterator[Row]:
    """The rows that come out of the steps; one on which a step fails is refused where all are made."""
    for row in rows:
        with suppress(DataError):
            if (made := apply_steps(row, steps)) is not None:
                yield made


def fill(row: Row, names: Mapping[str, str]) -> Row:
    """Each ``{{NAME}}`` in the texts of a row, those of its conversations too, as the text that is given for it."""

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"\{\{ ?(\w+) ?\}\}", lambda found: str(names.get(found[1], found[0])), value)
        if isinstance(value, Mapping):
            return {key: filled(entry) for key, entry in value.items()}
        return list(map(filled, value)) if isinstance(value, list) else value

    return {column: filled(value) for column, value in row.items()}
