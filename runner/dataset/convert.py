"""Rows of a source as those of a trainer: many batch by batch, all bad ones refused at once.

Without torch.
"""

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner.dataset.conversation import describe_cell, is_conversation
from runner.dataset.detect import kept_columns, read_layout
from runner.dataset.form import FORMS, TWINS, Row, RowLayout, answer_columns
from runner.dataset.mark import Marks
from runner.dataset.media_source import MediaSource
from runner.dataset.step import Step, apply_steps
from runner.dataset.trainer_row import convert
from runner.errors import DataError, Fault
from runner.io.turns import TEMPLATE_ARGUMENTS, Join, read_tools
from runner.schema.modality import MODALITIES, Modality
from runner.schema.role import Role

log = logging.getLogger(__name__)

Batch = dict[str, list[Any]]  # the cells of some rows by column

# Of the key under which converted rows are cached: count up when a row comes out otherwise.
CONVERT_VERSION = 4
MAX_FAULTS = 5  # that are shown of bad rows


@dataclass(frozen=True)
class RowRequest:
    """The way rows are read, whichever split they are of.

    ``load.load_rows`` says what each key means.
    """

    form: str | None = None
    columns: Mapping[Role, str] | None = None
    system: str | None = None
    bad_rows: str = "refuse"
    to: str = ""
    keep: Sequence[str] | None = None
    steps: tuple[Step, ...] = ()
    without: Sequence[str] = ()
    media: MediaSource = field(default_factory=MediaSource)
    join_turns: Join | None = None
    thoughts: Literal["inline"] | None = None
    context_separator: str | None = None
    # Warnings about rows that are read in this way, so that each comes once.
    warned: set[str] = field(default_factory=set)

    @property
    def media_columns(self) -> dict[Modality, tuple[str, ...]]:
        """The columns of a source that may hold media of each kind.

        The first that holds any is meant.
        """
        chosen = self.columns or {}
        columns = {}
        for modality in MODALITIES:
            columns[modality] = modality.columns_of_source(chosen.get(modality.column))
        return columns

    def start_conversion(
        self,
        columns: Sequence[str],
        row: Row,
        label: str,
        total: int | None = None,
        *,
        modalities: Collection[Modality] = (),
    ) -> "Conversion":
        """The conversion of rows with these columns.

        ``row`` is the first of them; ``modalities`` are kinds of media that others of them have.
        Raises DataError where the columns do not fit the trainer.
        """
        layout = read_layout(columns, row, form=self.form, given=self.columns, to=self.to)
        media_columns = self.media_columns
        kept = list(kept_columns(columns, layout, self.to, self.keep))
        of_rows = []
        for modality, names in media_columns.items():
            kept = [name for name in kept if name not in names]
            if modality in modalities or modality.is_in(row, names):
                of_rows.append(modality)
        has_chats = any(is_conversation(row.get(column)) for column in layout.columns.values())
        return Conversion(
            request=self,
            layout=layout,
            kept=tuple(kept),
            label=label,
            total=total,
            chats=bool(self.steps) and has_chats,
            modalities=tuple(of_rows),
        )


