"""No secret in a configuration, which is kept in the run folder as plain text."""

import re
from collections.abc import Iterable, Iterator

from runner.check.known import Scalar
from runner.errors import Fault

SECRET_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[\w-]{16,}|\bgh[opsur]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}"
    r"|\bAKIA[A-Z0-9]{16}\b|\bxox[abps]-[\w-]{10,}|\bAIza[\w-]{30,}|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]+:[^/\s@]+@"
)
SECRET_KEY = re.compile(r"(?:^|_)(?:password|passwd|secret|api_?key|access_key|private_key|credential)s?$")
LOGIN_KEY = re.compile(r"^token$|(?:^|_)(?:hub|hf|auth|access|api|bearer|refresh|wandb)_token$")


def find_secrets(leaves: Iterable[Scalar]) -> Iterator[Fault]:
    """A fault for each text that is, or is called, a secret; the text itself is never repeated."""
    for path, key, value in leaves:
        if isinstance(value, str) and value and _is_secret(key.lower(), value):
            variable = "WANDB_API_KEY" if "wandb" in path.lower() else "HF_TOKEN"
            yield Fault(
                path,
                "looks like a secret, and a config is kept as plain text",
                "secrets in the environment only",
                f"export {variable}=...  (and leave the key out)",
            )


def looks_secret(text: str) -> bool:
    """Whether a text has the form of a token, or holds a password, whatever it is called."""
    return bool(SECRET_VALUE.search(text))


def _is_secret(key: str, value: str) -> bool:
    if looks_secret(value) or SECRET_KEY.search(key):
        return True
    if not key.endswith("token") or len(value) < 8 or value.startswith(("<", "[")):
        return False  # such as eos_token: </s>
    is_random = len(value) >= 20 and re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[\w.-]+", value)
    return bool(LOGIN_KEY.search(key) or is_random)
