"""Secrets, known by form, by name, or because the environment holds them; texts without any.

No pattern looks far ahead from every place of a text, which may be a diff with a picture in one
line of megabytes. A regular expression or a placeholder in the place of a secret is no secret.
"""

import base64
import functools
import html
import json
import os
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

HIDDEN = "<secret>"
MIN_LETTERS = 8  # of a value that can be a secret
MIN_LETTERS_INSIDE = 12  # of one that is looked for inside another text
# of a secret of one word, whose rest may stand in another line
PIECE = re.compile(r"[\w+/=.-]{12,}")
MARKED: set[str] = set()  # variables that hold a secret whatever they are called

# The name of a key that holds a secret.
SECRET_KEY = re.compile(
    r"""
    (?:^|_)
    (?:password|passwd|passphrase|secret|(?:secret|api|access|private|signing|client)_?key
      |key_?secret|apikey|credential|authorization|cookie)
    s?$
    """,
    re.VERBOSE,
)

# The name of a key that holds a login; other tokens are words of a vocabulary.
LOGIN_KEY = re.compile(
    r"^token$|(?:^|_)(?:hub|hf|auth|access|api|bearer|refresh|session|login|wandb|security)_token$"
)

# A text that nobody has in a vocabulary.
MIXED_TEXT = re.compile(r"(?=.{20,})(?=.*\d)(?=.*[A-Za-z])[\w.-]+")

# The name of a variable that holds a secret: one of its words says so.
VARIABLE = re.compile(
    r"""
    (?:^|_)
    (?:\w*token|\w*passw(?:or)?d|\w*pwd|passphrase|secret|\w*api_?key|secret_?key|access_key
      |private_key|credentials?|pass|sshpass|pw|key|jwt|bearer|auth|authorization|pat|dsn|cookie)
    s?\d*(?:_|$)
    """,
    re.VERBOSE | re.IGNORECASE,
)

# The password of an address.
PASSWORD_IN_ADDRESS = re.compile(r"://(?:[^/\s:@]*:)?(?<=[/:])([^/\s:@]{8,})@")

# key=value where the key says that the value is a secret.
ASSIGNED = re.compile(
    r"""
    ((?<![^\W_])
      (?:(?:hub|hf|auth|access|api|bearer|refresh|wandb)_token|password|passwd|secret|api_?key
        |access_key|private_key)
      \s*=\s*)
    (?![<.$\s])[^\s'",;]{3,}
    """,
    re.VERBOSE | re.IGNORECASE,
)

# The same in source, where a value is quoted, or follows a name in capitals as in a .env file.
ASSIGNED_IN_SOURCE = re.compile(
    r"""
    (?i:((?:token|passw(?:or)?d|passphrase|secret|api_?key|access_key|private_key|credentials?)
      ["']?\s*[=:]\s*["']))
    (?=[^"'\n]*[A-Z0-9])[\w.~+/=:@!%&*-]{8,}(?=["'])
    |(?m:^([-+ ]?[ \t]*(?:export[ \t]+)?(?:[A-Z0-9]+_)*(?:TOKEN|PASSWORD|SECRET|KEY|PASS)\s*=\s*))
    [\w.~+/=:@!%&*-]{8,}
    """,
    re.VERBOSE,
)

