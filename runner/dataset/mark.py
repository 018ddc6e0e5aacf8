"""Marks, which stand in the texts of a row where its images do, while the row is converted.

Conversion knows texts alone. So each image becomes a mark first (``Marks.mark``); then the turns
become lists of parts, as processors take them, and the images stand in the column ``images``, in
the order of their parts (``Marks.place``). Without torch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from runner.dataset.conversation import Turns, is_conversation, part_text
from runner.dataset.form import Cells, Row
from runner.dataset.image import ImageSource, no_image
from runner.dataset.modality import IMAGE, IMAGES
from runner.errors import DataError, Fault

BORDER = "\ue0fd"  # a private use character, which is taken out of the texts
MARK = re.compile(f"{BORDER}(\\d+){BORDER}")
SPEAKER_OF_ROLE = {
    "messages": "user",
    "prompt": "user",
    "input": "user",
    "completion": "assistant",
    "target": "assistant",
    "chosen": "assistant",
    "rejected": "assistant",
}


def _to_mark(number: int) -> str:
    """The mark of an image by its number."""
    return f"{BORDER}{number}{BORDER}"


class Marks:
    """The images of one row by their numbers, and the places for them in its texts."""

    def __init__(self, row: Cells, columns: Iterable[str] = IMAGE.columns):
        images: list[Any] = []
        for name in columns:
            cell = row.get(name)
            if cell is None or (isinstance(cell, list | str) and not cell):
                continue
            images = list(cell) if isinstance(cell, list) else [cell]
            break
        self.images = images  # those of the column, and behind them those of the turns
        self.listed = len(images)
        self.places = 0

    def mark(self, row: Row, columns: Mapping[str, str]) -> Row:
        """The row with a mark for each image in the columns of these roles.

        Plain text becomes turns, because only these can have parts.
        """
        marked = dict(row)
        for role, name in columns.items():
            if role == "text":
                raise DataError(_beside_text(role))
            if role not in SPEAKER_OF_ROLE:
                continue
            cell = row.get(name)
            if isinstance(cell, str) and role != "messages":
                cell = [{"role": SPEAKER_OF_ROLE[role], "content": cell}]
            # Each column repeats the places of the one before, if any.
            places = count()
            if is_conversation(cell):
                cell = [self._mark_turn(turn, places) for turn in cell]
            marked[name] = cell
            self.places = max(self.places, next(places))
        if self.listed and not self.places:
            self._mark_first_question(marked, columns)
        return marked

    def _mark_turn(self, turn: Cells, places: Iterator[int]) -> Row:
        """The turn with one text as its content, in which marks stand for its images."""
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

    def _mark_part(self, part: Cells, places: Iterator[int]) -> str:
        """The text of a part with marks for its images.

        A part of the type of an image that has no data is a place for one of the column.
        """
        if not IMAGE.is_part(part):
            text = part_text(part)
            if not isinstance(text, str):
                raise DataError(no_image(IMAGES, f"a part of type {part.get('type')}"))
            pieces = text.replace(BORDER, "").split(IMAGE.placeholder)
            marked = pieces[0]
            for piece in pieces[1:]:
                marked += _to_mark(next(places)) + piece
            return marked
        image = IMAGE.payload(part)
        if image is None:
            return _to_mark(next(places))
        if image not in self.images[self.listed :]:
            self.images.append(image)
        return _to_mark(self.images.index(image, self.listed))

    def _mark_first_question(self, row: Row, columns: Mapping[str, str]) -> None:
        """Set marks for all images of the column in front of the first question.

        This is where they stand if no text has places for them.
        """
        questions = []
        pairs = []
        for role, name in columns.items():
            if role in ("messages", "prompt", "input"):
                questions.append(name)
            elif role in ("chosen", "rejected"):
                pairs.append(name)
        marks = "".join(_to_mark(number) for number in range(self.listed))
        for name in questions or pairs:
            for turn in row[name]:
                if turn.get("role", turn.get("from")) in ("user", "human"):
                    turn["content"] = marks + (turn.get("content") or "")
                    self.places = self.listed
                    break

    def place(self, made: Row, source: ImageSource) -> Row:
        """The converted row with parts in place of marks, and its images in their order.

        Raises DataError for an image that cannot be read, or that stands in an answer.
        """
        self._check_counts()
        conversations = {name: cell for name, cell in made.items() if is_conversation(cell)}
        order: list[int] = []
        for name, turns in conversations.items():
            order += _find_marks(name, turns)
        images = {}
        for number in order:
            if number not in images:
                images[number] = source.read(self.images[number], f"{IMAGES}[{number}]")
        placed = dict(made)
        for name, turns in conversations.items():
            placed[name] = [{**turn, "content": _to_parts(turn["content"])} for turn in turns]
        placed[IMAGES] = [images[number] for number in order]
        return placed

    def _check_counts(self) -> None:
        """Raise DataError for more or fewer places than images, and for too many images."""
        if self.places != self.listed:
            fault = Fault(
                where=IMAGES,
                found=f"{self.listed} images, and {self.places} places for them in the texts",
                expected=f"as many places ({IMAGE.placeholder} in a text, or a part of type image) "
                "as images, or none",
            )
            raise DataError(fault)
        if len(self.images) > IMAGE.max_per_row:
            fault = Fault(
                where=IMAGES,
                found=f"{len(self.images)} images in one row",
                expected=f"at most {IMAGE.max_per_row}",
            )
            raise DataError(fault)


def _beside_text(role: str) -> Fault:
    """The fault of images in rows of plain text."""
    return Fault(
        where=role,
        found="images beside plain text",
        expected="a conversation, in whose turns they have a place",
        fix="dataset.columns.input=<column> dataset.columns.target=<column>, or "
        "dataset.without=[images]",
    )


def _find_marks(name: str, turns: Turns) -> list[int]:
    """The numbers of the images in a conversation; raises DataError for one in an answer."""
    order: list[int] = []
    for turn in turns:
        numbers = [int(number) for number in MARK.findall(turn["content"])]
        is_question = name in ("messages", "prompt") and turn["role"] != "assistant"
        if numbers and not is_question:
            fault = Fault(
                where=name,
                found="an image in an answer",
                expected="images in questions, because no model here writes one",
            )
            raise DataError(fault)
        order += numbers
    return order


def _to_parts(text: str) -> list[Row]:
    """A text with marks as the parts of a turn."""
    parts: list[Row] = []
    for index, piece in enumerate(MARK.split(text)):
        if index % 2:  # every second piece is the number in a mark
            parts.append({"type": IMAGE.part_type})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts or [{"type": "text", "text": ""}]
