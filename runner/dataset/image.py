"""Images of rows, each opened once, so that a bad one is known by its row. Without torch."""

import base64
import io
import os
import re
import urllib.request
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.dataset.form import Row
from runner.dataset.modality import IMAGE
from runner.errors import DataError, Fault, describe
from runner.io.files import hub_home
from runner.io.filetype import HEAD, sniff

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MAX_BYTES = 64 << 20  # of a file
MAX_LETTERS_PATH = 1024  # a longer text is base64
TIMEOUT = 20  # seconds
EXPECTED = "a path below the folder of the data, bytes, base64, or an image of Pillow's"


@dataclass(frozen=True)
class ImageSource:
    """The folder below which images lie, and whether rows may name URLs.

    With ``urls`` None a URL is kept and not fetched.
    """

    folder: Path = field(default_factory=hub_home)
    urls: bool | None = False

    def read(self, value: Any, where: str) -> Row:
        """An image as datasets stores it: its ``bytes``, or the ``path`` of its file.

        Raises DataError for one that cannot be decoded, with ``where`` as its place.
        """
        if isinstance(value, Mapping):
            value = IMAGE.payload(value)
        if hasattr(value, "save"):  # an image of Pillow's
            _check_image(value, where, where)
            file = io.BytesIO()
            value.convert("RGB").save(file, "PNG")
            value = file.getvalue()
        if not isinstance(value, str):
            return self._keep_bytes(value, where)
        if value.lower().startswith(("http://", "https://")):
            if self.urls is None:
                return {"bytes": None, "path": value}
            return self._keep_bytes(self._fetch(value, where), where)
        path = self._find(value, where)
        if path:
            if path.stat().st_size > MAX_BYTES:  # before so much is read
                raise DataError(_too_large(where))
            _check_image(path.read_bytes(), str(path), where)
            return {"bytes": None, "path": str(path)}
        try:
            text = re.sub(r"^(?i:data):[^,]*,|\s", "", value)
            content = base64.b64decode(text, validate=True)
        except ValueError:
            fault = Fault(
                where=where,
                found=f"there is no {value[:80]} below {self.folder}",
                expected=EXPECTED,
                fix="dataset.image_folder=<folder>",
            )
            raise DataError(fault) from None
        return self._keep_bytes(content, where)

    def _keep_bytes(self, content: object, where: str) -> Row:
        """The bytes of an image, once they have been decoded."""
        if not isinstance(content, bytes):
            raise DataError(no_image(where, type(content).__name__))
        _check_image(content, where, where)
        return {"bytes": content, "path": None}

    def _find(self, text: str, where: str) -> Path | None:
        """The file that a text names, None where it is base64 or names none."""
        # Base64 of JPEG begins like an absolute path.
        is_data = text.startswith(("data:", "/9j/")) or "\0" in text
        if is_data or len(text) > MAX_LETTERS_PATH:
            return None
        path = (self.folder / text).resolve()  # a link may lead out
        if not path.is_relative_to(self.folder.resolve()):
            fault = Fault(
                where=where,
                found=f"{text} is not below {self.folder}",
                expected=EXPECTED,
                fix="dataset.image_folder=<the folder that holds all images>",
            )
            raise DataError(fault)
        return path if os.path.isfile(path) else None  # also of a name that is too long for a file

    def _fetch(self, url: str, where: str) -> bytes:
        """The bytes behind a URL; raises DataError unless fetching was asked for and works."""
        if not self.urls:
            fault = Fault(
                where=where,
                found=f"the address {url[:80]}",
                expected="an image here; rows fetch nothing unless that is typed",
                fix="dataset.image_urls=true",
            )
            raise DataError(fault)
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "runner"})
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                return bytes(response.read(MAX_BYTES + 1))
        except Exception as error:  # of the URL, of the network, or of the other side
            fault = Fault(
                where=where,
                found=describe(error)[:120],
                expected="an image at the address",
            )
            raise DataError(fault) from error


def find_images(files: Sequence[Path], folder: str | None, urls: bool | None) -> ImageSource:
    """The images that rows may name.

    They lie below a given folder, else below that of the first file, else in the cache of the hub.
    """
    if folder:
        root = Path(folder).expanduser()
    elif files:
        root = files[0].parent
    else:
        root = hub_home()
    return ImageSource(root.absolute(), urls)


def no_image(where: str, kind: str) -> Fault:
    """The fault of something that is no image."""
    return Fault(where=where, found=f"{kind} in place of an image", expected=EXPECTED)


def _too_large(where: str) -> Fault:
    """The fault of a file that is too large for an image."""
    return Fault(where=where, found=f"more than {MAX_BYTES:,} bytes", expected="a smaller image")


def _check_image(data: Any, name: str, where: str) -> None:
    """Raise DataError for bytes, or an image of Pillow's, that cannot be decoded or are too large.

    ``name`` is the file of the bytes, by which their type is guessed.
    """
    from PIL import Image

    is_packed = isinstance(data, bytes)
    if is_packed and len(data) > MAX_BYTES:
        raise DataError(_too_large(where))
    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(data), formats=FORMATS) if is_packed else data
            image.load()
        if image.mode[0] in "IF":  # else all beyond 255 would be white
            raise ValueError(f"pixels of mode {image.mode}, which are no colours of 8 bits")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        # Pillow tells it by the header, before anything is decoded.
        fault = Fault(
            where=where,
            found=f"more than {Image.MAX_IMAGE_PIXELS:,} pixels",
            expected="a smaller image; this one would take more than a quarter of a gigabyte",
        )
        raise DataError(fault) from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        found = str(error).partition(" <")[0]
        finding = sniff(data[:HEAD], name) if is_packed and data[:1].isascii() else None
        if finding:
            found = finding.found
        fault = Fault(
            where=where,
            found=found,
            expected=f"an image that can be decoded to its end: {', '.join(FORMATS)}",
        )
        raise DataError(fault) from None
