"""Images of rows: gathered from columns and turns, and each opened once, so that a bad one is known by its row.

While a row is converted, a mark stands in its texts where an image does. Then the turns become lists of parts, as
processors take them, and the images stand in the column ``images``, in the order of their parts. Without torch.
"""

import base64
import hashlib
import io
import os
import re
import urllib.request
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from runner.dataset.form import is_conversation, part_text
from runner.dataset.step import Cells, Row
from runner.errors import DataError, describe, fault
from runner.io.files import hub_home
from runner.io.filetype import HEAD, sniff

IMAGES = "images"
COLUMNS = (IMAGES, "image")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MAX_IMAGES = 64  # of a row
MAX_BYTES = 64 << 20  # of a file
TO_MARK = "\ue0fd{}\ue0fd".format
MARK = re.compile("\ue0fd(\\d+)\ue0fd")  # in place of an image, and of <image>, as other tools write it
KEYS = ("image", "image_url", "url", "bytes", "path", "value")  # of a part or a cell, under which the image may stand
PARTS = ("image", "image_url", "input_image")  # of a turn, by their type
SPOKEN = dict.fromkeys(("messages", "prompt", "input"), "user")
SPOKEN |= dict.fromkeys(("completion", "target", "chosen", "rejected"), "assistant")


@dataclass(frozen=True)
class ImageSource:
    """The folder below which images lie, and whether rows may name addresses; None takes these unseen."""

    folder: Path = field(default_factory=hub_home)
    urls: bool | None = False

    def read(self, value: Any, where: str) -> dict[str, Any]:
        """An image as datasets stores it, ``bytes`` or a ``path``; raises DataError for one that cannot be decoded."""
        value, path = _payload(value) if isinstance(value, Mapping) else value, None
        if hasattr(value, "save"):  # one of Pillow's
            _check(value, where, where)
            value.convert("RGB").save(written := io.BytesIO(), "PNG")
            value = written.getvalue()
        if isinstance(value, str) and value.lower().startswith(("http://", "https://")):
            if self.urls is None:
                return {"bytes": None, "path": value}
            value = self._fetch(value, where)
        elif isinstance(value, str) and (path := self._find(value, where)):
            value = path.read_bytes() if path.stat().st_size <= MAX_BYTES else bytes(MAX_BYTES + 1)
        elif isinstance(value, str):
            try:
                value = base64.b64decode(re.sub(r"^(?i:data):[^,]*,|\s", "", value), validate=True)
            except ValueError:
                missing = fault("dataset.image_missing", where=where, path=value[:80], folder=self.folder)
                raise DataError(missing) from None
        if not isinstance(value, bytes):
            raise DataError(fault("dataset.image_none", where=where, kind=type(value).__name__))
        _check(value, str(path or where), where)
        return {"bytes": None, "path": str(path)} if path else {"bytes": value, "path": None}

    def _find(self, text: str, where: str) -> Path | None:
        if len(text) > 1024 or text.startswith(("data:", "/9j/")) or "\0" in text:  # the second as base64 of JPEG does
            return None
        path = (self.folder / text).resolve()  # a link may lead out
        if not path.is_relative_to(self.folder.resolve()):
            raise DataError(fault("dataset.image_outside", where=where, path=text, folder=self.folder))
        return path if os.path.isfile(path) else None  # also of a name that is too long for one

    def _fetch(self, address: str, where: str) -> bytes:
        if not self.urls:
            raise DataError(fault("dataset.image_address", where=where, address=address[:80]))
        try:
            asked = urllib.request.Request(address, headers={"User-Agent": "runner"})
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return bytes(answer.read(MAX_BYTES + 1))
        except Exception as error:  # of the address, of the network, or of the other side
            raise DataError(fault("dataset.image_unfetched", where=where, error=describe(error)[:120])) from error


def _check(data: Any, name: str, where: str) -> None:
    from PIL import Image

    if (is_packed := isinstance(data, bytes)) and len(data) > MAX_BYTES:
        raise DataError(fault("dataset.image_bytes", where=where, most=MAX_BYTES))
    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            seen = Image.open(io.BytesIO(data), formats=FORMATS) if is_packed else data
            seen.load()
        if seen.mode[0] in "IF":  # else all beyond 255 would be white
            raise ValueError(f"pixels of mode {seen.mode}, which are no colours of 8 bits")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):  # before anything is decoded
        raise DataError(fault("dataset.image_bomb", where=where, most=Image.MAX_IMAGE_PIXELS)) from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        odd = sniff(data[:HEAD], name) if is_packed and data[:1].isascii() else None
        found, formats = odd.found if odd else str(error).partition(" <")[0], ", ".join(FORMATS)
        raise DataError(fault("dataset.image_damaged", where=where, found=found, formats=formats)) from None


def find_images(files: Sequence[Path], folder: str | None, urls: bool | None) -> ImageSource:
    """The images that rows may name: those of a given folder, of that of the first of their files, or of the hub."""
    place = Path(folder).expanduser() if folder else files[0].parent if files else hub_home()
    return ImageSource(place.absolute(), urls)