# The forms of secrets by their names. Names of data sets and models must not look like one:
# sk-learn, hf_dataset.
FORMS = {
    "a token of the Hugging Face hub": (
        r"\b(?:hf|api_org|hf_oauth)_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,}"
    ),
    "an API key": r"""(?x:
        \bsk-(?:ant|proj|or|svcacct|admin)-(?=[\w-]{0,99}\d)[\w-]{20,}
        |\bsk-[\w-]{0,99}?(?=[A-Za-z]{0,99}\d)(?=\d{0,99}[A-Za-z])[A-Za-z0-9]{16,}
        |\b(?:sk_live|gsk|nvapi|r8|wandb_v1|npm|dapi|glpat|pypi)[-_]
          \w{0,99}(?=[A-Za-z]{0,99}\d)(?=\d{0,99}[A-Za-z])[A-Za-z0-9]{20,}
        |\bAIza[\w-]{30,}
        |\bya29\.[\w-]{30,}
        |\b(?:xai|pplx)-(?=[A-Za-z]{0,99}\d)[A-Za-z0-9]{30,}
        )""",
    "a token of GitHub": r"\bgh[opsur]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}",
    "a key of AWS": r"\bA[KS]IA[A-Z0-9]{16}\b",
    "a token of Slack": r"\bxox[abeprs]-[\w-]{10,}",
    "a private key": r"""(?x:
        -----BEGIN[ ][A-Z0-9 ]*PRIVATE[ ]KEY[A-Z -]*
        (?:(?:(?!-----)[\s\S]){0,20000}-----END[A-Z0-9 ]*KEY[A-Z ]*-----
          |(?:(?:\s|\\n)*[\w+/=]{16,})*)
        )""",
    "a web token": r"\beyJ[\w-]{10,999}+\.eyJ[\w-]{10,}",
    "a header that logs in": (
        r"\b(?:[Bb]earer|[Bb]asic)\s+(?=\S*\d)(?=\S*[A-Za-z])[\w.~+/=-]{16,}"
    ),
    "an address with a password": r"""(?x:
        (?:://|\bhttps?:/)[^/\s:@\[\](){}<>^$*+|\\"']*:[^/\s:@\[\](){}<>^$*+|\\"']+@(?=[\w\[])
        |://(?=[\w.-]{12,}@)(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9][\w.-]*@(?=\w)
        )""",
    "an address with a key": r"""(?xi:
        [?&](?:\w*token|api_?key|(?:x-\w+-)?signature|sig|\w*secret|password|access_?key)
        =[^&\s'"<$]{8,}
        )""",
}
ANY_FORM = "|".join(FORMS.values())


# --- What is a secret ---------------------------------------------------------------------------
# The jobs of a sweep have most texts in common.
@functools.lru_cache(maxsize=1024)
def form_of(text: str) -> str:
    """The kind of secret that a text holds by its form; empty for none."""
    for name, pattern in FORMS.items():
        if re.search(pattern, text):
            return name
    return ""


def names_secret(variable: str) -> bool:
    """True for a variable of the environment that holds a secret, by its name."""
    return VARIABLE.search(variable) is not None


def holders() -> dict[str, str]:
    """The variable of each secret that the environment holds; paths and plain words are none."""
    return _holders(tuple(os.environ.items()), frozenset(MARKED))


