"""An exception of a library -> the configured keys that it speaks of, so that it becomes a fault of these.

A library checks much of what it is given only when it uses it. Its message then names an argument or repeats a value,
and that is what a key is found by. Without such a word nothing is blamed: it may be our own fault.
"""

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, Fault, describe, is_own
from runner.io.files import PACKAGE
from runner.run import Run
from runner.schema import upstream
from runner.schema.text import last_key, select, short_text, walk

PARTS = ("trainer", "model", "peft", "quant", "optimizer", "callback", "collator", "loss", "reward", "metric")
EXPECTED = "what the library takes"
NOT_SAID = ("path", "_target_", "model", "name", "args", "seed")  # names that messages use for other things
MIN_LETTERS = 3  # of a value that a message may repeat


def find_refused_keys(run: Run, error: BaseException, parts: Sequence[str] = ()) -> ConfigError | None:
    """The error that names the typed keys which a library has refused; None where nothing says that it was one.

    ``parts`` are nodes from whose values alone something was built: without another word, what was typed of them is.
    """
    file = _innermost_file(error)
    if not (parts or _is_of_library(file)):
        return None
    parts = [*parts, *(key for place, keys in upstream.RAISED_IN.items() if place in file for key in keys)]
    text, typed = describe(error), _typed_keys(run)
    named = [key for key, value in _entries(run.cfg) if _is_said(key, value, text)]
    if not {"experiment", "--config-dir"} & typed:  # else a file of the user's own may hold it
        named = [key for key in named if any(key.startswith(word) for word in typed)]
    named.sort(key=lambda key: (key not in typed, -len(key)))
    blamed = named[:1] or [key for key in sorted(typed) if parts and key.startswith(tuple(parts))]
    if not blamed:
        return None
    if len(blamed) > 1:
        return ConfigError(Fault(parts[0], text, EXPECTED, f"leave out one of {', '.join(blamed)}"))
    value = select(run.cfg, blamed[0])
    found = text if value is None else f"{short_text(value)}: {text}"
    return ConfigError(Fault(blamed[0], found, EXPECTED, f"leave {blamed[0]} out"))


def _innermost_file(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename if frames else ""


def _is_of_library(file: str) -> bool:
    """True for a file of an installed package."""
    is_code = file != "" and not file.startswith("<")
    return is_code and not is_own(file) and not Path(file).is_relative_to(PACKAGE)


def _typed_keys(run: Run) -> set[str]:
    words = [str(word).lstrip("+") for word in run.manifest().get("command") or ()]
    return {word.partition("=")[0] for word in words if "=" in word or word == "--config-dir"}


def _entries(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for part in PARTS:
        node = cfg.get(part)
        if isinstance(node, Mapping):
            yield from walk(node, part, lists=False)


def _is_said(key: str, value: object, text: str) -> bool:
    name = last_key(key)
    if name in NOT_SAID:
        name = ""
    if name and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text):
        marked = any(f"{mark}{name}{mark}" in text for mark in "`'\"")
        if marked or "_" in name:
            return True
    values = value if isinstance(value, list) else [value]
    return any(_is_repeated(entry, text) for entry in values)


def _is_repeated(value: object, text: str) -> bool:
    """True for a text that a message quotes, or that no sentence holds by chance."""
    if not isinstance(value, str) or len(value) < MIN_LETTERS:
        return False
    word, said = value.casefold(), text.casefold()
    if any(f"{mark}{word}{mark}" in said for mark in "`'\""):
        return True
    is_refused = (
        rf"(?<!\w){re.escape(word)} is (not|un)|(unknown|invalid|unsupported|=)[\w ]*:? ?{re.escape(word)}(?!\w)"
    )
    if re.search(is_refused, said):
        return True
    is_rare = re.search(r"[/_]", word) is not None
    return is_rare and re.search(rf"(?<![\w/]){re.escape(word)}(?![\w/])", said) is not None
