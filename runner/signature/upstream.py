"""The names of TRL and transformers that we rely on; each has a test that fails where upstream renames it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The field of a trainer's arguments that says how many tokens a completion may have, under its several names.
COMPLETION_LENGTHS = ("max_completion_length", "response_length", "max_new_tokens")


def completion_length(args: Mapping[str, Any]) -> int | None:
    """The most tokens of a completion that a trainer's arguments allow; None where they know no such thing.

    >>> completion_length({"max_new_tokens": 64}), completion_length({"max_length": 64})
    (64, None)
    """
    return next(filter(None, map(args.get, COMPLETION_LENGTHS)), None)
