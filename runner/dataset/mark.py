"""Marks, which stand in the texts of a row where its images do, while the row is converted.

Conversion knows texts alone. So each image, or medium of another kind, becomes a mark first
(``Marks.mark``); then the turns become lists of parts, as processors take them, and the media stand
in the column of their kind, such as ``images``, in the order of their parts (``Marks.place``).
Without torch.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.dataset.conversation import Turns, is_conversation, part_text
from runner.dataset.form import Cells, Row
from runner.dataset.media_source import MediaSource, not_a_medium
from runner.errors import DataError, Fault
from runner.schema.modality import MODALITIES, Modality

BORDER = "\ue0fd"  # a private use character, which is taken out of the texts
MARK = re.compile(f"{BORDER}(\\w+ \\d+){BORDER}")
PLACEHOLDER = re.compile("|".join(re.escape(modality.placeholder) for modality in MODALITIES))
MODALITY_OF_PLACEHOLDER = {modality.placeholder: modality for modality in MODALITIES}
MODALITY_OF_COLUMN: dict[str, Modality] = {modality.column: modality for modality in MODALITIES}
SPEAKER_OF_ROLE = {
    "messages": "user",
    "prompt": "user",
    "input": "user",
    "completion": "assistant",
    "target": "assistant",
    "chosen": "assistant",
    "rejected": "assistant",
}


@dataclass(frozen=True)
class MediumMark:
    """The kind of a medium, and its number among those of its kind."""

    modality: Modality
    number: int

    def __str__(self) -> str:
        return f"{BORDER}{self.modality.column} {self.number}{BORDER}"


def _read_mark(text: str) -> MediumMark:
    """The mark whose text without its borders this is."""
    column, number = text.split()
    return MediumMark(MODALITY_OF_COLUMN[column], int(number))


@dataclass
class MediaOfRow:
    """The media of one kind in a row, and the places for them in its texts."""

    modality: Modality
    items: list[object]  # those of the column, and behind them those of the turns
    listed: int  # the number of those of the column
    places: int = 0

    def check(self) -> None:
        """Raise DataError for more or fewer places than media, and for too many media."""
        modality = self.modality
        if self.places != self.listed:
            fault = Fault(
                where=modality.column,
                found=f"{self.listed} {modality.many}, but {self.places} places for them in the "
                "texts",
                expected=f"as many places ({modality.placeholder} in a text, or a part of type "
                f"{modality.part_type}) as {modality.many}, or none",
            )
            raise DataError(fault)
        if len(self.items) > modality.max_per_row:
            fault = Fault(
                where=modality.column,
                found=f"{len(self.items)} {modality.many} in one row",
                expected=f"at most {modality.max_per_row}",
            )
            raise DataError(fault)


class Marks:
    """The media of one row by their numbers, and the places for them in its texts.

    ``columns`` are those of the source that may hold media, by the kinds that rows have.
    """

    def __init__(self, row: Cells, columns: Mapping[Modality, tuple[str, ...]]):
        self.media: dict[Modality, MediaOfRow] = {}
        for modality, names in columns.items():
            items: list[object] = []
            for name in names:
                cell = row.get(name)
                if cell is None or (isinstance(cell, list | str) and not cell):
                    continue
                items = list(cell) if isinstance(cell, list) else [cell]
                break
            self.media[modality] = MediaOfRow(modality, items, len(items))

    def mark(self, row: Row, columns: Mapping[str, str]) -> Row:
        """The row with a mark for each medium in the columns of these roles.

        Plain text becomes turns, because only these can have parts.
        """
        marked = dict(row)
        for role, name in columns.items():
            if role == "text":
                modality = next(iter(self.media))
                fault = Fault(
                    where=role,
                    found=f"{modality.many} with plain text",
                    expected="a conversation, in whose turns they have a place",
                    fix="dataset.columns.input=<column> dataset.columns.target=<column>, or "
                    f"dataset.without=[{modality.column}]",
                )
                raise DataError(fault)
            if role not in SPEAKER_OF_ROLE:
                continue
            cell = row.get(name)
            if isinstance(cell, str) and role != "messages":
                cell = [{"role": SPEAKER_OF_ROLE[role], "content": cell}]
            # Each column repeats the places of the one before, if any.
            places: Counter[Modality] = Counter()
            if is_conversation(cell):
                cell = [self._mark_turn(turn, places) for turn in cell]
            marked[name] = cell
            for modality, media in self.media.items():
                media.places = max(media.places, places[modality])
        self._mark_first_question(marked, columns)
        return marked

    def _mark_turn(self, turn: Cells, places: Counter[Modality]) -> Row:
        """The turn with one text as its content, in which marks stand for its media.

        What is no turn stays as it is: the conversion, which comes after this, refuses it.
        """
        if not isinstance(turn, Mapping):
            return turn
        content = turn.get("content")
        if content is None:
            content = turn.get("value")
        if isinstance(content, str):
            content = [content]
        if not isinstance(content, list) or not content:
            return dict(turn)
        texts = []
        for part in content:
            if isinstance(part, str):
                part = {"text": part}
            texts.append(self._mark_part(part, places))
        return {**turn, "content": "".join(texts)}

    def _mark_part(self, part: Cells, places: Counter[Modality]) -> str:
        """The text of a part with marks for its media.

        A part of the type of a medium that has no data is a place for one of the column.
        """

        def mark_place(modality: Modality) -> str:
            mark = MediumMark(modality, places[modality])
            places[modality] += 1
            return str(mark)

        def mark_placeholder(match: re.Match[str]) -> str:
            modality = MODALITY_OF_PLACEHOLDER[match[0]]
            if modality not in self.media:
                return match[0]
            return mark_place(modality)

        for modality, media in self.media.items():
            if not modality.is_part(part):
                continue
            medium = modality.payload(part)
            if medium is None:
                return mark_place(modality)
            if medium not in media.items[media.listed :]:
                media.items.append(medium)
            number = media.items.index(medium, media.listed)
            return str(MediumMark(modality, number))
        text = part_text(part)
        if not isinstance(text, str):
            modality = next(iter(self.media))
            found = f"a part of type {part.get('type')}"
            raise DataError(not_a_medium(modality, modality.column, found))
        return PLACEHOLDER.sub(mark_placeholder, text.replace(BORDER, ""))

    def _mark_first_question(self, row: Row, columns: Mapping[str, str]) -> None:
        """Set marks for all media of a column in front of the first question.

        This is where they stand if no text has places for them.
        """
        unplaced = [media for media in self.media.values() if media.listed and not media.places]
        marks = ""
        for media in unplaced:
            marks += "".join(
                str(MediumMark(media.modality, number)) for number in range(media.listed)
            )
        questions = []
        pairs = []
        for role, name in columns.items():
            if role in ("messages", "prompt", "input"):
                questions.append(name)
            elif role in ("chosen", "rejected"):
                pairs.append(name)
        for name in questions or pairs:
            for turn in row[name] if unplaced else ():
                if not isinstance(turn, dict):
                    continue
                if turn.get("role", turn.get("from")) in ("user", "human"):
                    turn["content"] = marks + (turn.get("content") or "")
                    for media in unplaced:
                        media.places = media.listed
                    break

    def place(self, made: Row, source: MediaSource) -> Row:
        """The converted row with parts in place of marks, and its media in their order.

        Raises DataError for a medium that cannot be read, or that stands in an answer.
        """
        for media in self.media.values():
            media.check()
        conversations = {name: cell for name, cell in made.items() if is_conversation(cell)}
        order: list[MediumMark] = []
        for name, turns in conversations.items():
            order += _find_marks(name, turns)
        read: dict[MediumMark, Row] = {}
        for mark in order:
            if mark not in read:
                modality = mark.modality
                item = self.media[modality].items[mark.number]
                where = f"{modality.column}[{mark.number}]"
                read[mark] = source.read(modality, item, where)
        placed = dict(made)
        for name, turns in conversations.items():
            placed[name] = []
            for turn in turns:
                parts = _to_parts(turn["content"])
                placed[name].append({**turn, "content": parts})
        for modality in self.media:
            placed[modality.column] = [read[mark] for mark in order if mark.modality == modality]
        return placed


def _find_marks(name: str, turns: Turns) -> Iterator[MediumMark]:
    """The marks in a conversation; raises DataError for one in an answer."""
    for turn in turns:
        is_question = name in ("messages", "prompt") and turn["role"] != "assistant"
        for text in MARK.findall(turn["content"]):
            mark = _read_mark(text)
            if not is_question:
                modality = mark.modality
                fault = Fault(
                    where=name,
                    found=f"{modality.one} in an answer",
                    expected=f"{modality.many} in questions, because no model here writes one",
                )
                raise DataError(fault)
            yield mark


def _to_parts(text: str) -> list[Row]:
    """A text with marks as the parts of a turn."""
    parts: list[Row] = []
    for index, piece in enumerate(MARK.split(text)):
        if index % 2:  # every second piece is the text of a mark
            parts.append({"type": _read_mark(piece).modality.part_type})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts or [{"type": "text", "text": ""}]
