"""Values that run, send, publish, write elsewhere or reveal something: typed by the user, or refused."""

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.config.groups import SEVERAL
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
from runner.schema.text import (
    Config,
    last_key,
    read_tables,
    scalars,
    select,
    short_text,
    to_override,
    walk,
)
from runner.tracker.library import LIBRARIES


def is_elsewhere(value: object) -> bool:
    """True where an address or a host may be another machine's, as may all that clients read in several ways."""
    if not (text := str(value or "")) or text.lower() == "localhost" or _is_loopback(text):
        return False
    try:
        # Clients put http:// before all else, so that of evil.com://127.0.0.1 the first part is the
        # host.
        address = urlsplit(
            text if re.match("(?i)https?://", text) else f"//{text}"
        ).netloc.rpartition("@")[2]
    except ValueError:
        return True
    host = re.fullmatch(r"\[([^\[\]]+)\](?::\d*)?|([^\[\]:]+)(?::\d*)?", address)
    name = host[1] or host[2] if host else ""
    return (
        not text.isprintable()
        or "\\" in text
        or not (name.lower() == "localhost" or _is_loopback(name))
    )


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _is_page_elsewhere(value: object) -> bool:
    """True for the address of a file on another machine that is not the hub."""
    is_page = isinstance(value, str) and bool(re.match("(?i)(https?|ftp)://", value))
    return is_page and not str(value).startswith("https://huggingface.co/") and is_elsewhere(value)


def _is_outside(path: object) -> bool:
    return isinstance(path, str) and (
        path.startswith(("/", "~")) or ".." in path.split("/") or "://" in path
    )


def _leaves_the_run(store: object) -> bool:
    """True for a store of MLflow that is no database or folder below where the command is run, or in ``{root}``."""
    found = re.fullmatch(r"(?:sqlite:///|file:|file://(?=\{))([^/].*)", str(store))
    return not found or _is_outside(found[1])


VARIABLE = "tracker.environment."
STAYS = ("offline", "disabled", "dryrun")
# Where a tracker that writes on this machine is led elsewhere by the environment of the user.
LEADING = {
    tracker.name: tracker.leading_variable
    for tracker in LIBRARIES.values()
    if tracker.leading_variable
}
# Fields of a trainer's config that may name a file of JSON, in which the same keys count.
FILES = ("deepspeed", "fsdp_config", "accelerator_config")


def _is_empty(value: object) -> bool:
    """True for what Python takes for false and is written all the same."""
    return value is not None and not value


def _names_a_callback(value: object) -> bool:
    """True for a callback of a library that may send what a run is, or what it logs, to a server."""
    package, _, name = str(value).rpartition(".")
    is_of_library = package.partition(".")[0] in ("transformers", "trl")
    return is_of_library and name.endswith("Callback") and name not in QUIET_CALLBACKS


CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "is true": bool,  # for Python: a library may not look more closely
    "is false": _is_empty,
    "is given": bool,
    "has a slash": lambda value: isinstance(value, str) and "/" in value,
    "has a dot": lambda value: isinstance(value, str) and "." in value,
    "is a page elsewhere": _is_page_elsewhere,
    "is a request": lambda value: isinstance(value, str) and value.startswith("refs/"),
    "is of kernels": lambda value: str(value).endswith(".KernelConfig"),
    "sends": _names_a_callback,
    "is elsewhere": lambda value: not isinstance(value, dict | list) and is_elsewhere(value),
    # Of a host alone, before which clients put http:// whatever it is.
    "is more than a host here": lambda value: "/" in str(value or "") or is_elsewhere(value),
    "leads out": _is_outside,
    "leaves the run": _leaves_the_run,
    "is online": lambda value: value not in STAYS,
}


@dataclass(frozen=True)
class Risk:
    """The values of some keys that are risky, and what they do; ``keys`` is a pattern of the end of a dotted key."""

    keys: re.Pattern[str]
    is_risky: Callable[[Any], bool]
    danger: str


def _read_risks(table: Mapping[str, Mapping[str, Sequence[str]]]) -> list[Risk]:
    risks = []
    for danger, conditions in table.items():
        for word, keys in conditions.items():
            pattern = re.compile(rf"(?:.*\.)?(?:{'|'.join(keys)})")
            risks.append(Risk(pattern, CONDITIONS[word], danger))
    return risks


_TABLES = read_tables(__file__)
RISKS = _read_risks(_TABLES["risks"])
VARIABLES = _read_risks(_TABLES["variables"])
HARMLESS = {name for tracker in LIBRARIES.values() for name in tracker.harmless_variables}
UPLOADING = {"all", *(tracker.name for tracker in LIBRARIES.values() if tracker.uploads)}
QUIET_CALLBACKS = frozenset(_TABLES["quiet_callbacks"])
HARMLESS_OF_LAUNCHERS = frozenset(_TABLES["harmless_of_launchers"])
HARMLESS_OF_SBATCH = frozenset(_TABLES["harmless_of_sbatch"])
# What only the command that starts a run reads: of a run that is there it does nothing any more.
AT_START = re.compile(r"output_root|launcher\.(?!_target_$|rendezvous$).*")


@functools.lru_cache(maxsize=4096)
def _risks_of(key: str) -> tuple[Risk, ...]:
    """The risks of values at a dotted key."""
    return tuple(risk for risk in RISKS if risk.keys.fullmatch(key))


