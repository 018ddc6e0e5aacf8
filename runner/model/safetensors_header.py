"""The header of a safetensors file: the name, data type and shape of each weight.

A file begins with the length of its header, 8 bytes with the lowest first; the header is a JSON
object, and the numbers follow (https://github.com/huggingface/safetensors#format). The library of
that name reads it as well, but imports numpy for it, which a refusal need not wait for.
"""

import json
from dataclasses import dataclass
from pathlib import Path

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the library's own limit
METADATA = "__metadata__"  # the one key that is no weight


class HeaderError(ValueError):
    """A file that has no whole header, or not the numbers that its header promises."""


@dataclass(frozen=True)
class StoredWeight:
    """A weight as the header describes it."""

    dtype: str  # as safetensors calls it: F32, BF16, I8, ...
    shape: list[int]


def read_header(path: Path) -> dict[str, StoredWeight]:
    """Each weight of a safetensors file by its name, in the order of the names.

    Raises HeaderError where the file is cut off, too long, or of another type.
    """
    file_bytes = path.stat().st_size
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 0 < header_bytes <= min(MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES):
            raise HeaderError(f"a header of {header_bytes:,} bytes")
        text = file.read(header_bytes)
    try:
        entries = json.loads(text)
        entries.pop(METADATA, None)
        weights = {}
        end_of_numbers = 0
        for name, entry in sorted(entries.items()):
            shape = [int(size) for size in entry["shape"]]
            weights[name] = StoredWeight(str(entry["dtype"]), shape)
            _, end = entry["data_offsets"]
            end_of_numbers = max(end_of_numbers, int(end))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HeaderError(f"its header is not readable: {type(error).__name__}: {error}") from None
    number_bytes = file_bytes - LENGTH_BYTES - header_bytes
    if number_bytes != end_of_numbers:
        raise HeaderError(f"{number_bytes:,} bytes of numbers, of {end_of_numbers:,} promised")
    return weights
