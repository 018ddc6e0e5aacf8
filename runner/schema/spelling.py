"""Values as text, the one way in which the runner writes them, and the likeness of words for a did-you-mean."""

import difflib
import re
from collections.abc import Iterable

# Texts that the command line takes without quotes, and those among them that would be read as something else.
UNQUOTED = re.compile(r"[\w./:@%+-]+( [\w./:@%+-]+)*")
CONSTANT = re.compile(r"(?i)null|true|false|[+-]?((\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?|inf|nan)")


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The words that look like this one, the likeliest first."""
    scores = {each: likeness(word, each) for each in words}
    return sorted((each for each in scores if scores[each] >= cutoff), key=lambda each: -scores[each])


def likeness(word: str, other: str) -> float:
    """From 0 to 1 how much two words look alike; case and separators do not count.

    The start of a longer word is more like it than its end: adamw is adamw_torch, not grokadamw.
    """
    one, two = (re.sub(r"[\W_]", "", each).lower() for each in (word, other))
    ratio = difflib.SequenceMatcher(None, one, two).ratio()
    return max(0.9, ratio) if len(one) > 3 and two.startswith(one) else ratio


def to_text(value: object) -> str:
    """A value as the command line takes it.

    >>> to_text([0.1, None, "a, b", True])
    "[0.1,null,'a, b',true]"
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(to_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{to_text(entry)}" for key, entry in value.items()) + "}"
    if not isinstance(value, str) or (UNQUOTED.fullmatch(value) and not CONSTANT.fullmatch(value)):
        return str(value)
    quote = '"' if "'" in value and '"' not in value else "'"
    # Hydra takes a backslash as such unless a quote comes after it.
    ends = re.sub(rf"(\\*)({quote}|\Z)", lambda found: found[1] * 2 + ("\\" + quote if found[2] else ""), value)
    return f"{quote}{ends}{quote}"
