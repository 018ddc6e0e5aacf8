"""Rows of a source as those of a trainer: each by the arrow of its form (``form``), many batch by batch; no torch."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner.dataset.detect import CLASHES, kept_columns, read_layout
from runner.dataset.form import (
    FORMS,
    PART_KEYS,
    SPOKEN,
    TURN_KEYS,
    TWINS,
    Role,
    RowLayout,
    answer_columns,
    convert,
    describe_cell,
    is_conversation,
    roles_without_use,
)
from runner.dataset.image import COLUMNS, PARTS, ImageSource, Marks, has_images
from runner.dataset.step import Row, Step, apply_steps
from runner.errors import DataError, Fault, fault
from runner.io.turns import TEMPLATE_ARGUMENTS, Join, read_tools

log = logging.getLogger(__name__)

CONVERT_VERSION = 4  # of the key under which converted rows are cached: count up when a row comes out otherwise
SHOWN = 5
OPENING: tuple[Role, ...] = ("system", "history", "prompt", "input", "context")  # roles that come before an answer


@dataclass(frozen=True)
class RowRequest:
    """The way rows are read, whichever split they are of; ``load.load_rows`` says what each key means."""

    form: str | None = None
    columns: Mapping[Role, str] | None = None
    system: str | None = None
    bad_rows: str = "refuse"
    to: str = ""
    keep: Sequence[str] | None = None
    steps: tuple[Step, ...] = ()
    without: Sequence[str] = ()
    images: ImageSource = field(default_factory=ImageSource)
    join_turns: Join | None = None
    thoughts: Literal["inline"] | None = None
    warned: set[str] = field(default_factory=set)  # what was said already of rows that are read in this way

    def start_conversion(
        self, columns: Sequence[str], row: Row, label: str, total: int | None = None, *, pictured: bool = False
    ) -> "Conversion":
        """The conversion of rows with these columns, the first being ``row``; ``pictured`` where another has images."""
        layout = read_layout(columns, row, form=self.form, given=self.columns, to=self.to)
        images = ((self.columns or {}).get("images"), *COLUMNS)
        kept = tuple(name for name in kept_columns(columns, layout, self.to, self.keep) if name not in images)
        chats = bool(self.steps) and any(is_conversation(row[column]) for column in layout.columns.values())
        return Conversion(self, layout, kept, label, total, chats, pictured or has_images(row, images))


@dataclass
class Conversion:
    """Converts one source batch by batch, and raises all its bad rows once the last row was seen.

    Raising inside the last batch keeps a half-good result out of the cache. ``total`` None is a stream, whose end
    nobody knows: it raises with each batch. ``first`` must be called before the first batch.
    """

    request: RowRequest
    layout: RowLayout
    kept: tuple[str, ...] = ()
    label: str = "rows"
    total: int | None = None
    chats: bool = False  # whether the steps hand over conversations, whose turns may hold anything
    pictured: bool = False  # whether each row has images, or an empty list of them
    like: Row = field(default_factory=dict)
    seen: int = 0
    faults: list[Fault] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why rows were left out, all in all

    def one(self, row: Row) -> list[Row] | None:
        """The rows that one source row becomes, with the columns that go along; None where a step leaves it out."""
        request = self.request
        changed = apply_steps(row, request.steps) if request.steps else row
        if changed is None:
            return None
        along = {name: changed.get(name) for name in self.kept}
        if TEMPLATE_ARGUMENTS in along:
            along[TEMPLATE_ARGUMENTS] = read_arguments(along[TEMPLATE_ARGUMENTS])
        if "tools" in along:
            along["tools"] = check_tools(along["tools"])
        marks = Marks(changed, ((request.columns or {}).get("images"), *COLUMNS)) if self.pictured else None
        cells = marks.mark(changed, self.layout.columns) if marks else changed
        joined, thoughts = request.join_turns, request.thoughts
        rows = convert(cells, self.layout, request.to, request.system, join=joined, thoughts=thoughts)
        return [(marks.place(made, request.images) if marks else made) | along for made in rows]

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
        return fault("dataset.none_is_left", label=self.label, count=count, why=why)

    def batch(self, columns: Mapping[str, list], numbers: Sequence[int]) -> dict[str, list]:
        """The converted batch; ``numbers`` are the numbers of its rows in messages."""
        made: list[Row] = []
        for number, values in zip(numbers, zip(*columns.values(), strict=True), strict=True):
            try:
                rows = self.one(dict(zip(columns, values, strict=True)))
                for row in rows or ():
                    for name in ("prompt", *answer_columns(self.like)):
                        is_chat = isinstance(self.like.get(name), list)
                        if isinstance(row.get(name), list) != is_chat:
                            kind = "conversations" if is_chat else "plain text"
                            cell = describe_cell(row.get(name))
                            raise DataError(fault("dataset.unlike_rows_before", column=name, cell=cell, kind=kind))
            except DataError as error:  # its fault gets the row's number, and the column that plays the role
                first, roles = error.faults[0], self.layout.columns
                role = first.where.split("[")[0]
                column = roles.get(role) or roles.get(TWINS.get(role, ""), role)
                where = f"{self.label} row {number}, {column}{first.where.removeprefix(role)}"
                self.faults.append(replace(first, where=where))
                continue
            if not rows:
                self.left_out["dataset.map gave None" if rows is None else FORMS[self.layout.form].left_out] += 1
            made += rows or []
        self.seen += len(numbers)
        if self.total is None or self.seen >= self.total:
            self._settle()
        return {name: [row[name] for row in made] for name in self.like}

    def _settle(self) -> None:
        for reason, count in self.left_out.items():
            log.warning("%s: %d rows left out: %s", self.label, count, reason)
        self.reasons += self.left_out
        self.left_out.clear()
        faults, self.faults = self.faults, []
        if not faults:
            return
        many = f"{len(faults)}" if self.total is None else f"{len(faults)} of {self.total}"
        more = f", the first {SHOWN} are below" if len(faults) > SHOWN else ""
        is_dropped = self.request.bad_rows == "drop"
        fix = "mend them, or leave them out with dataset.bad_rows=drop"
        fix = "" if is_dropped else "mend them" if len(faults) == self.total else fix
        if self.request.to == "prompt" and self.layout.form == "prompt_completion" and "prompt" in self.layout.columns:
            fix = f"dataset.form=prompt, which leaves the other columns to rewards; or {fix or 'mend them'}"
        form = f"{self.layout.form} rows, by the names of columns: {self.layout.by_role}"
        summary = fault("dataset.bad_rows", label=self.label, count=many, more=more, form=form, fix=fix)
        error = DataError([summary, *faults[:SHOWN]])
        if not is_dropped:
            raise error
        log.warning("left out, because dataset.bad_rows=drop:\n%s", error)


def read_arguments(value: object) -> dict[str, Any]:
    """The arguments for the template that a row's own column holds, a mapping or JSON of one; null is not given."""
    with suppress(ValueError):
        given = json.loads(value or "null") if isinstance(value, str) else value
        if isinstance(given, Mapping | None):
            return {name: entry for name, entry in (given or {}).items() if entry is not None}
    raise DataError(Fault(TEMPLATE_ARGUMENTS, describe_cell(value), "a mapping, or JSON of one"))


