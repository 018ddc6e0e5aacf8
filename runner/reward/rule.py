"""Rewards that a few lines of code can decide. Scores of models are in ``outcome``."""

import functools
import hashlib
import re
from collections.abc import Collection, Sequence

from runner.errors import ConfigError, fault, read_column
from runner.io.turns import Completion, Values, text_of
from runner.schema.text import read_tables

PRAISE, COMPLAINT = map(frozenset, read_tables(__file__).values())
FULL_PRAISE = 4  # a kind review of the shipped rows has two such words, and earns half; the rest is by repeating


def distinct_characters(completions: Sequence[Completion]) -> list[float]:
    """The number of different characters of each completion."""
    return [float(len(set(text_of(completion)))) for completion in completions]


def length(completions: Sequence[Completion], target: int | None = None) -> list[float]:
    """The number of characters; with ``target``, minus the distance from it."""
    sizes = [len(text_of(completion)) for completion in completions]
    return [float(size) if target is None else -float(abs(size - target)) for size in sizes]


def exact_match(completions: Sequence[Completion], column: str = "reference", **columns: Values) -> list[float | None]:
    """1 where the answer is that of ``column`` but for case, spaces and end marks, else 0; None where that is null."""
    fix = "reward.exact_match.column=<column>, or metric.exact.column=<column>"
    return [
        None if answer is None else float(_normal(text_of(completion)) == _normal(text_of(answer)))
        for completion, answer in zip(completions, read_column(columns, column, fix), strict=True)
    ]


def sorted_digits(completions: Sequence[Completion], digits: Sequence[str]) -> list[float]:
    """The share of places with the right digit, less a half where the number of digits is wrong."""
    rewards = []
    for completion, line in zip(completions, digits, strict=True):
        given, right = text_of(completion).split(), sorted(line.split())
        hits = sum(digit == other for digit, other in zip(given, right, strict=False))
        rewards.append(hits / len(right) - (0.5 if len(given) != len(right) else 0.0))
    return rewards


def price(place: str, item: str) -> int:
    """The price of something at a place.

    Args:
        place: the place.
        item: the thing.
    """
    return hashlib.sha256(f"{place} {item}".encode()).digest()[1] % 10


def sentiment(
    completions: Sequence[Completion], praise: Collection[str] = PRAISE, complaint: Collection[str] = COMPLAINT
) -> list[float]:
    """Words of praise less words of complaint, each occurrence counted, from -1 to 1: four words give all of it.

    A policy that is paid by it learns to write only such words: a lesson in what a reward leaves out.
    """
    rewards = []
    for completion in completions:
        words = re.findall(r"\w+", text_of(completion).lower())
        surplus = sum(word in praise for word in words) - sum(word in complaint for word in words)
        rewards.append(max(-1.0, min(1.0, surplus / FULL_PRAISE)))
    return rewards


def format_match(completions: Sequence[Completion], pattern: str, whole: bool = True) -> list[float]:
    """1 where a completion, or a part of it if not ``whole``, has a pattern's form, else 0; a dot is any character."""
    form = _compiled(pattern)
    find = form.fullmatch if whole else form.search
    return [float(find(text_of(completion).strip()) is not None) for completion in completions]


def keywords(
    completions: Sequence[Completion], required: Collection[str] = (), forbidden: Collection[str] = ()
) -> list[float]:
    """The share of ``required`` whole words or phrases, less that of ``forbidden``, -1 to 1; capitals do not count."""
    if not required and not forbidden:
        raise ConfigError(fault("reward.no_keywords"))
    texts = [text_of(completion) for completion in completions]
    return [_share(required, text) - _share(forbidden, text) for text in texts]


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" .!?")


def _share(words: Collection[str], text: str) -> float:
    found = sum(_compiled(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE).search(text) is not None for word in words)
    return found / len(words) if words else 0.0


@functools.cache
def _compiled(pattern: str, flags: re.RegexFlag = re.DOTALL) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ConfigError(fault("reward.no_pattern", pattern=pattern, error=error)) from error
