"""The kinds of data that rows may hold beside text: today images.

All that is special about a kind stands in its record, in ``MODALITIES``, and in the functions that
the record names: where rows have it, how one is checked, stored, named and shown, and which models,
processors and trainers take it. How media of any kind are fetched is in ``dataset.media_source``,
and how their places in texts survive the conversion in ``dataset.mark``. Nothing of torch.

A further kind is a further record. It needs its column in ``role.MediaColumn``, a field of that
name in ``config.experiment.TrainerPart``, and that field set in the YAML of the trainers that learn
from it: TRL's know images alone, so that another kind needs a collator in ``training``. Its name
must leave ``UNTRAINED``. Three more places know images by name: ``report.page``, whose pages show
no other element than ``<img>``; ``conf/speed/max.yaml``, which groups no rows by length for models
that see; and the importers' tables, for their keys of columns.
"""

import base64
import hashlib
import io
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.io.filetype import HEAD, sniff
from runner.io.turns import Row, TurnDict, Turns
from runner.schema.role import MediaColumn

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

# Kinds that no trainer here learns from: columns of these names, and types of datasets.
UNTRAINED = ("audio", "video")
UNTRAINED_COLUMNS = (*UNTRAINED, *(f"{name}s" for name in UNTRAINED))
_UNTRAINED_NAMES = "|".join(name.title() for name in UNTRAINED)
UNTRAINED_TYPE = re.compile(rf"(?:List\()*(?:{_UNTRAINED_NAMES})\(")


@dataclass(frozen=True)
class Unreadable:
    """The reason why one of a kind cannot be taken, for a message."""

    found: str
    expected: str


@dataclass(frozen=True)
class Modality:
    """A kind of data beside text."""

    one: str  # of it, in messages, such as "an image"
    many: str
    expected: str  # what a row may hold or name, in messages
    # In rows of a source:
    columns: tuple[str, ...]  # which hold one or a list; the first that holds any counts
    part_types: tuple[str, ...]  # of parts of turns
    payload_keys: tuple[str, ...]  # of a part or a cell, under which the data may stand
    placeholder: str  # in a text, as other tools write it
    max_per_row: int
    # In converted rows:
    column: MediaColumn  # a list in the order of the places; trainers that take it say so by this
    part_type: str  # of the parts of turns, and the key of its data there, as processors take them
    feature: str  # the type in datasets, which stores ``bytes`` and ``path``
    # For models:
    processor_part: str  # the attribute of a processor that reads it
    config_part: str  # the key of a model's config for the part that reads it
    model_class: str  # of transformers, which loads such a model with all its parts
    # The name of this class in the tables of transformers. A table that is no literal there,
    # because it is made of others, counts as empty: ``model.architecture`` would know no model.
    model_table: str
    token_key: str  # of configs and processors, for the token that stands for it
    verb: str  # what such models do, in messages
    # Those that take it, as they are typed; for a kind that none of ours takes, words such as "one
    # of your own".
    trainers: str
    # One of it:
    check: Callable[[bytes, str], Unreadable | None]  # bytes, and the name of their file
    pack: Callable[[object], bytes | Unreadable | None]  # as a file; None for what is not in memory
    # Of what datasets gives for ``feature``:
    describe: Callable[[Any], str]
    to_html: Callable[[Any, str], str]  # an element of a page with its name, its texts escaped
    feature_settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    # --- In rows of a source --------------------------------------------------------------------

    def columns_of_source(self, chosen: str | None) -> tuple[str, ...]:
        """The columns in which a source may hold it, the one that was ``chosen`` for it first."""
        return (chosen, *self.columns) if chosen else self.columns

    def find_column(self, columns: Collection[str]) -> str:
        """The column of a source that holds it, empty where there is none."""
        for name in self.columns:
            if name in columns:
                return name
        return ""

    def is_in(self, row: Row, columns: Iterable[str] | None = None) -> bool:
        """True for a row with a column of it, or with a part of it in its turns."""
        if any(name in row for name in columns or self.columns):
            return True
        return any(self.is_part(part) for part in _list_parts(row))

    def is_part(self, part: object) -> bool:
        """True for a part of a turn that holds it, or has its place."""
        return isinstance(part, Mapping) and part.get("type") in self.part_types

    def payload(self, cell: Row) -> Any:
        """The data of a part or a cell; None where only its place is there."""
        for key in self.payload_keys:
            data = cell.get(key)
            if data is None:
                continue
            if isinstance(data, Mapping) and "url" in data:  # as in requests to OpenAI
                return data.get("url")
            return data
        return None

    # --- In converted rows ----------------------------------------------------------------------

    def column_type(self) -> Any:
        """The type of the column of converted rows."""
        import datasets

        feature = getattr(datasets, self.feature)
        return datasets.List(feature(**self.feature_settings))

    def undecoded(self, kind: object) -> Any:
        """The type of a column of a source as it is stored, so that nothing is decoded unseen.

        None for a column of something else.
        """
        import datasets

        feature = getattr(datasets, self.feature)
        if isinstance(kind, feature):
            return feature(decode=False)
        if isinstance(getattr(kind, "feature", None), feature):
            return datasets.List(feature(decode=False))
        return None

    def content_hash(self, stored: Row) -> str:
        """A hash of the bytes of one as datasets stores it; empty where its file is gone."""
        content = stored["bytes"]
        if not content and stored["path"]:
            path = Path(stored["path"])
            content = path.read_bytes() if path.is_file() else b""
        if not content:
            return ""
        return hashlib.sha256(content).hexdigest()

    # --- For models and trainers ----------------------------------------------------------------

    def is_taken_by(self, trainer: Mapping[str, Any]) -> bool:
        """True for the node of a trainer that says that it takes rows with it."""
        return bool(trainer.get(self.column))

    def is_read_by(self, processor: object) -> bool:
        """True for a processor that reads it."""
        return hasattr(processor, self.processor_part)