@dataclass
class Conversion:
    """Converts one source batch by batch, and raises all its bad rows once the last row was seen.

    Raising inside the last batch keeps a half-good result out of the cache. ``total`` None is a
    stream, whose end nobody knows: it raises with each batch. ``first`` must be called before the
    first batch.
    """

    request: RowRequest
    layout: RowLayout
    kept: tuple[str, ...] = ()
    label: str = "rows"
    total: int | None = None
    chats: bool = False  # whether the steps hand over conversations, whose turns may hold anything
    modalities: tuple[Modality, ...] = ()  # of which each row has media, or an empty list
    like: Row = field(default_factory=dict)  # the first row that came out
    count: int = 0  # of rows that were converted or found bad
    faults: list[Fault] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why rows were left out, all in all

    def one(self, row: Row) -> list[Row] | None:
        """The rows that one source row becomes, with the columns that go along.

        None where a step leaves it out. Raises DataError at the role that is wrong.
        """
        request = self.request
        changed: Row | None = row
        if request.steps:
            changed = apply_steps(row, request.steps)
        if changed is None:
            return None
        along = {name: changed.get(name) for name in self.kept}
        if TEMPLATE_ARGUMENTS in along:
            along[TEMPLATE_ARGUMENTS] = read_arguments(along[TEMPLATE_ARGUMENTS])
        if "tools" in along:
            along["tools"] = check_tools(along["tools"])
        marks = None
        if self.modalities:
            columns = request.media_columns
            columns_of_media = {modality: columns[modality] for modality in self.modalities}
            marks = Marks(changed, columns_of_media)
            changed = marks.mark(changed, self.layout.columns)
        made_rows = convert(
            changed,
            self.layout,
            request.to,
            request.system,
            join=request.join_turns,
            thoughts=request.thoughts,
            context_separator=request.context_separator,
        )
        rows = []
        for made in made_rows:
            if marks:
                made = marks.place(made, request.media)
            rows.append(made | along)
        return rows

    def first(self, rows: Iterable[Row]) -> Row:
        """The first row that comes out, which shows the columns of all; empty where none does."""
        for row in rows:
            with suppress(DataError):
                made = self.one(row)
                self.like = made[0] if made else {}
            if self.like:
                break
        return self.like

    def nothing_left(self, count: int) -> Fault:
        """The fault of rows of which none comes out, with the reasons."""
        reasons = ""
        for reason, number in self.reasons.items():
            reasons += f", {number} because {reason}"
        return Fault(
            where=self.label,
            found=f"none of {count} rows is left{reasons}",
            expected="at least one",
            fix="another dataset, or other rows: dataset.path=<file, or org/name>",
        )

    def batch(self, columns: Batch, numbers: Sequence[int]) -> Batch:
        """The converted batch; ``numbers`` are the numbers of its rows in messages."""
        batch: list[Row] = []
        is_chat_by_column = self._kinds_of_columns()
        rows = zip(*columns.values(), strict=True)
        for number, cells in zip(numbers, rows, strict=True):
            row = dict(zip(columns, cells, strict=True))
            try:
                made = self.one(row)
                _check_types(made or [], is_chat_by_column)
            except DataError as error:
                self.faults.append(self._in_source(error.faults[0], number))
                continue
            if made is None:
                self.left_out["dataset.map returned None"] += 1
            elif not made:
                self.left_out[FORMS[self.layout.form].left_out] += 1
            else:
                batch += made
        self.count += len(numbers)
        if self.total is None or self.count >= self.total:
            self._settle()
        return {name: [row[name] for row in batch] for name in self.like}

    def _kinds_of_columns(self) -> dict[str, bool]:
        """The columns that hold texts or conversations, each true for conversations.

        The first row decides, because a column has one type.
        """
        columns = ("prompt", *answer_columns(self.like))
        return {name: isinstance(self.like.get(name), list) for name in columns}

    def _in_source(self, fault: Fault, number: int) -> Fault:
        """The fault of a role with the row's number, and the column that plays the role."""
        columns = self.layout.columns
        role = fault.where.split("[")[0]
        twin = TWINS.get(role, "")
        column = columns.get(role) or columns.get(twin, role)
        place = fault.where.removeprefix(role)
        return replace(fault, where=f"{self.label} row {number}, {column}{place}")

    def _settle(self) -> None:
        """Log what was left out, and raise DataError for the bad rows, or log them, too."""
        for reason, count in self.left_out.items():
            log.warning("%s: %d rows left out: %s", self.label, count, reason)
        self.reasons += self.left_out
        self.left_out.clear()
        faults = self.faults
        self.faults = []
        if not faults:
            return
        summary = self._summary(len(faults))
        error = DataError([summary, *faults[:MAX_FAULTS]])
        if self.request.bad_rows != "drop":
            raise error
        log.warning("left out, because dataset.bad_rows=drop:\n%s", error)

    def _summary(self, count: int) -> Fault:
        """The fault that counts the bad rows, and the ways out."""
        rows = str(count)
        if self.total is not None:
            rows += f" of {self.total}"
        shown = f", the first {MAX_FAULTS} are below" if count > MAX_FAULTS else ""
        layout = self.layout
        if self.request.bad_rows == "drop":
            fix = ""
        elif count == self.total:
            fix = "mend them"
        else:
            fix = "mend them, or leave them out with dataset.bad_rows=drop"
        is_prompt = self.request.to == "prompt" and "prompt" in layout.columns
        if is_prompt and layout.form == "prompt_completion":
            fix = (
                "dataset.form=prompt, which leaves the other columns to rewards; "
                f"or {fix or 'mend them'}"
            )
        return Fault(
            where=self.label,
            found=f"{rows} rows are bad{shown}",
            expected=f"{layout.form} rows, by the names of columns: {layout.by_role}",
            fix=fix,
        )


def _check_types(rows: Sequence[Row], is_chat_by_column: Mapping[str, bool]) -> None:
    """Raise DataError for plain text among conversations, or the reverse."""
    for row in rows:
        for name, is_chat in is_chat_by_column.items():
            if isinstance(row.get(name), list) == is_chat:
                continue
            kind = "conversations" if is_chat else "plain text"
            fault = Fault(
                where=name,
                found=describe_cell(row.get(name)),
                expected=f"{kind}, as in the rows before",
            )
            raise DataError(fault)


def holds_chat(made: Row) -> bool:
    """True where what is asked or learnt in a row is a conversation."""
    columns = ("prompt", *answer_columns(made))
    return any(is_conversation(made.get(name)) for name in columns)


def read_arguments(value: object) -> Row:
    """The arguments for the template in a row's own column.

    They are a mapping or JSON of one; a null among them is as if it were not there.
    """
    with suppress(ValueError):
        arguments = value
        if isinstance(value, str):
            arguments = json.loads(value or "null")
        if arguments is None:
            return {}
        if isinstance(arguments, Mapping):
            return {name: argument for name, argument in arguments.items() if argument is not None}
    fault = Fault(
        where=TEMPLATE_ARGUMENTS,
        found=describe_cell(value),
        expected="a mapping, or JSON of one",
    )
    raise DataError(fault)


def check_tools(value: object) -> list[Row] | None:
    """The tools of a row, each a mapping; None where there are none."""
    with suppress(ValueError, RecursionError):
        tools = read_tools(value)
        if all(isinstance(tool, Mapping) for tool in tools or ()):
            return tools
    fault = Fault(
        where="tools",
        found=describe_cell(value),
        expected="a list of tools, or JSON of one",
        fix="dataset.without=[tools]",
    )
    raise DataError(fault)
