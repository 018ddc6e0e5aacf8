"""Secrets in a configuration, which is kept as plain text."""

from collections.abc import Iterator

from runner.errors import Fault
from runner.io.secrets import (
    LOGIN_KEY,
    MIXED_TEXT,
    SECRET_KEY,
    form_of,
    hidden,
    holder_of,
    names_secret,
)
from runner.schema.text import Config, last_key, scalars
from runner.schema.upstream.trackers import TRACKERS
from runner.validate.dangers import VARIABLE

MIN_LETTERS_OF_TOKEN = 8
MIN_DIGITS_OF_SECRET = 4
# Beginnings of tokens of a vocabulary, such as ``eos_token: </s>``, of a reference, and of a value
# that is still missing.
NOT_SECRET = ("<", "[", "$", "???")


def find_secrets(cfg: Config) -> Iterator[Fault]:
    """A fault for each text that is, or is called, a secret; the text itself is never repeated."""
    for path, value in scalars(cfg):
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            continue
        finding = _describe_secret(path, value) or form_of(path)
        if not finding:
            continue
        variable = holder_of(str(value)) or _variable_for(path)
        yield Fault(
            where=hidden(path),
            found=f"{finding}, and a config is kept as plain text",
            expected="secrets in the environment only",
            fix=f"export {variable}=...  (and leave the key out)",
        )


def _variable_for(path: str) -> str:
    """The variable of the environment that holds a secret for whoever reads this key."""
    key = last_key(path)
    if path.startswith(VARIABLE) and names_secret(key):
        return key
    for tracker in TRACKERS.values():
        is_its_variable = path.startswith(VARIABLE) and key.startswith(tracker.prefix)
        if tracker.key_variable and (is_its_variable or tracker.name in path.lower()):
            return tracker.key_variable
    return "HF_TOKEN"


def _describe_secret(path: str, value: str | int) -> str:
    """The words for what makes a value a secret, without repeating it; empty where it is none."""
    key = last_key(path)
    text = str(value)
    is_text = isinstance(value, str)
    if is_text:
        form = form_of(text)
        if form:
            return f"looks like {form}"
        variable = holder_of(text)
        if variable:
            return f"holds the value of ${variable}, which looks like a secret"
    is_secret_variable = path.startswith(VARIABLE) and names_secret(key)
    is_named = is_secret_variable or SECRET_KEY.search(key.lower())
    is_long = is_text or len(text) >= MIN_DIGITS_OF_SECRET
    if (is_named and is_long) or _logs_in(key.lower(), text):
        return f"{key} looks like a secret"
    return ""


def _logs_in(key: str, text: str) -> bool:
    """True for a token to log in with; ``key`` is in lower case."""
    if not key.endswith("token") or text.startswith(NOT_SECRET):
        return False
    if key == "token":
        return len(text) >= MIN_LETTERS_OF_TOKEN
    return bool(LOGIN_KEY.search(key) or MIXED_TEXT.fullmatch(text))