def check_tools(value: object) -> list[dict[str, Any]] | None:
    """The tools of a row, each a mapping; None where there are none."""
    with suppress(ValueError, RecursionError):
        tools = read_tools(value)
        if all(isinstance(tool, Mapping) for tool in tools or ()):
            return tools
    raise DataError(Fault("tools", describe_cell(value), "a list of tools, or JSON of one", "dataset.without=[tools]"))


def find_unread(rows: Iterable[Row], layout: RowLayout, request: RowRequest, kept: Sequence[str]) -> list[str]:
    """Words for what rows hold and nobody reads: columns, and keys of turns and of their parts."""
    read = {*layout.columns.values(), *layout.left_out, *kept, *COLUMNS, (request.columns or {}).get("images")}
    read |= {*CLASHES} if request.to == "prompt" and request.keep is None else set()  # of which it is said why
    useless = {layout.columns.get(role) for role in roles_without_use(layout.form, request.to)}
    columns = dict[str, None]()
    keys = dict[str, None]()
    unheard = dict[str, None]()
    for row in rows:
        unheard |= dict.fromkeys(find_unheard(row, layout, request))
        for name, cell in row.items():
            if name not in read or name in useless:
                columns[name] = None
            if name in layout.columns.values() and is_conversation(cell):
                turns = [turn for turn in cell if isinstance(turn, Mapping)]
                keys |= dict.fromkeys(key for turn in turns for key in _unread_keys(turn))
    words = []
    if columns:
        words.append(f"the columns {', '.join(columns)}" if len(columns) > 1 else f"the column {next(iter(columns))}")
    if keys:
        words.append(f"of turns {', '.join(keys)}")
    if unheard:
        words.append(f"{' and '.join(unheard)} where a row's turns open otherwise")
    return words


def find_unheard(row: Row, layout: RowLayout, request: RowRequest) -> Iterator[str]:
    """The columns, and ``dataset.system``, that should open a row's conversation and are not in what it becomes."""
    made: list[Row] = []
    with suppress(DataError):  # which is raised where rows are converted
        made = convert(row, layout, request.to, request.system)
    if not made:
        return
    heard = {text for name in SPOKEN for text in _texts(made[0].get(name))}
    cells = {f"the column {column}": row.get(column) for role, column in layout.columns.items() if role in OPENING}
    if request.system and "system" not in layout.columns:
        cells["dataset.system"] = request.system
    for name, cell in cells.items():
        if any(not any(text in other for other in heard) for text in _texts(cell)):
            yield name


def _texts(cell: object) -> set[str]:
    """The texts of a cell, without blanks: its own, or those of its turns, of their parts, or of a list."""
    if isinstance(cell, str):
        return {"".join(cell.split())}
    if isinstance(cell, Mapping):
        inner = [cell[key] for key in ("content", "value", "text") if cell.get(key) is not None]
        return set[str]().union(*map(_texts, inner[:1]))
    return set[str]().union(*map(_texts, cell)) if isinstance(cell, list) else set()


def _unread_keys(turn: Mapping[str, Any]) -> Iterator[str]:
    for key, value in turn.items():
        if key not in TURN_KEYS and value not in (None, "", [], {}):
            yield key
    parts = turn.get("content")
    for part in parts if is_conversation(parts) else ():
        if isinstance(part, Mapping) and part.get("type") not in PARTS:
            yield from (f"content.{key}" for key in part if key not in PART_KEYS and part[key] is not None)
