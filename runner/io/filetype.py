"""The type of a file that is not what its name promises, by its bytes, and what to type about it: ``filetype.toml``."""

import contextlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

TABLE = tomllib.loads(Path(__file__).with_name("filetype.toml").read_text(encoding="utf-8"))
HEAD = 512  # bytes that give a file away
SAMPLE = 1 << 18  # bytes before and behind the first that are no UTF-8, by which the encoding is known
SURE, MARGIN = 0.2, 0.15  # how much of a text looks like its language, and how much less of it in another encoding
UNKNOWN = "<its encoding>"


class Finding(NamedTuple):
    """The type that a file has instead, and what to type about it."""

    found: str
    fix: str


def sniff(head: bytes, name: str) -> Finding | None:
    """The finding of a file's first bytes where it is neither text in UTF-8 nor what its reader wants."""
    for kind in TABLE["kind"]:
        if re.match(kind["bytes"].encode(), head):
            base = name.rpartition("/")[2]
            stem = name.removesuffix(base) + base.partition(".")[0]
            return Finding(kind["found"], kind["fix"].format(base=base, name=shlex.quote(name), stem=shlex.quote(stem)))
    return other_encoding(encoding, name) if (encoding := wide_encoding(head)) else None


def wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, by their marks of byte order or by the zeros that they leave between letters."""
    marked = next((name for name, mark in TABLE["marks"].items() if re.match(mark.encode(), head)), None)
    if marked or not head:
        return marked
    zeros = head.count(0) / len(head)
    return "UTF-32" if zeros > 0.6 else "UTF-16" if zeros > 0.3 else None


def other_encoding(encoding: str, name: str) -> Finding:
    """The finding of text in another encoding than UTF-8."""
    file, code = shlex.quote(name), encoding.lower()
    old = f"{file}.{'old' if encoding == UNKNOWN else code}"
    return Finding(f"text in {encoding}", f"mv {file} {old} && iconv -f {code} -t utf-8 {old} > {file}")


def undecodable(data: bytes, name: str) -> Finding:
    """The finding of bytes that are not UTF-8: another encoding where that is sure, or which bytes are damaged."""
    if encoding := wide_encoding(data):
        return Finding(f"bytes that are not UTF-8, probably {encoding}", other_encoding(encoding, name).fix)
    number, line, sample = _first_bad_line(Path(name)) or (0, data, data)
    place = f" (line {number})" if number else ""
    if encoding := _sure_encoding(sample):
        reading = _around(line).decode(encoding, errors="ignore").strip()
        found = f"bytes that are not UTF-8{place}; by its letters it is {encoding}, which reads them as {reading!r}"
        return Finding(found, other_encoding(encoding, name).fix)
    bad = _bad_places(line)
    shown = " ".join(f"0x{line[start]:02x}" for start in bad[:3])
    found = f"{shown}{place} {'is' if len(bad) == 1 else 'are'} no UTF-8"
    if _is_damaged(sample):
        see = f"sed -n {number}p {shlex.quote(name)}" if number else f"mend {shlex.quote(name)}"
        return Finding(f"{found}; the rest of it is", f"{see}  (to see it, and mend it)" if number else see)
    return Finding(found, f"{other_encoding(UNKNOWN, name).fix}  (or mend {f'line {number}' if number else 'it'})")


def _first_bad_line(file: Path) -> tuple[int, bytes, bytes] | None:
    """The number and bytes of the first line that is not UTF-8, and a sample around it; None where none is found."""
    before = b""
    with contextlib.suppress(OSError), open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number, line, before + line + lines.read(SAMPLE)
            before = (before + line)[-SAMPLE:]
    return None


def _bad_places(data: bytes) -> list[int]:
    """The first places at which bytes are no UTF-8."""
    places: list[int] = []
    start = 0
    while len(places) < 100:
        try:
            data[start:].decode()
            break
        except UnicodeDecodeError as error:
            places.append(start + error.start)
            start += error.end
    return places


def _around(line: bytes) -> bytes:
    """The first bytes of a line that are not UTF-8, as far as they stand together with others beyond ASCII."""
    start = _bad_places(line)[0]
    found = re.search(rb"[\x80-\xff][^\x00-\x1f\"]{0,20}", line[start:])
    return found[0] if found else line[start : start + 10]


def _is_damaged(sample: bytes) -> bool:
    """True where nearly all letters beyond ASCII are UTF-8."""
    letters = [letter for letter in sample.decode(errors="replace") if letter > "\x7f"]
    bad = letters.count("\ufffd")
    return len(letters) - bad >= 3 * bad


def _sure_encoding(sample: bytes) -> str | None:
    """The encoding of a text by the letters of its language, where no other that reads otherwise is near as likely."""
    if _is_damaged(sample):
        return None
    try:
        import charset_normalizer  # of the libraries that download; nobody needs it for a training
    except ImportError:
        return None
    matches = list(charset_normalizer.from_bytes(sample))
    best = max(matches, key=lambda match: match.coherence, default=None)
    if best is None or best.coherence < SURE:
        return None
    rivals = [match for match in matches if match.coherence > best.coherence - MARGIN]
    return best.encoding.replace("_", "-") if all(str(rival) == str(best) for rival in rivals) else None


def special_file(path: Path) -> Finding | None:
    """The kind of a path that is no file to be read again and again; None for a file, or for nothing."""
    if path.is_symlink() and not path.exists():
        target = path.readlink()
        where = "in a circle" if target.name == path.name else f"to {target}, which is not there"
        return Finding(f"a link that leads {where}", f"ln -sfn <the file> {path.name}")
    if path.is_fifo() or path.is_socket():
        return Finding("a pipe, which can be read only once", f"cat {path.name} > rows.jsonl, and that file")
    is_device = path.is_char_device() or path.is_block_device()
    return Finding("a device", f"a file instead of {path.name}") if is_device else None
