"""The type of a file by its name; by its bytes one that is another, and what to type then."""

import contextlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HEAD = 512  # bytes that give a file away
# bytes before and behind the first that are no UTF-8, by which the encoding is known
SAMPLE = 1 << 18
# Shares of a text that look like its language: enough to be sure, and more than of another one.
SURE = 0.2
MARGIN = 0.15
MAX_BAD_PLACES = 100
UNKNOWN = "<its encoding>"
# The endings of files of rows; that of a compressed one comes last.
ROW_ENDINGS = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".gz")
# Endings of files with an experiment, ours or another tool's.
EXPERIMENT_FILES = (".yaml", ".yml", ".json", ".sh", ".bash")
# The same, and those of Python scripts and notebooks, which may hold rewards or anything else.
TRAINING_FILES = (*EXPERIMENT_FILES, ".py", ".ipynb")
# The compression of a file, by a suffix behind that of its content.
COMPRESSIONS = {".gz": "gzip", ".zst": "zstandard"}


class Finding(NamedTuple):
    """The type that a file has instead, and what to type about it."""

    found: str
    fix: str


@dataclass(frozen=True)
class FileKind:
    """A kind of file that holds no rows.

    In ``fix`` {name} is the path of the file, {stem} that without suffixes, {base} its last part.
    """

    first_bytes: bytes  # a pattern of them
    found: str
    fix: str


KINDS = (
    FileKind(
        rb"version https://git-lfs",
        found="a pointer that git-lfs left",
        fix="git lfs pull --include '*{base}'",
    ),
    FileKind(
        rb"\x1f\x8b",
        found="gzip data",
        fix="mv {name} {name}.gz && gunzip {name}.gz",
    ),
    FileKind(
        rb"\x28\xb5\x2f\xfd",
        found="zstandard data",
        fix="mv {name} {name}.zst",
    ),
    FileKind(
        rb"PAR1",
        found="parquet data",
        fix="mv {name} {stem}.parquet",
    ),
    FileKind(
        rb"PK\x03\x04",
        found="a zip archive",
        fix="unzip {name}",
    ),
    FileKind(
        rb"BZh",
        found="a file packed by bzip2",
        fix="mv {name} {name}.bz2 && bunzip2 {name}.bz2",
    ),
    FileKind(
        rb"\xfd7zXZ",
        found="a file packed by xz",
        fix="mv {name} {name}.xz && unxz {name}.xz",
    ),
    FileKind(
        rb"\x80[\x02-\x05]",
        found="a pickle, which can run code when it is read",
        fix="save what is in it as {stem}.jsonl",
    ),
    FileKind(
        rb"(?i)\s*<(?:!doctype html|html)",
        found="a web page",
        fix="download the file itself, not the page that shows it",
    ),
)
# Marks of byte order. The longer ones come first, because that of UTF-32 begins like UTF-16's.
MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


# --- The type of a file -------------------------------------------------------------------------
def sniff(head: bytes, name: str) -> Finding | None:
    """The finding of the first bytes of a file; None where they are text in UTF-8."""
    for kind in KINDS:
        if re.match(kind.first_bytes, head):
            base = name.rpartition("/")[2]
            stem = name.removesuffix(base) + base.partition(".")[0]
            fix = kind.fix.format(base=base, name=shlex.quote(name), stem=shlex.quote(stem))
            return Finding(kind.found, fix)
    encoding = wide_encoding(head)
    return other_encoding(encoding, name) if encoding else None


def special_file(path: Path) -> Finding | None:
    """The kind of a path that is no file to be read again and again; None for a file or nothing."""
    name = path.name
    if path.is_symlink() and not path.exists():
        target = path.readlink()
        where = f"to {target}, which is not there"
        if target.name == name:
            where = "in a circle"
        return Finding(f"a link that leads {where}", f"ln -sfn <the file> {name}")
    if path.is_fifo() or path.is_socket():
        return Finding(
            "a pipe, which can be read only once", f"cat {name} > rows.jsonl, and that file"
        )
    if path.is_char_device() or path.is_block_device():
        return Finding("a device", f"a file instead of {name}")
    return None


