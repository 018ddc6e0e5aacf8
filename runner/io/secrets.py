"""Secrets, known by form or name (``secrets.toml``), or because the environment holds them; and texts without any."""

import base64
import functools
import html
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

HIDDEN = "<secret>"
PATTERNS = tomllib.loads(Path(__file__).with_name("secrets.toml").read_text(encoding="utf-8"))
FORMS: dict[str, str] = PATTERNS["forms"]
SECRET_VALUE = re.compile("|".join(FORMS.values()))
NAMES = ("secret_key", "login_key", "mixed_text", "variable", "password_in_address", "given", "written")
NAMED = [re.compile(PATTERNS[name]) for name in NAMES]
SECRET_KEY, LOGIN_KEY, MIXED_TEXT, VARIABLE, PASSWORD_IN_ADDRESS, GIVEN, WRITTEN = NAMED
# The ways in which source, JSON, addresses, pages and shells spell a text, without the quotes around it.
ESCAPES: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: repr(text)[1:-1],
    lambda text: ascii(text)[1:-1],
    lambda text: repr(text.encode())[2:-1],
    lambda text: text.replace("\\", "\\\\").replace("'", "\\'"),
    lambda text: quote(text, safe=""),
    lambda text: quote_plus(text),
    lambda text: html.escape(text, quote=False),
    html.escape,
    lambda text: text.replace("'", "'\"'\"'"),
)
SHORTEST = 8
PIECE = re.compile(r"[\w+/=.-]{12,}")  # of a secret of one word, whose rest may stand in another line
MARKED: set[str] = set()  # variables that hold a secret whatever they are called


def form_of(text: str) -> str:
    """The kind of secret that a text holds by its form; empty for none."""
    return next((name for name, pattern in FORMS.items() if re.search(pattern, text)), "")


def names_secret(variable: str) -> bool:
    """True for a variable of the environment that holds a secret, by its name."""
    return bool(VARIABLE.search(variable))


def holders() -> dict[str, str]:
    """Each secret that the environment holds, with the name of its variable; paths and plain words are none."""
    return _holders(tuple(os.environ.items()), frozenset(MARKED))


@functools.lru_cache(maxsize=8)
def _holders(environment: tuple[tuple[str, str], ...], marked: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in environment:
        if "://" in value:
            found |= {word: name for word in PASSWORD_IN_ADDRESS.findall(value)}
        elif (name in marked or VARIABLE.search(name)) and _is_random(value):
            found[value] = name
    return found


def holder_of(text: str) -> str:
    """The variable whose secret a text holds; empty for none."""
    found = holders()
    return next((name for value, name in found.items() if text == value or (len(value) >= 12 and value in text)), "")


def hidden(text: str) -> str:
    """A text with ``<secret>`` in the place of whatever in it is one: by value, by form, or by what it is called.

    >>> hidden("push_to_hub=true hub_token=abcd to https://me:pa55word@host/x")
    'push_to_hub=true hub_token=<secret> to https://<secret>@host/x'
    """
    return SECRET_VALUE.sub(_blank, GIVEN.sub(rf"\1{HIDDEN}", without_values(text)))


def hidden_source(text: str) -> str:
    """Source text, such as a diff, without secrets: also without a quoted text that is assigned to what is called one.

    >>> hidden_source('+password = "hunter22"; eos_token = "<|im_end|>"')
    '+password = "<secret>"; eos_token = "<|im_end|>"'
    """
    text = WRITTEN.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}", without_values(text))
    return SECRET_VALUE.sub(_blank, text)


def _blank(found: re.Match[str]) -> str:
    if found[0].startswith("://"):
        return f"://{HIDDEN}@"
    return f"{found[0].partition('=')[0]}={HIDDEN}" if found[0][0] in "?&" else HIDDEN


def without_values(text: str) -> str:
    """A text without the secrets that the environment holds, in any of their encodings, and long pieces of them."""
    text = text.encode(errors="backslashreplace").decode()  # a file's name may hold what is no letter
    if not (values := tuple(holders())):
        return text
    text = pattern.sub(HIDDEN, text) if (pattern := _pattern(values)) else text
    words = [value for value in values if PIECE.fullmatch(value)]
    return PIECE.sub(lambda it: HIDDEN if any(it[0] in one for one in words) and _is_random(it[0]) else it[0], text)


@functools.lru_cache(maxsize=8)
def _pattern(values: tuple[str, ...]) -> re.Pattern[str] | None:
    """Values, and each of their lines, as they are, wrapped, escaped once or twice, in hex, in base64 as shifted."""
    lines = [line.strip() for value in values for line in value.splitlines() if "-----" not in line]
    spelt: set[str] = set()
    for text in {*values, *filter(_is_random, lines)}:
        escaped = {escape(text) for escape in ESCAPES}
        spelt |= escaped | {escape(again) for again in escaped for escape in ESCAPES}
        spelt |= {text.encode().hex(), text.encode().hex().upper()}
        for shift in range(3):
            encoded = base64.b64encode(b"\0" * shift + text.encode()).decode().rstrip("=")
            shifted = encoded[(0, 2, 3)[shift] : len(encoded) - 1]
            spelt |= {shifted, shifted.replace("+", "-").replace("/", "_")}
    longest_first = map(re.escape, sorted(spelt, key=len, reverse=True))
    wrapped = [r"\s*".join(map(re.escape, "".join(value.split()))) for value in values]
    return re.compile("|".join([*longest_first, *wrapped])) if spelt else None


def _is_random(value: str) -> bool:
    if len(value) < SHORTEST or value.startswith(("/", "~", "./")) or value.isspace():
        return False
    kinds = [str.islower, str.isupper, str.isdigit, lambda letter: not letter.isalnum()]
    return len(value) >= 20 or sum(any(map(kind, value)) for kind in kinds) > 1