@functools.lru_cache(maxsize=8)
def _holders(environment: tuple[tuple[str, str], ...], marked: frozenset[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for name, value in environment:
        if "://" in value:
            for password in PASSWORD_IN_ADDRESS.findall(value):
                variables[password] = name
        elif (name in marked or names_secret(name)) and _is_random(value):
            variables[value] = name
    return variables


def holder_of(text: str) -> str:
    """The variable whose secret a text holds; empty for none."""
    for value, name in holders().items():
        if text == value or (len(value) >= MIN_LETTERS_INSIDE and value in text):
            return name
    return ""


def _is_random(value: str) -> bool:
    """True for a value that is long, or of several kinds of characters, and no path."""
    if len(value) < MIN_LETTERS or value.startswith(("/", "~", "./")) or value.isspace():
        return False
    if len(value) >= 20:
        return True
    has_lower = any(letter.islower() for letter in value)
    has_upper = any(letter.isupper() for letter in value)
    has_digit = any(letter.isdigit() for letter in value)
    has_sign = not value.isalnum()
    return [has_lower, has_upper, has_digit, has_sign].count(True) > 1


# --- Texts without secrets ----------------------------------------------------------------------
def hidden(text: str) -> str:
    """A text with ``<secret>`` for each secret in it, known by value, by form, or by its name.

    >>> hidden("push_to_hub=true hub_token=abcd to https://me:pa55word@host/x")
    'push_to_hub=true hub_token=<secret> to https://<secret>@host/x'
    """
    return _hidden(text, tuple(holders()))


def hidden_words(words: Iterable[str]) -> list[str]:
    """Words of a command without secrets, which the environment is asked for once."""
    values = tuple(holders())
    return [_hidden_word(word, values) for word in words]


# Runs of one name have most words in common.
@functools.lru_cache(maxsize=1024)
def _hidden_word(word: str, values: tuple[str, ...]) -> str:
    return _hidden(word, values)


def _hidden(text: str, values: tuple[str, ...]) -> str:
    text = ASSIGNED.sub(rf"\1{HIDDEN}", _without(values, text))
    return re.sub(ANY_FORM, _mask, text)


def hidden_source(text: str) -> str:
    """Source text, such as a diff, without secrets, also without quoted ones that have a name.

    >>> hidden_source('+password = "hunter22"; eos_token = "<|im_end|>"')
    '+password = "<secret>"; eos_token = "<|im_end|>"'
    """
    text = ASSIGNED_IN_SOURCE.sub(_mask_assigned, without_values(text))
    return re.sub(ANY_FORM, _mask, text)


def _mask_assigned(match: re.Match[str]) -> str:
    """The name and the sign of assignment, which one of the two groups holds, and no value."""
    return f"{match[1] or match[2]}{HIDDEN}"


def _mask(match: re.Match[str]) -> str:
    """The mask of a secret, with what stands around it in an address."""
    secret = match[0]
    if secret.startswith("://"):
        return f"://{HIDDEN}@"
    if secret[0] in "?&":
        name = secret.partition("=")[0]
        return f"{name}={HIDDEN}"
    return HIDDEN


def without_values(text: str) -> str:
    """A text without the secrets of the environment, however encoded, and long pieces of them."""
    return _without(tuple(holders()), text)


def each_without_values(texts: Iterable[str]) -> Iterator[str]:
    """Texts without the secrets of the environment, which is asked for them once."""
    values = tuple(holders())
    for text in texts:
        yield _without(values, text)


def _without(values: tuple[str, ...], text: str) -> str:
    """A text without these secrets."""
    # The name of a file may hold bytes that are no letters, which nothing can encode.
    text = text.encode(errors="backslashreplace").decode()
    if not values:
        return text
    pattern = _pattern(values)
    if pattern:
        text = pattern.sub(HIDDEN, text)
    words = [value for value in values if PIECE.fullmatch(value)]

    def mask_piece(match: re.Match[str]) -> str:
        piece = match[0]
        is_of_secret = any(piece in word for word in words)
        return HIDDEN if is_of_secret and _is_random(piece) else piece

    return PIECE.sub(mask_piece, text)


@functools.lru_cache(maxsize=8)
def _pattern(values: tuple[str, ...]) -> re.Pattern[str] | None:
    """A pattern of values and their lines in every spelling, also wrapped; None for nothing."""
    texts = set(values)
    for value in values:
        for line in value.splitlines():
            if "-----" not in line and _is_random(line.strip()):
                texts.add(line.strip())
    spellings: set[str] = set()
    for text in texts:
        spellings |= _spellings_of(text)
    if not spellings:
        return None
    # The longest first, or a part of one would match before the whole.
    longest_first = sorted(spellings, key=len, reverse=True)
    alternatives = [re.escape(spelling) for spelling in longest_first]
    for value in values:
        letters = "".join(value.split())
        alternatives.append(r"\s*".join(map(re.escape, letters)))
    return re.compile("|".join(alternatives))


def _spellings_of(text: str) -> set[str]:
    """A text as it is, escaped once or twice, in hex, and in base64 behind other bytes."""
    escaped = _escapes_of(text)
    spellings = set(escaped)
    for spelling in escaped:
        spellings |= _escapes_of(spelling)
    digits = text.encode().hex()
    spellings |= {digits, digits.upper()}
    # Base64 spells three bytes by four letters; the letters depend on how many bytes come before.
    for shift, first in enumerate((0, 2, 3)):
        shifted_text = b"\0" * shift + text.encode()
        encoded = base64.b64encode(shifted_text).decode().rstrip("=")
        shifted = encoded[first : len(encoded) - 1]
        spellings |= {shifted, shifted.replace("+", "-").replace("/", "_")}
    return spellings


def _escapes_of(text: str) -> set[str]:
    """The ways in which source, JSON, addresses, pages and shells spell a text, without quotes."""
    return {
        text,
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        ascii(text)[1:-1],
        repr(text.encode())[2:-1],
        text.replace("\\", "\\\\").replace("'", "\\'"),
        quote(text, safe=""),
        quote_plus(text),
        html.escape(text, quote=False),
        html.escape(text),
        text.replace("'", "'\"'\"'"),
    }