def find_risks(cfg: Config, trusted: Container[str] = ()) -> Iterator[Fault]:
    """A fault for each value that runs, sends or writes something elsewhere and was not typed by the user.

    ``trusted`` are the keys that the user typed. A key counts in any depth: ``attn_implementation``
    may be a mapping, whose values are those of the key. A flag that was typed counts for the nodes
    inside its own: ``model.trust_remote_code=true`` is also for ``model.tokenizer``. So does a
    fault, which is not given twice.
    """
    reported: set[str] = set()
    for path, value in _leaves(cfg):
        danger = _danger_at(cfg, path, value)
        if not danger or _is_trusted(cfg, path, value, trusted):
            continue
        same = [place for place in _places_around(path) if place in reported]
        if same:
            continue
        reported.add(path)
        yield _to_fault(cfg, path, value, danger)


def _leaves(cfg: Config) -> Iterator[tuple[str, Any]]:
    """Each value that holds no other with its dotted key, those of files of JSON too."""
    for path, value in walk(cfg):
        if not (isinstance(value, dict | list) and value):
            yield path, value
        if last_key(path) in FILES and isinstance(value, str):
            # which is for whoever reads it
            with contextlib.suppress(OSError, ValueError, RecursionError):
                yield from _leaves({path: json.loads(Path(value).read_bytes())})


def _danger_at(cfg: Config, path: str, value: object) -> str:
    """The words for what a value does that a file of somebody else's may not do; empty where there is nothing."""
    if path.startswith(VARIABLE):
        return _danger_of_variable(path, value)
    if path.startswith("launcher.") and (danger := _danger_of_launcher(path, value)):
        return danger
    if path == "output_root":
        return "writes outside of the working folder" if _is_outside(value) else ""
    key = last_key(path)
    if key == "report_to" and isinstance(value, str) and value in (*UPLOADING, *LEADING):
        return _danger_of_tracker(cfg, str(value))
    words = [word for word in path.split(".") if not word.isdigit()]
    # The name of a part is the user's own word.
    first = 1
    group = cfg.get(words[0])
    if words[0] in SEVERAL and not (isinstance(group, Mapping) and "_target_" in group):
        first = 2
    for depth in range(min(first, len(words) - 1), len(words)):
        is_inner = depth < len(words) - 1 or path.rpartition(".")[2].isdigit()
        # a mapping or a list that is not empty is true
        held = (value or True) if is_inner else value
        for risk in _risks_of(".".join(words[: depth + 1])):
            if risk.is_risky(held):
                return risk.danger
    return ""


def _danger_of_variable(path: str, value: object) -> str:
    key = path.removeprefix(VARIABLE)
    if key in HARMLESS or names_secret(key) or not value:
        return ""
    for risk in (*VARIABLES, *_risks_of(key)):
        if risk.keys.fullmatch(key):
            return risk.danger if risk.is_risky(value) else ""
    return "may lead the tracker elsewhere"


def _danger_of_tracker(cfg: Config, name: str) -> str:
    environment = select(cfg, VARIABLE.rstrip(".")) or {}
    if name == "wandb" and environment.get("WANDB_MODE") in STAYS:
        return ""
    if name in UPLOADING:
        return "sends the figures to a server"
    variable = LEADING[name]
    led = "" if variable in environment else os.environ.get(variable, "")
    is_away = bool(led) and (name == "trackio" or _leaves_the_run(led))
    return f"sends the figures where {variable} leads" if is_away else ""


def _danger_of_launcher(path: str, value: object) -> str:
    key, *inner = path.removeprefix("launcher.").split(".")
    if key == "parameters" and inner and inner[0].replace("-", "_") in HARMLESS_OF_SBATCH:
        return ""
    is_harmless = key in HARMLESS_OF_LAUNCHERS or value in (None, "", False, [], {})
    return "" if is_harmless else "is what the launcher runs, or where it leads"


def _is_trusted(cfg: Config, path: str, value: object, trusted: Container[str]) -> bool:
    """True where the user typed this value, the list that it is in, or the same flag of a node around."""
    words = path.split(".")
    for size in range(len(words), 0, -1):
        place = ".".join(words[:size])
        if place in trusted and not isinstance(select(cfg, place), dict):
            return True
    return any(place in trusted and select(cfg, place) == value for place in _places_around(path))


def _places_around(path: str) -> list[str]:
    """The dotted keys at which the same key could stand in the nodes around."""
    words, key = path.split(".")[:-1], last_key(path)
    return [".".join([*words[:depth], key]) for depth in range(1, len(words) + 1)] or [key]


def _to_fault(cfg: Config, path: str, value: object, danger: str) -> Fault:
    where = re.sub(r"(\.\d*)+$", "", path)
    held = select(cfg, where)
    is_typeable = (
        re.fullmatch(r"[\w-]+(\.[\w-]+)*", where)
        and held is not None
        and not isinstance(held, dict)
    )
    typed = (
        f"{to_override(where, held)}  (if you trust where it leads)"
        if is_typeable
        else f"leave {where} out"
    )
    found = f"{last_key(where)}: {short_text(value)} {danger}, and was not typed"
    return Fault(where, found, "such a key on the command line only", typed)


def find_secrets(cfg: Config) -> Iterator[Fault]:
    """A fault for each text that is, or is called, a secret; the text itself is never repeated."""
    for path, value in scalars(cfg):
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            continue
        if found := _secret_in(path, last_key(path), str(value), isinstance(value, str)) or form_of(
            path
        ):
            variable = holder_of(str(value)) or (
                "WANDB_API_KEY" if "wandb" in path.lower() else "HF_TOKEN"
            )
            yield Fault(
                where=f"{hidden(path)}",
                found=f"{found}, and a config is kept as plain text",
                expected="secrets in the environment only",
                fix=f"export {variable}=...  (and leave the key out)",
            )


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
    logs_in = (
        len(text) >= 8
        if lower == "token"
        else LOGIN_KEY.search(lower) or MIXED_TEXT.fullmatch(text)
    )
    return (
        f"{key} looks like a secret"
        if (named and (is_text or len(text) > 3)) or (is_token and logs_in)
        else ""
    )