def content_hash(image: Mapping[str, Any]) -> str:
    """A hash of the bytes of an image as datasets stores it; empty where its file is gone."""
    path = image["path"] and Path(image["path"])
    content = image["bytes"] or (path.read_bytes() if path and path.is_file() else b"")
    return hashlib.sha256(content).hexdigest() if content else ""


# --- Marks --------------------------------------------------------------------------------------
def has_images(row: Cells, columns: Iterable[str | None] = COLUMNS) -> bool:
    """True for a row with a column of images, or whose turns hold an image."""
    turns = [turn for cell in row.values() if is_conversation(cell) for turn in cell]
    parts = [part for turn in turns if isinstance(turn.get("content"), list) for part in turn["content"]]
    return bool({*row} & {*columns}) or any(isinstance(part, Mapping) and part.get("type") in PARTS for part in parts)


def _payload(cell: Cells) -> Any:
    given = next((cell[key] for key in KEYS if cell.get(key) is not None), None)
    return given.get("url") if isinstance(given, Mapping) and "url" in given else given


class Marks:
    """The images of one row by their numbers, and how many places in its texts were left to those of the column."""

    def __init__(self, row: Cells, columns: Iterable[str | None] = COLUMNS):
        cells: list[Any] = [row[name] for name in columns if name and row.get(name) is not None]
        cell = next((each for each in cells if not isinstance(each, list | str) or each), [])
        self.images = list(cell) if isinstance(cell, list) else [cell]
        self.listed, self.places = len(self.images), 0

    def mark(self, row: Row, columns: Mapping[str, str]) -> Row:
        """The row with a mark for each image in the columns of these roles; plain text becomes turns."""
        marked = dict(row)
        for role, name in columns.items():
            if role == "text":
                raise DataError(fault("dataset.image_beside_text", where=role))
            if role in SPOKEN:
                text, place = row.get(name), count()  # each column repeats the places of the one before, if any
                is_one = isinstance(text, str) and role != "messages"
                marked[name] = self._mark_all([{"role": SPOKEN[role], "content": text}] if is_one else text, place)
                self.places = max(self.places, next(place))
        if self.listed and not self.places:  # then they stand in front of the first question
            asked = [name for role, name in columns.items() if role in ("messages", "prompt", "input")]
            for name in asked or [name for role, name in columns.items() if role in ("chosen", "rejected")]:
                for turn in (turn for turn in marked[name] if turn.get("role", turn.get("from")) in ("user", "human")):
                    turn["content"] = "".join(map(TO_MARK, range(self.listed))) + (turn.get("content") or "")
                    self.places = self.listed
                    break
        return marked

    def _mark_all(self, turns: Any, place: Iterator[int]) -> Any:
        if not is_conversation(turns):
            return turns
        found = []
        for turn in turns:
            content = turn["content"] if turn.get("content") is not None else turn.get("value")
            parts = [content] if isinstance(content, str) else content if isinstance(content, list) else []
            texts = [self._mark_part({"text": part} if isinstance(part, str) else part, place) for part in parts]
            found.append(dict(turn) | ({"content": "".join(texts)} if texts else {}))
        return found

    def _mark_part(self, part: Cells, place: Iterator[int]) -> str:
        if part.get("type") not in PARTS:
            if not isinstance(text := part_text(part), str):
                raise DataError(fault("dataset.image_none", where=IMAGES, kind=f"a part of type {part.get('type')}"))
            return re.sub("<image>", lambda found: TO_MARK(next(place)), text.replace("\ue0fd", ""))
        if (given := _payload(part)) is None:
            return TO_MARK(next(place))
        if given not in self.images[self.listed :]:
            self.images.append(given)
        return TO_MARK(self.images.index(given, self.listed))

    def place(self, made: Row, source: ImageSource) -> Row:
        """The converted row with parts in place of marks, and its images in the order of the parts."""
        if self.places != self.listed:
            raise DataError(fault("dataset.image_count", where=IMAGES, images=self.listed, places=self.places))
        if (many := len(self.images)) > MAX_IMAGES:
            raise DataError(fault("dataset.image_many", where=IMAGES, count=many, most=MAX_IMAGES))
        chats, order = {name: value for name, value in made.items() if is_conversation(value)}, list[int]()
        for name, turns in chats.items():
            for turn in turns:
                numbers = list(map(int, MARK.findall(turn["content"])))
                if numbers and (turn["role"] == "assistant" or name not in ("messages", "prompt")):
                    raise DataError(fault("dataset.image_answered", where=name))
                order += numbers
        sound = {number: source.read(self.images[number], f"{IMAGES}[{number}]") for number in dict.fromkeys(order)}
        for name, turns in chats.items():
            chats[name] = [turn | {"content": _to_parts(turn["content"])} for turn in turns]
        return made | chats | {IMAGES: [sound[number] for number in order]}


def _to_parts(text: str) -> list[Row]:
    pieces = enumerate(MARK.split(text))  # of which every second one is the number in a mark
    parts = [{"type": "image"} if odd % 2 else {"type": "text", "text": piece} for odd, piece in pieces if piece]
    return parts or [{"type": "text", "text": ""}]
