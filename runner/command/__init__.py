"""The verbs, one file each; each has one public function of the file's name. Only here do the parts meet.

Here, and in the file that begins with an underscore, is what several of them read of the command line.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.errors import ConfigError, Fault

VERBS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def read_options(overrides: Sequence[str], known: Sequence[str], verb: str) -> dict[str, str]:
    """The ``key=value`` words of a verb; ConfigError with every key that it does not have."""
    pairs = [override.lstrip("+").partition("=") for override in overrides]
    faults = []
    for key, _, _ in pairs:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            fix = f"{near[0]}=<value>" if near else f"python -m runner {verb} --help"
            faults.append(Fault(key, f"{verb} has no such key", ", ".join(known) or "no key at all", fix))
    if faults:
        raise ConfigError(faults)
    return {key: text for key, _, text in pairs}


def is_yes(options: Mapping[str, str], key: str, default: bool = False) -> bool:
    """Read ``key=true`` or ``key=false``; ConfigError for any other word."""
    text = options.get(key, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(Fault(key, options[key], "true or false", f"{key}=true"))
    return text == "true"
