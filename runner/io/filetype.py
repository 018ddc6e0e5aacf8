"""The type of a file that is not what its name promises, by its bytes, and what to type about it: ``filetype.toml``."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

TABLE = tomllib.loads(Path(__file__).with_name("filetype.toml").read_text(encoding="utf-8"))
HEAD = 512  # bytes that give a file away


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
    return Finding(f"text in {encoding}", f"mv {file} {file}.{code} && iconv -f {code} -t utf-8 {file}.{code} > {file}")


def undecodable(line: bytes, name: str) -> Finding:
    """The finding of bytes that are not UTF-8, with the encoding that they probably are."""
    encoding = wide_encoding(line) or ("cp1252" if re.search(rb"[\x80-\x9f]", line) else "latin1")
    return Finding(f"bytes that are not UTF-8, probably {encoding}", other_encoding(encoding, name).fix)


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
