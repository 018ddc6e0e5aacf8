"""Secrets, known by their form, by what they are called, or because the environment holds them; and texts without any.

Standard library only, because errors and files call this before a byte is written. ``validate`` refuses secrets in a
configuration.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus

HIDDEN = "<secret>"
PLAIN = r"[^/\s:@\[\](){}<>^$*+|\\\"']"  # of a name or password in an address; a regex or a placeholder is none
MIXED = r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]"
MAKERS = "sk_live|gsk|nvapi|r8|wandb_v1|npm|dapi|glpat|pypi"
IN_A_QUERY = r"\w*token|api_?key|(?:x-\w+-)?signature|sig|\w*secret|password|access_?key"
# Each form of a secret with its name. The names of data sets and models must not look like one: sk-learn, hf_dataset.
FORMS = {
    "a token of the Hugging Face hub": r"\b(?:hf|api_org|hf_oauth)_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,}",
    "an API key": rf"\bsk-[\w-]*?{MIXED}{{16,}}|\b(?:{MAKERS})[-_]\w*{MIXED}{{20,}}|\bAIza[\w-]{{30,}}",
    "a token of GitHub": r"\bgh[opsur]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}",
    "a key of AWS": r"\bA[KS]IA[A-Z0-9]{16}\b",
    "a token of Slack": r"\bxox[abeprs]-[\w-]{10,}",
    "a private key": r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z -]*"
    r"(?:(?:(?!-----)[\s\S]){0,20000}-----END[A-Z0-9 ]*KEY[A-Z ]*-----|(?:(?:\s|\\n)*[\w+/=]{16,})*)",
    "a web token": r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}",
    "a header that logs in": r"\b(?:[Bb]earer|[Bb]asic)\s+(?=\S*\d)(?=\S*[A-Za-z])[\w.~+/=-]{16,}",
    "an address with a password": rf"://{PLAIN}*:{PLAIN}+@(?=[\w\[])|://(?=[\w.-]{{12,}}@){MIXED}[\w.-]*@(?=\w)",
    "an address with a key": rf"(?i:[?&](?:{IN_A_QUERY})=[^&\s'\"<$]{{8,}})",
}
SECRET_VALUE = re.compile("|".join(FORMS.values()))
SECRET_KEY = re.compile(
    r"(?:^|_)(?:password|passwd|passphrase|secret|(?:secret|api|access|private|signing|client)_?key|key_?secret|apikey"
    r"|credential|authorization|cookie)s?$"
)
LOGIN_KEY = re.compile(r"^token$|(?:^|_)(?:hub|hf|auth|access|api|bearer|refresh|session|login|wandb|security)_token$")
# A text that nobody has in a vocabulary.
MIXED_TEXT = re.compile(r"(?=.{20,})(?=.*\d)(?=.*[A-Za-z])[\w.-]+")
NAMES = "token|passw(?:or)?d|passphrase|secret|api_?key|access_key|private_key|credentials?"
# The name of a variable that holds a secret: one of its words says so.
VARIABLE = re.compile(
    rf"(?:^|_)(?:\w*token|{NAMES}|pass|apikey|key|auth|authorization|pat|dsn|cookie)s?(?:_|$)", re.IGNORECASE
)
PASSWORD_IN_ADDRESS = re.compile(r"://(?:[^/\s:@]*:)?(?<=[/:])([^/\s:@]{8,})@")
LOGINS = r"(?:hub|hf|auth|access|api|bearer|refresh|wandb)_token"
# key=value where the key says that the value is a secret.
GIVEN = re.compile(
    rf"(?i)(\b(?:[\w.]*[_.])?(?:{LOGINS}|password|passwd|secret|api_?key|access_key|private_key)\s*=\s*)"
    r"(?![<.$\s])[^\s'\",;]{3,}"
)
# The same in source, where a value is quoted, or follows a name in capitals as in a .env file.
VALUE = r"[\w.~+/=:@!%&*-]{8,}"
WRITTEN = re.compile(
    rf"""(?i:([\w.-]*(?:{NAMES})["']?\s*[=:]\s*["']))(?=[^"'\n]*[A-Z0-9]){VALUE}(?=["'])"""
    rf"|(?m:^([-+ ]?\s*(?:export\s+)?(?:[A-Z0-9]+_)*(?:TOKEN|PASSWORD|SECRET|KEY|PASS)\s*=\s*)){VALUE}"
)
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
MARKED: set[str] = set()  # variables that hold a secret whatever they are called


def form_of(text: str) -> str:
    """The kind of secret that a text holds by its form; empty for none.

    >>> form_of("https://me:pa55word@host/rows.jsonl"), form_of("sk-learn/contributions-of-2024")
    ('an address with a password', '')
    """
    return next((name for name, pattern in FORMS.items() if re.search(pattern, text)), "")


def names_secret(variable: str) -> bool:
    """True for a variable of the environment that holds a secret, by its name.

    >>> names_secret("MY_TOKEN_2"), names_secret("TOKENIZERS_PARALLELISM")
    (True, False)
    """
    return bool(VARIABLE.search(variable))


def mark_secret(variable: str) -> None:
    """Count a variable of the environment as a secret from now on."""
    MARKED.add(variable)


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
    """The text in the place of a secret; of an address its shape stays."""
    if found[0].startswith("://"):
        return f"://{HIDDEN}@"
    return f"{found[0].partition('=')[0]}={HIDDEN}" if found[0][0] in "?&" else HIDDEN


def without_values(text: str) -> str:
    """A text without the secrets that the environment holds, in any of their encodings."""
    pattern = _pattern(tuple(holders()))
    return pattern.sub(HIDDEN, text) if pattern else text


@functools.lru_cache(maxsize=8)
def _pattern(values: tuple[str, ...]) -> re.Pattern[str] | None:
    encoded = sorted({text for value in values for text in _encodings(value)}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, encoded))) if encoded else None


def _encodings(value: str) -> Iterator[str]:
    """A value as it is, escaped once or twice, in hex, and in base64, where what stands before it shifts the letters.

    So is each line of one with several, because texts are often printed by lines.
    """
    lines = [line.strip() for line in value.splitlines() if "-----" not in line]
    for text in {value, *(line for line in lines if len(line) >= SHORTEST and _is_random(line))}:
        escaped = {escape(text) for escape in ESCAPES}
        yield from escaped | {escape(again) for again in escaped for escape in ESCAPES}
        yield from (text.encode().hex(), text.encode().hex().upper())
        for shift in range(3):
            encoded = base64.b64encode(b"\0" * shift + text.encode()).decode().rstrip("=")
            shifted = encoded[(0, 2, 3)[shift] : len(encoded) - 1]
            yield from (shifted, shifted.replace("+", "-").replace("/", "_"))


def _is_random(value: str) -> bool:
    """True for a value that could be a secret at all: nothing that is likely to stand in any text."""
    if len(value) < SHORTEST or value.startswith(("/", "~", "./")) or value.isspace():
        return False
    kinds = [str.islower, str.isupper, str.isdigit, lambda letter: not letter.isalnum()]
    return len(value) >= 20 or sum(any(map(kind, value)) for kind in kinds) > 1