# --- The encoding of a text ---------------------------------------------------------------------
def wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, by their marks of byte order or by the zeros between their letters."""
    for mark, encoding in MARKS.items():
        if head.startswith(mark):
            return encoding
    if not head:
        return None
    zeros = head.count(0) / len(head)
    if zeros > 0.6:
        return "UTF-32"
    return "UTF-16" if zeros > 0.3 else None


def other_encoding(encoding: str, name: str) -> Finding:
    """The finding of text in another encoding than UTF-8."""
    file = shlex.quote(name)
    code = encoding.lower()
    suffix = "old" if encoding == UNKNOWN else code
    old = f"{file}.{suffix}"
    return Finding(
        f"text in {encoding}", f"mv {file} {old} && iconv -f {code} -t utf-8 {old} > {file}"
    )


@dataclass(frozen=True)
class BadLine:
    """The first line of a file that is not UTF-8."""

    number: int  # 0 where it is not known
    line: bytes
    sample: bytes  # the line and what stands around it


def undecodable(data: bytes, name: str) -> Finding:
    """The finding of bytes that are not UTF-8: another encoding if that is sure, or the damage."""
    encoding = wide_encoding(data)
    if encoding:
        fix = other_encoding(encoding, name).fix
        return Finding(f"bytes that are not UTF-8, probably {encoding}", fix)
    bad_line = _find_bad_line(Path(name)) or BadLine(0, data, data)
    number = bad_line.number
    place = f" (line {number})" if number else ""
    # Where nearly all letters beyond ASCII are UTF-8, the file is damaged.
    letters = [letter for letter in bad_line.sample.decode(errors="replace") if letter > "\x7f"]
    bad = letters.count("\ufffd")
    is_damaged = len(letters) - bad >= 3 * bad

    encoding = None if is_damaged else _sure_encoding(bad_line.sample)
    if encoding:
        reading = _around(bad_line.line).decode(encoding, errors="ignore").strip()
        return Finding(
            f"bytes that are not UTF-8{place}; it looks like {encoding}, "
            f"which reads them as {reading!r}",
            other_encoding(encoding, name).fix,
        )

    bad_places = _bad_places(bad_line.line)
    bad_bytes = [bad_line.line[start] for start in bad_places[:3]]
    shown = " ".join(f"0x{byte:02x}" for byte in bad_bytes)
    verb = "is" if len(bad_places) == 1 else "are"
    found = f"{shown}{place} {verb} not UTF-8"
    if not is_damaged:
        mend = f"line {number}" if number else "it"
        return Finding(found, f"{other_encoding(UNKNOWN, name).fix}  (or mend {mend})")
    fix = f"mend {shlex.quote(name)}"
    if number:
        fix = f"sed -n {number}p {shlex.quote(name)}  (to see it, and mend it)"
    return Finding(f"{found}; the rest of it is", fix)


def _find_bad_line(file: Path) -> BadLine | None:
    """The first line that is not UTF-8; None where none is found, or nothing can be read."""
    before = b""
    with contextlib.suppress(OSError), open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return BadLine(number, line, sample=before + line + lines.read(SAMPLE))
            before = (before + line)[-SAMPLE:]
    return None


def _bad_places(data: bytes) -> list[int]:
    """The first places at which bytes are no UTF-8."""
    places: list[int] = []
    start = 0
    while len(places) < MAX_BAD_PLACES:
        try:
            data[start:].decode()
            break
        except UnicodeDecodeError as error:
            places.append(start + error.start)
            start += error.end
    return places


def _around(line: bytes) -> bytes:
    """The first bytes of a line that are not UTF-8, with others beyond ASCII next to them."""
    start = _bad_places(line)[0]
    match = re.search(rb"[\x80-\xff][^\x00-\x1f\"]{0,20}", line[start:])
    if match:
        return match[0]
    return line[start : start + 10]


def _sure_encoding(sample: bytes) -> str | None:
    """The encoding in which a text looks like its language; None where others come near it."""
    try:
        import charset_normalizer  # of the libraries that download; nobody needs it for a training
    except ImportError:
        return None
    matches = list(charset_normalizer.from_bytes(sample))
    best = max(matches, key=lambda match: match.coherence, default=None)
    if best is None or best.coherence < SURE:
        return None
    for rival in matches:
        # Encodings that read the text the same are as good.
        if rival.coherence > best.coherence - MARGIN and str(rival) != str(best):
            return None
    return str(best.encoding).replace("_", "-")


# --- By its name --------------------------------------------------------------------------------


def suffix_of(path: Path) -> str:
    """The suffix of a file's content, without a .gz or .zst behind it."""
    return Path(without_compression(path.name)).suffix.lower()


def without_compression(name: str) -> str:
    """The name of a file without a .gz or .zst behind it."""
    if name.lower().endswith(tuple(COMPRESSIONS)):
        return name[: name.rindex(".")]
    return name
