"""Texts of others without what could steer a terminal or hide a part of them."""

import unicodedata

INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters that are not seen, or hide others
SIGNS = {chr(code): chr(0x2400 + code) for code in range(32)} | {"\n": "↵", "\x7f": "␡"}


def to_visible(text: str) -> str:
    """The text on one line, with a sign for every character that could steer a terminal or hide others."""
    if text.isprintable():
        return text
    return "".join(SIGNS.get(c) or ("·" if unicodedata.category(c) in INVISIBLE else c) for c in text)


def visible_lines(text: str) -> str:
    """The same of each line of a text; the lines stay."""
    return "\n".join(map(to_visible, text.split("\n")))