# --- Images -------------------------------------------------------------------------------------

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
THUMBNAIL_PIXELS = 96  # of the longer side of an image


def _check_image(data: "bytes | PillowImage", name: str) -> Unreadable | None:
    """The reason why bytes, or an image of Pillow's, cannot be decoded or are too large; else None.

    ``name`` is the file of the bytes, by which their type is guessed.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            if isinstance(data, bytes):
                image: PillowImage = Image.open(io.BytesIO(data), formats=FORMATS)
            else:
                image = data
            image.load()
        if image.mode[0] in "IF":  # else all beyond 255 would be white
            raise ValueError(f"pixels of mode {image.mode}, which are no colours of 8 bits")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        # Pillow tells it by the header, before anything is decoded.
        return Unreadable(
            found=f"more than {Image.MAX_IMAGE_PIXELS:,} pixels",
            expected="a smaller image; this one would take more than a quarter of a gigabyte",
        )
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        found = str(error).partition(" <")[0]
        if isinstance(data, bytes) and data[:1].isascii():
            finding = sniff(data[:HEAD], name)
            if finding:
                found = finding.found
        return Unreadable(found, f"an image that can be decoded to its end: {', '.join(FORMATS)}")
    return None


def _pack_image(value: Any) -> bytes | Unreadable | None:
    """An image of Pillow's as a PNG file; None for anything else."""
    if not hasattr(value, "save"):
        return None
    unreadable = _check_image(value, "")
    if unreadable:
        return unreadable
    file = io.BytesIO()
    value.convert("RGB").save(file, "PNG")
    return file.getvalue()


def _describe_image(image: "PillowImage") -> str:
    """The file of an image of Pillow's, or else a hash of its pixels, and its size."""
    name = Path(getattr(image, "filename", "")).name
    if not name:
        name = hashlib.sha256(image.tobytes()).hexdigest()[:12]
    return f"{name}, {image.width} x {image.height}"


def _image_to_html(image: "PillowImage", name: str) -> str:
    """A small copy of an image as an element of a page."""
    small = image.copy()
    small.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    file = io.BytesIO()
    small.save(file, "PNG")
    letters = base64.b64encode(file.getvalue()).decode()
    style = "min-width: 64px; image-rendering: pixelated"
    return f'<img alt="{name}" style="{style}" src="data:image/png;base64,{letters}">'


IMAGE = Modality(
    one="an image",
    many="images",
    expected="a path below the folder of the data, bytes, base64, or an image of Pillow's",
    columns=("images", "image"),
    part_types=("image", "image_url", "input_image"),
    payload_keys=("image", "image_url", "url", "bytes", "path", "value"),
    placeholder="<image>",
    max_per_row=64,
    column="images",
    part_type="image",
    feature="Image",
    feature_settings={"mode": "RGB"},
    processor_part="image_processor",
    config_part="vision_config",
    model_class="AutoModelForImageTextToText",
    model_table="IMAGE_TEXT_TO_TEXT",
    token_key="image_token_id",
    verb="sees",
    trainers="sft | dpo | kto | grpo | rloo",
    check=_check_image,
    pack=_pack_image,
    describe=_describe_image,
    to_html=_image_to_html,
)

# --- All kinds ----------------------------------------------------------------------------------

MODALITIES = (IMAGE,)
MEDIA_COLUMNS = frozenset(modality.column for modality in MODALITIES)
PART_TYPES = frozenset(modality.part_type for modality in MODALITIES)


def modalities_of(columns: Collection[str]) -> list[Modality]:
    """The kinds that converted rows with these columns have."""
    return [modality for modality in MODALITIES if modality.column in columns]


def is_media_part(part: object) -> bool:
    """True for a part of a turn that holds data of any of the kinds, or has its place."""
    return any(modality.is_part(part) for modality in MODALITIES)


def list_media(row: Row) -> list[tuple[Modality, Any]]:
    """The media of a converted row, those of a kind in the order of their places."""
    media = []
    for modality in MODALITIES:
        media += [(modality, medium) for medium in row.get(modality.column) or ()]
    return media


def fill_parts(turns: Turns, media: Iterable[tuple[Modality, object]]) -> list[TurnDict]:
    """Turns whose contents are lists of parts, with media in their places, in their order."""
    remaining: dict[str, list[object]] = {part_type: [] for part_type in PART_TYPES}
    for modality, medium in media:
        remaining[modality.part_type].append(medium)
    filled = []
    for turn in turns:
        content = turn["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        parts = []
        for part in content:
            kind = part["type"]
            if kind in PART_TYPES:
                waiting = remaining[kind]
                part = {**part, kind: waiting.pop(0) if waiting else None}
            parts.append(part)
        filled.append({**turn, "content": parts})
    return filled


def _list_parts(row: Row) -> Iterator[object]:
    """The parts of all turns of a row; the conversion refuses what is no turn."""
    for cell in row.values():
        turns = cell if isinstance(cell, list) else []
        for turn in turns:
            content = turn.get("content") if isinstance(turn, Mapping) else None
            if isinstance(content, list):
                yield from content
