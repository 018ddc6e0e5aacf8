"""No secret in a configuration, which is kept in the run folder as plain text."""

from collections.abc import Iterable, Iterator
from typing import Any

from runner.errors import Fault
from runner.secret import LOGIN_KEY, MIXED_TEXT, SECRET_KEY, form_of, hidden, holder_of, names_secret
from runner.signature import last_key

VARIABLES = "tracker.environment."


def find_secrets(scalars: Iterable[tuple[str, Any]]) -> Iterator[Fault]:
    """A fault for each text that is, or is called, a secret; the text itself is never repeated."""
    for path, value in scalars:
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            continue
        if found := _kind(path, last_key(path), str(value), isinstance(value, str)) or form_of(path):
            variable = holder_of(str(value)) or ("WANDB_API_KEY" if "wandb" in path.lower() else "HF_TOKEN")
            yield Fault(
                hidden(path),
                f"{found}, and a config is kept as plain text",
                "secrets in the environment only",
                f"export {variable}=...  (and leave the key out)",
            )


def _kind(path: str, key: str, text: str, written: bool) -> str:
    """What makes a value a secret, without repeating it; empty where it is none."""
    if written and (form := form_of(text)):
        return f"looks like {form}"
    if written and (variable := holder_of(text)):
        return f"holds the value of ${variable}, which looks like a secret"
    named = SECRET_KEY.search(key.lower()) or (path.startswith(VARIABLES) and names_secret(key))
    if (named and (written or len(text) > 3)) or _logs_in(key.lower(), text):
        return f"{key} looks like a secret"
    return ""


def _logs_in(key: str, text: str) -> bool:
    """Whether a text is a token to log in with, and not one of a vocabulary, such as ``eos_token: </s>``."""
    if not key.endswith("token") or text.startswith(("<", "[", "$", "???")):
        return False
    if key == "token":
        return len(text) >= 8
    return bool(LOGIN_KEY.search(key) or MIXED_TEXT.fullmatch(text))
