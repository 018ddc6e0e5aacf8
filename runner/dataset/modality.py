"""The kinds of data that rows may hold beside text: today images.

A record says by what names a kind is found in rows, in which column converted rows keep it, how
many a row may have, how it is stored, and what identifies it. How one is read and checked stands in
``image``, and how its place in a text survives the conversion in ``mark``. Rows with audio or video
are refused by the names below.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.dataset.conversation import is_conversation
from runner.dataset.form import Cells

if TYPE_CHECKING:
    from datasets import Image, List

# Columns of kinds that no trainer here learns from, and their types as datasets writes them.
UNTRAINED_COLUMNS = ("audio", "audios", "video", "videos")
UNTRAINED_TYPE = re.compile(r"(?:List\()*(?:Audio|Video)\(")


@dataclass(frozen=True)
class Modality:
    """A kind of data beside text."""

    column: str  # in which each converted row has a list, in the order of their places in its turns
    columns: tuple[
        str, ...
    ]  # of a source, which hold one or a list; the first that holds any counts
    part_types: tuple[str, ...]  # of parts of turns
    payload_keys: tuple[str, ...]  # of a part or a cell, under which the data may stand
    placeholder: str  # in a text, as other tools write it
    part_type: str  # of the parts of converted turns, as processors take them
    max_per_row: int

    def columns_of_source(self, chosen: str | None) -> tuple[str, ...]:
        """The columns in which a source may hold it, the one that was ``chosen`` for it first."""
        return (chosen, *self.columns) if chosen else self.columns

    def find_column(self, columns: Collection[str]) -> str:
        """The column of a source that holds it, empty where there is none."""
        for name in self.columns:
            if name in columns:
                return name
        return ""

    def is_in(self, row: Cells, columns: Iterable[str] | None = None) -> bool:
        """True for a row with a column of it, or with a part of it in its turns."""
        if any(name in row for name in columns or self.columns):
            return True
        for cell in row.values():
            if is_conversation(cell) and any(self._is_in_turn(turn) for turn in cell):
                return True
        return False

    def _is_in_turn(self, turn: Cells) -> bool:
        """True for a turn with a part of it."""
        content = turn.get("content")
        return isinstance(content, list) and any(self.is_part(part) for part in content)

    def is_part(self, part: object) -> bool:
        """True for a part of a turn that holds it, or has its place."""
        return isinstance(part, Mapping) and part.get("type") in self.part_types

    def payload(self, cell: Cells) -> Any:
        """The data of a part or a cell; None where only its place is there."""
        for key in self.payload_keys:
            data = cell.get(key)
            if data is None:
                continue
            if isinstance(data, Mapping) and "url" in data:  # as in requests to OpenAI
                return data.get("url")
            return data
        return None

    def column_type(self) -> "List":
        """The type of the column of converted rows."""
        from datasets import Image, List

        return List(Image(mode="RGB"))

    def undecoded(self, kind: Any) -> "Image | List | None":
        """The type of a column of a source as it is stored, so that nothing is decoded unseen.

        None for a column of something else.
        """
        from datasets import Image, List

        if isinstance(kind, Image):
            return Image(decode=False)
        if isinstance(getattr(kind, "feature", None), Image):
            return List(Image(decode=False))
        return None

    def content_hash(self, stored: Cells) -> str:
        """A hash of the bytes of one as datasets stores it; empty where its file is gone."""
        content = stored["bytes"]
        if not content and stored["path"]:
            path = Path(stored["path"])
            content = path.read_bytes() if path.is_file() else b""
        return hashlib.sha256(content).hexdigest() if content else ""


IMAGE = Modality(
    column="images",
    columns=("images", "image"),
    part_types=("image", "image_url", "input_image"),
    payload_keys=("image", "image_url", "url", "bytes", "path", "value"),
    placeholder="<image>",
    part_type="image",
    max_per_row=64,
)
IMAGES = IMAGE.column
