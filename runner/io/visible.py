"""Texts of others without what could control a terminal or hide a part of them."""

import unicodedata

# categories of characters that are not seen, or hide others
INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
# Unicode has a picture for each control character.
PICTURES = {chr(code): chr(0x2400 + code) for code in range(32)} | {"\n": "↵", "\x7f": "␡"}


def to_visible(text: str) -> str:
    """The text on one line, with a sign for every character that is not seen or hides others."""
    if text.isprintable():
        return text
    return "".join(map(_sign_of, text))


def _sign_of(character: str) -> str:
    if character in PICTURES:
        return PICTURES[character]
    if unicodedata.category(character) in INVISIBLE:
        return "·"
    return character


def visible_lines(text: str) -> str:
    """The same of each line of a text; the lines stay."""
    return "\n".join(map(to_visible, text.split("\n")))
