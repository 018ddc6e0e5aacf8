"""The contents of rows that nobody reads, in words for a warning."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from runner.dataset.conversation import PART_KEYS, TURN_KEYS, is_conversation
from runner.dataset.convert import RowRequest
from runner.dataset.detect import CLASHES
from runner.dataset.form import SPOKEN, Cells, Row, RowLayout, roles_without_use
from runner.dataset.trainer_row import convert
from runner.errors import DataError
from runner.schema.modality import is_media_part
from runner.schema.role import Role

# Roles that come before an answer.
OPENING: tuple[Role, ...] = ("system", "history", "prompt", "input", "context")


def find_unread(
    rows: Iterable[Row], layout: RowLayout, request: RowRequest, kept: Sequence[str]
) -> list[str]:
    """Words for what rows hold and nobody reads: columns, and keys of turns and of their parts."""
    read = {*layout.columns.values(), *layout.left_out, *kept}
    read.update(*request.media_columns.values())
    if request.to == "prompt" and request.keep is None:
        read |= CLASHES.keys()  # of which another warning says why
    unused_roles = roles_without_use(layout.form, request.to)
    useless = {layout.columns.get(role) for role in unused_roles}
    columns: dict[str, None] = {}
    keys: dict[str, None] = {}
    unheard: dict[str, None] = {}
    for row in rows:
        unheard |= dict.fromkeys(find_unheard(row, layout, request))
        for name in row:
            if name not in read or name in useless:
                columns[name] = None
        for name in layout.columns.values():
            keys |= dict.fromkeys(_unread_keys(row.get(name)))
    words = []
    if columns:
        noun = "columns" if len(columns) > 1 else "column"
        names = ", ".join(columns)
        words.append(f"the {noun} {names}")
    if keys:
        words.append(f"of turns {', '.join(keys)}")
    if unheard:
        words.append(f"{' and '.join(unheard)} where a row's turns begin differently")
    return words


def _unread_keys(cell: object) -> Iterator[str]:
    """The keys of turns, and of their parts, that hold something and are not read."""
    for turn in _mappings(cell):
        for key, value in turn.items():
            if key not in TURN_KEYS and value not in (None, "", [], {}):
                yield key
        for part in _mappings(turn.get("content")):
            if is_media_part(part):
                continue
            for key, value in part.items():
                if key not in PART_KEYS and value is not None:
                    yield f"content.{key}"


def _mappings(cell: object) -> list[Cells]:
    """The turns of a conversation, or the parts of a turn, that can be read."""
    if not is_conversation(cell):
        return []
    return [entry for entry in cell if isinstance(entry, Mapping)]


def find_unheard(row: Row, layout: RowLayout, request: RowRequest) -> Iterator[str]:
    """The columns whose text should open a row's conversation and does not.

    A row whose own turns begin with a system message, say, has no place for another. The key
    ``dataset.system`` is named among the columns. A text counts as heard where it is a part of one.
    """
    made: list[Row] = []
    with suppress(DataError):  # which is raised where rows are converted
        made = convert(row, layout, request.to, request.system)
    if not made:
        return
    heard: set[str] = set()
    for name in SPOKEN:
        heard |= _texts(made[0].get(name))
    openings: Row = {}
    for role, column in layout.columns.items():
        if role in OPENING:
            openings[f"the column {column}"] = row.get(column)
    if request.system and "system" not in layout.columns:
        openings["dataset.system"] = request.system
    for name, cell in openings.items():
        for text in _texts(cell):
            if not any(text in heard_text for heard_text in heard):
                yield name
                break


def _texts(cell: object) -> set[str]:
    """The texts of a cell without blanks.

    They are its own, or those of its turns, of their parts, or of a list.
    """
    if isinstance(cell, str):
        return {"".join(cell.split())}
    inner: list[object] = []
    if isinstance(cell, list):
        inner = cell
    elif isinstance(cell, Mapping):
        for key in ("content", "value", "text"):
            if cell.get(key) is not None:
                inner = [cell[key]]
                break
    texts: set[str] = set()
    for value in inner:
        texts |= _texts(value)
    return texts
