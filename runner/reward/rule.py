"""Rewards that a few lines of code can decide. Scores of models are in ``outcome``."""

import functools
import hashlib
import re
from collections.abc import Collection, Sequence

from runner.errors import ConfigError, Fault, read_column
from runner.io.turns import Completion, Values, text_of
from runner.schema.ranges import Natural

# Words of a review that is content, and of one that complains.
PRAISE = frozenset(
    [
        "amazing",
        "beautiful",
        "best",
        "charming",
        "delicious",
        "delightful",
        "enjoyed",
        "excellent",
        "fantastic",
        "friendly",
        "gladly",
        "good",
        "great",
        "happy",
        "helpful",
        "loved",
        "lovely",
        "nice",
        "perfect",
        "pleasant",
        "recommend",
        "superb",
        "wonderful",
    ]
)
COMPLAINT = frozenset(
    [
        "angry",
        "awful",
        "bad",
        "boring",
        "broken",
        "cold",
        "dirty",
        "dreadful",
        "hated",
        "horrible",
        "nasty",
        "never",
        "poor",
        "refund",
        "regretted",
        "rude",
        "terrible",
        "ugly",
        "unkind",
        "unpleasant",
        "upset",
        "warned",
        "worse",
        "worst",
    ]
)
# A kind review of the shipped rows has two such words, and earns half; the rest is by repeating.
FULL_PRAISE = 4


def distinct_characters(completions: Sequence[Completion]) -> list[float]:
    """The number of different characters of each completion."""
    rewards = []
    for completion in completions:
        letters = set(text_of(completion))
        rewards.append(float(len(letters)))
    return rewards


def length(completions: Sequence[Completion], target: Natural | None = None) -> list[float]:
    """The number of characters; with ``target``, minus the distance from it."""
    lengths = [len(text_of(completion)) for completion in completions]
    if target is None:
        return list(map(float, lengths))
    return [-float(abs(length - target)) for length in lengths]


def exact_match(
    completions: Sequence[Completion], column: str = "reference", **columns: Values
) -> list[float | None]:
    """1 where the answer is that of ``column`` but for case, spaces and end marks, else 0.

    None where the column is null.
    """
    fix = "reward.exact_match.column=<column>, or metric.exact.column=<column>"
    answers = read_column(columns, column, fix)
    rewards: list[float | None] = []
    for completion, answer in zip(completions, answers, strict=True):
        if answer is None:
            rewards.append(None)
        else:
            is_same = _normal(text_of(completion)) == _normal(text_of(answer))
            rewards.append(float(is_same))
    return rewards


def sorted_digits(completions: Sequence[Completion], digits: Sequence[str]) -> list[float]:
    """The share of places with the right digit, less a half where the number of digits is wrong."""
    rewards = []
    for completion, line in zip(completions, digits, strict=True):
        answer = text_of(completion).split()
        right = sorted(line.split())
        hits = sum(digit == other for digit, other in zip(answer, right, strict=False))
        penalty = 0.5 if len(answer) != len(right) else 0.0
        rewards.append(hits / len(right) - penalty)
    return rewards


def price(place: str, item: str) -> int:
    """The price of something at a place.

    Args:
        place: the place.
        item: the thing.
    """
    digest = hashlib.sha256(f"{place} {item}".encode()).digest()
    return digest[1] % 10


def sentiment(
    completions: Sequence[Completion],
    praise: Collection[str] = PRAISE,
    complaint: Collection[str] = COMPLAINT,
) -> list[float]:
    """Words of praise less words of complaint, from -1 to 1, which four words more give.

    Each occurrence counts.

    A policy that is paid by it learns to write only such words: a lesson in what a reward leaves
    out.
    """
    rewards = []
    for completion in completions:
        words = re.findall(r"\w+", text_of(completion).lower())
        praises = sum(word in praise for word in words)
        complaints = sum(word in complaint for word in words)
        surplus = praises - complaints
        share = min(1.0, surplus / FULL_PRAISE)
        rewards.append(max(-1.0, share))
    return rewards


def format_match(
    completions: Sequence[Completion], pattern: str, whole: bool = True
) -> list[float]:
    """1 where a completion fits a pattern, in which a dot is any character, else 0.

    If not ``whole``, a part of the completion need only fit.
    """
    form = _compiled(pattern)
    find = form.fullmatch if whole else form.search
    rewards = []
    for completion in completions:
        match = find(text_of(completion).strip())
        rewards.append(float(match is not None))
    return rewards


def appears_once(completions: Sequence[Completion], texts: Collection[str]) -> list[float]:
    """The share of ``texts``, such as tags, that stand exactly once in a completion."""
    rewards = []
    for completion in completions:
        text = text_of(completion)
        hits = sum(text.count(part) == 1 for part in texts)
        rewards.append(hits / len(texts))
    return rewards


def keywords(
    completions: Sequence[Completion],
    required: Collection[str] = (),
    forbidden: Collection[str] = (),
) -> list[float]:
    """The share of ``required`` words or phrases, less that of ``forbidden`` ones, from -1 to 1.

    They must be whole words; capitals do not count.
    """
    if not required and not forbidden:
        raise ConfigError(
            Fault(
                where="reward.keywords",
                found="no words",
                expected="required or forbidden ones",
                fix="reward.keywords.required=[great]",
            )
        )
    texts = [text_of(completion) for completion in completions]
    return [_share(required, text) - _share(forbidden, text) for text in texts]


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" .!?")


def _share(words: Collection[str], text: str) -> float:
    if not words:
        return 0.0
    count = 0
    for word in words:
        pattern = _compiled(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
        count += pattern.search(text) is not None
    return count / len(words)


@functools.cache
def _compiled(pattern: str, flags: re.RegexFlag = re.DOTALL) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ConfigError(
            Fault(
                where="reward.format_match.pattern",
                found=f"{pattern!r}: {error}",
                expected="a regular expression",
            )
        ) from error
