"""Images of rows, and other media, each opened once, so that a bad one is known by its row.

Without torch.
"""

import base64
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.dataset.form import Row
from runner.errors import DataError, Fault, describe
from runner.io.files import hub_home
from runner.schema.modality import Modality, Unreadable

MAX_BYTES = 64 << 20  # of a file
MAX_LETTERS_PATH = 1024  # a longer text is base64
TIMEOUT = 20  # seconds


@dataclass(frozen=True)
class MediaSource:
    """The folder below which media lie, and whether rows may name URLs.

    With ``urls`` None a URL is kept and not fetched.
    """

    folder: Path = field(default_factory=hub_home)
    urls: bool | None = False

    def read(self, modality: Modality, value: object, where: str) -> Row:
        """One medium as datasets stores it: its ``bytes``, or the ``path`` of its file.

        Raises DataError for one that cannot be decoded, with ``where`` as its place.
        """
        if isinstance(value, Mapping):
            value = modality.payload(value)
        packed = modality.pack(value)
        if isinstance(packed, Unreadable):
            raise _unreadable(packed, where)
        if packed is not None:
            value = packed
        if not isinstance(value, str):
            return _keep_bytes(modality, value, where)
        if value.lower().startswith(("http://", "https://")):
            if self.urls is None:
                return {"bytes": None, "path": value}
            return _keep_bytes(modality, self._fetch(modality, value, where), where)
        path = self._find(modality, value, where)
        if path:
            return _keep_path(modality, path, where)
        try:
            text = re.sub(r"^(?i:data):[^,]*,|\s", "", value)
            content = base64.b64decode(text, validate=True)
        except ValueError:
            fault = Fault(
                where=where,
                found=f"there is no {value[:80]} below {self.folder}",
                expected=modality.expected,
                fix="dataset.image_folder=<folder>",
            )
            raise DataError(fault) from None
        return _keep_bytes(modality, content, where)

    def _find(self, modality: Modality, text: str, where: str) -> Path | None:
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
                expected=modality.expected,
                fix=f"dataset.image_folder=<the folder that holds all {modality.many}>",
            )
            raise DataError(fault)
        return path if os.path.isfile(path) else None  # also of a name that is too long for a file

    def _fetch(self, modality: Modality, url: str, where: str) -> bytes:
        """The bytes behind a URL; raises DataError unless fetching was asked for and works."""
        if not self.urls:
            fault = Fault(
                where=where,
                found=f"the address {url[:80]}",
                expected=f"{modality.one} here; rows fetch nothing unless you type it",
                fix="dataset.image_urls=true",
            )
            raise DataError(fault)
        import urllib.request

        try:
            request = urllib.request.Request(url, headers={"User-Agent": "runner"})
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                return bytes(response.read(MAX_BYTES + 1))
        except Exception as error:  # of the URL, of the network, or of the other side
            fault = Fault(
                where=where,
                found=describe(error)[:120],
                expected=f"{modality.one} at the address",
            )
            raise DataError(fault) from error


def find_media(files: Sequence[Path], folder: str | None, urls: bool | None) -> MediaSource:
    """The media that rows may name.

    They lie below a given folder, else below that of the first file, else in the cache of the hub.
    """
    if folder:
        root = Path(folder).expanduser()
    elif files:
        root = files[0].parent
    else:
        root = hub_home()
    return MediaSource(root.absolute(), urls)


def not_a_medium(modality: Modality, where: str, kind: str) -> Fault:
    """The fault of something that stands in place of a medium."""
    found = f"{kind} in place of {modality.one}"
    return Fault(
        where=where,
        found=found,
        expected=modality.expected,
    )


def _keep_bytes(modality: Modality, content: object, where: str) -> Row:
    """The bytes of a medium, once they have been decoded."""
    if not isinstance(content, bytes):
        raise DataError(not_a_medium(modality, where, type(content).__name__))
    if len(content) > MAX_BYTES:
        raise DataError(_too_large(modality, where))
    unreadable = modality.check(content, where)
    if unreadable:
        raise _unreadable(unreadable, where)
    return {"bytes": content, "path": None}


def _keep_path(modality: Modality, path: Path, where: str) -> Row:
    """The place of a medium's file, once it has been decoded."""
    if path.stat().st_size > MAX_BYTES:  # before so much is read
        raise DataError(_too_large(modality, where))
    unreadable = modality.check(path.read_bytes(), str(path))
    if unreadable:
        raise _unreadable(unreadable, where)
    return {"bytes": None, "path": str(path)}


def _unreadable(reason: Unreadable, where: str) -> DataError:
    """The error of a medium that cannot be decoded."""
    return DataError(
        Fault(
            where=where,
            found=reason.found,
            expected=reason.expected,
        )
    )


def _too_large(modality: Modality, where: str) -> Fault:
    """The fault of a file that is too large."""
    found = f"more than {MAX_BYTES:,} bytes"
    return Fault(
        where=where,
        found=found,
        expected=f"a smaller {modality.part_type}",
    )
