"""Values that run, send, publish, write elsewhere or reveal something: typed by the user, or refused."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from runner.errors import Fault, fault
from runner.io.secrets import LOGIN_KEY, MIXED_TEXT, SECRET_KEY, form_of, hidden, holder_of, names_secret
from runner.schema.text import Config, last_key, read_tables, scalars, select, short_text, to_override


def _is_elsewhere(value: object) -> bool:
    """True where an address or a host may be another machine's, as may all that clients read in several ways."""
    if not (text := str(value or "")) or text.lower() == "localhost" or _is_loopback(text):
        return False
    try:
        # Clients put http:// before all else, so that of evil.com://127.0.0.1 the first part is the host.
        address = urlsplit(text if re.match("(?i)https?://", text) else f"//{text}").netloc.rpartition("@")[2]
    except ValueError:
        return True
    host = re.fullmatch(r"\[([^\[\]]+)\](?::\d*)?|([^\[\]:]+)(?::\d*)?", address)
    name = host[1] or host[2] if host else ""
    return not text.isprintable() or "\\" in text or not (name.lower() == "localhost" or _is_loopback(name))


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _is_outside(path: object) -> bool:
    return isinstance(path, str) and (path.startswith(("/", "~")) or ".." in path.split("/"))


def _leaves_the_run(store: object) -> bool:
    """True for a store of MLflow that is no database or folder below where the command is run, or in ``{root}``."""
    found = re.fullmatch(r"(?:sqlite:///|file:|file://(?=\{))([^/].*)", str(store))
    return not found or _is_outside(found[1])


VARIABLE = "tracker.environment."
STAYS = ("offline", "disabled", "dryrun")
Risk = tuple[Callable[[Any], bool], str]  # which values of a key are risky, and what they do
NO_RISK: Risk = (lambda value: False, "")
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "is true": lambda value: value is True,
    "is false": lambda value: value is False,
    "is given": bool,
    "has a slash": lambda value: "/" in str(value),
    "is elsewhere": _is_elsewhere,
    # Of a host alone, before which clients put http:// whatever it is.
    "is more than a host here": lambda value: "/" in str(value or "") or _is_elsewhere(value),
    "leads out": _is_outside,
    "leaves the run": _leaves_the_run,
    "is online": lambda value: value not in STAYS,
}


def _read_risks(table: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, Risk]:
    rows = [(danger, word, key) for danger, words in table.items() for word, keys in words.items() for key in keys]
    return {last_key(key): (CONDITIONS[word], danger) for danger, word, key in rows}


_TABLES = read_tables(__file__)
RISKS, VARIABLES = (_read_risks(_TABLES[name]) for name in ("risks", "variables"))
HARMLESS, UPLOADING = (frozenset(_TABLES[name]) for name in ("harmless_variables", "uploading_trackers"))


def find_risks(cfg: Config, typed: Collection[str] = ()) -> Iterator[Fault]:
    """A fault for each value that runs, sends or writes something elsewhere and was not typed by the user.

    A flag counts for the nodes inside its own: ``model.trust_remote_code=true`` is also for ``model.tokenizer``. So
    does a fault, which is not given twice.
    """
    stays, counted = select(cfg, f"{VARIABLE}WANDB_MODE") in STAYS, set(typed)
    for path, value in scalars(cfg):
        key, words, where = last_key(path), path.split(".")[:-1], re.sub(r"\.\d+$", "", path)
        is_risky, danger = RISKS.get(key, NO_RISK)
        around = {".".join([*words[:depth], key]) for depth in range(1, len(words) + 1)} or {key}
        if is_risky(value) and not counted & around:
            counted.add(path)
            text, word = short_text(value), to_override(path, value)
            yield fault("validate.untyped", where=path, key=key, value=text, danger=danger, word=word)
        is_risky, danger = NO_RISK
        if path.startswith(VARIABLE) and key not in HARMLESS and not names_secret(key):
            is_risky, danger = VARIABLES.get(key, (bool, "may lead the tracker elsewhere"))
        if key == "report_to" and value in UPLOADING and not (value == "wandb" and stays):
            is_risky, danger = bool, "sends the figures to a server"
        if is_risky(value) and not {"tracker", where} & set(typed):
            yield fault("validate.untyped_tracker", where=path, key=key, value=value, danger=danger, counts=where)


def find_secrets(cfg: Config) -> Iterator[Fault]:
    """A fault for each text that is, or is called, a secret; the text itself is never repeated."""
    for path, value in scalars(cfg):
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            continue
        if found := _secret_in(path, last_key(path), str(value), isinstance(value, str)) or form_of(path):
            variable = holder_of(str(value)) or ("WANDB_API_KEY" if "wandb" in path.lower() else "HF_TOKEN")
            yield fault("validate.secret", where=hidden(path), found=found, variable=variable)


def _secret_in(path: str, key: str, text: str, is_text: bool) -> str:
    """The words for what makes a value a secret, without repeating it; empty where it is none."""
    if is_text and (form := form_of(text)):
        return f"looks like {form}"
    if is_text and (variable := holder_of(text)):
        return f"holds the value of ${variable}, which looks like a secret"
    lower = key.lower()
    named = SECRET_KEY.search(lower) or (path.startswith(VARIABLE) and names_secret(key))
    # One to log in with, but not one of a vocabulary, such as ``eos_token: </s>``.
    is_token = lower.endswith("token") and not text.startswith(("<", "[", "$", "???"))
    logs_in = len(text) >= 8 if lower == "token" else LOGIN_KEY.search(lower) or MIXED_TEXT.fullmatch(text)
    return f"{key} looks like a secret" if (named and (is_text or len(text) > 3)) or (is_token and logs_in) else ""
