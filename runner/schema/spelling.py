"""Likeness of words, for a did-you-mean."""

import difflib
import re
from collections.abc import Iterable


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
