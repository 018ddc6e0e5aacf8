"""An exception of a library as a fault of the configured keys that it speaks of.

A library checks much of what it is given only when it uses it. Its message then names an argument
or repeats a value, and that is how a key is found. Without such a word nothing is blamed: it may be
our own fault.
"""

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runner.errors import ConfigError, Fault, describe
from runner.io.files import PACKAGE
from runner.io.own_code import is_own
from runner.run.folder import Run
from runner.schema import upstream
from runner.schema.literal import to_list
from runner.schema.text import Config, last_key, select, short_text, walk

# the groups whose parts libraries build and use
PARTS = (
    "trainer",
    "model",
    "peft",
    "quant",
    "optimizer",
    "callback",
    "collator",
    "loss",
    "reward",
    "metric",
)
EXPECTED = "what the library takes"
# names that messages use for other things
COMMON_NAMES = ("path", "_target_", "model", "name", "args", "seed")
MIN_LETTERS = 3  # of a value that a message may repeat


def find_refused_keys(
    run: Run, error: BaseException, parts: Sequence[str] = ()
) -> ConfigError | None:
    """The error that names the typed keys which a library has refused; None where nothing says so.

    ``parts`` are nodes from whose values alone something was built: where the message names
    nothing, what was typed of them is blamed.
    """
    frames = traceback.extract_tb(error.__traceback__)
    file = frames[-1].filename if frames else ""  # the innermost
    if not parts and not _is_of_library(file):
        return None
    suspects = list(parts)
    for place, keys in upstream.RAISED_IN.items():
        if place in file:
            suspects += keys
    text = describe(error)
    typed = _typed_keys(run)
    mentioned = [key for key, value in _values_of(run.cfg) if _is_mentioned(key, value, text)]
    # What was not typed works, unless it stands in a file of the user's own.
    if "experiment" not in typed and "--config-dir" not in typed:
        mentioned = [key for key in mentioned if key.startswith(tuple(typed))]

    def typed_then_longest(key: str) -> tuple[bool, int]:
        return key not in typed, -len(key)

    mentioned.sort(key=typed_then_longest)
    blamed = mentioned[:1]
    if not blamed and suspects:
        blamed = [key for key in sorted(typed) if key.startswith(tuple(suspects))]
    if not blamed:
        return None
    if len(blamed) > 1:
        return ConfigError(
            Fault(
                where=suspects[0],
                found=text,
                expected=EXPECTED,
                fix=f"leave out one of {', '.join(blamed)}",
            )
        )
    key = blamed[0]
    value = select(run.cfg, key)
    found = text
    if value is not None:
        found = f"{short_text(value)}: {text}"
    return ConfigError(
        Fault(
            where=key,
            found=found,
            expected=EXPECTED,
            fix=f"leave {key} out",
        )
    )


def _is_of_library(file: str) -> bool:
    """True for a file of an installed package; code that was made while it ran has none."""
    is_code = file != "" and not file.startswith("<")
    return is_code and not is_own(file) and not Path(file).is_relative_to(PACKAGE)


def _typed_keys(run: Run) -> set[str]:
    """The keys, and the option of a folder, in the words of the command that made a run."""
    keys = set()
    for word in run.manifest().get("command") or ():
        key, sign, _ = str(word).lstrip("+").partition("=")
        if sign or key == "--config-dir":
            keys.add(key)
    return keys


def _values_of(cfg: Config) -> Iterator[tuple[str, object]]:
    """The dotted keys of all parts, with what they hold."""
    for part in PARTS:
        node = cfg.get(part)
        if isinstance(node, Mapping):
            yield from walk(node, part, lists=False)


# --- A key in a message -------------------------------------------------------------------------
def _is_mentioned(key: str, value: object, text: str) -> bool:
    """True where a message names a key, or repeats its value or one in its list."""
    name = last_key(key)
    if name not in COMMON_NAMES and _is_named(name, text):
        return True
    values = to_list(value)
    return any(_is_repeated(item, text) for item in values)


def _is_named(name: str, text: str) -> bool:
    """True for a name as a word of its own that is quoted, or that no sentence has by chance."""
    if not name or not re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text):
        return False
    return "_" in name or _is_quoted(name, text)


def _is_repeated(value: object, text: str) -> bool:
    """True for a text that a message quotes or refuses, or that no sentence holds by chance."""
    if not isinstance(value, str) or len(value) < MIN_LETTERS:
        return False
    word = value.casefold()
    text = text.casefold()
    if _is_quoted(word, text):
        return True
    name = re.escape(word)
    is_refused = rf"(?<!\w){name} is (not|un)|(unknown|invalid|unsupported|=)[\w ]*:? ?{name}(?!\w)"
    if re.search(is_refused, text):
        return True
    is_rare = re.search(r"[/_]", word) is not None
    return is_rare and re.search(rf"(?<![\w/]){name}(?![\w/])", text) is not None


def _is_quoted(word: str, text: str) -> bool:
    return any(f"{mark}{word}{mark}" in text for mark in "`'\"")
