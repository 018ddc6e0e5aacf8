"""Corrections of misspelt words, and of words of a command line.

    nearest, best_guess, files_beside    names that look like it
    join_pairs, to_flag, respellings     words of a command line, as they should have been typed

A word that is spelt well, and is another tool's or an earlier version's, has a row in a table:
``config.dialect`` finds its meanings. Which names there are, and which of several corrections a
fault shows, is up to the callers.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

MIN_LIKENESS = 0.6  # from here on, a name is offered
# A flag with the dash that editors make of two hyphens.
DASHED = re.compile(r"[\u2010-\u2015\u2212]+(\w[\w-]*)")
# Words that are `key: value`, `key = value` or `key= value`, with a mark between words.
PAIR = re.compile(
    r"(?<![^\0])([A-Za-z_][\w.]*)(?:=\0(?=[^\0/]+(?:\0|\Z))|\0?:\0|\0[:=]\0?|:)(?=[^\0=/\\])"
)


# --- Names that look alike ------------------------------------------------------------------------
def likeness(word: str, other: str) -> float:
    """From 0 to 1 how much two words look alike; case and separators do not count.

    A word that the other one begins with is at least 0.9 like it.
    """
    plain = re.sub(r"[\W_]", "", word).lower()
    other_plain = re.sub(r"[\W_]", "", other).lower()
    ratio = difflib.SequenceMatcher(None, plain, other_plain).ratio()
    if len(plain) > 3 and other_plain.startswith(plain):
        return max(0.9, ratio)
    return ratio


def nearest(word: str, names: Iterable[str], cutoff: float = MIN_LIKENESS) -> list[str]:
    """The names that look like a word, the likeliest first."""
    scores = {}
    for name in names:
        score = likeness(word, name)
        if score >= cutoff:
            scores[name] = score
    return sorted(scores, key=scores.__getitem__, reverse=True)


def best_guess(
    word: str, names: Iterable[str], *otherwise: str, cutoff: float = MIN_LIKENESS
) -> str:
    """The name that looks most like a word, or else the first of ``otherwise``.

    Empty where there is neither.
    """
    for name in (*nearest(word, names, cutoff), *otherwise):
        return name
    return ""


def files_beside(path: Path, suffixes: Collection[str]) -> list[str]:
    """The files with these suffixes in the folder of a missing one, those most like it first.

    Files with its own suffix come before others.
    """

    def rank(name: str) -> tuple[bool, float, str]:
        has_other_suffix = not name.endswith(path.suffix)
        return has_other_suffix, -likeness(path.name, name), name

    names = []
    for file in path.parent.glob("[!.]*"):
        if file.suffix.lower() in suffixes and file.is_file():
            names.append(str(file))
    return sorted(names, key=rank)


# --- Words of a command line ----------------------------------------------------------------------
def join_pairs(words: Sequence[str]) -> list[str]:
    """The words, in which those that are a key with its value together are one key=value.

    NUL stands between the words meanwhile: it is the one letter that none of them can hold.
    """
    typed = "\0".join(words)
    joined = PAIR.sub(r"\1=", typed)
    if joined == typed:
        return list(words)
    return joined.split("\0")


def to_flag(word: str) -> str:
    """The flag that a word with the dash of an editor stands for; else empty."""
    dashed = DASHED.fullmatch(word)
    if not dashed:
        return ""
    name = dashed[1]
    dashes = "--" if len(name) > 1 else "-"
    return dashes + name


def seen_letters(word: str) -> str:
    """A word without the signs that nobody sees, and without blanks around it."""
    letters = []
    for letter in word:
        if letter.isprintable() or letter.isspace():
            letters.append(letter)
    text = "".join(letters)
    return text.strip()


def respellings(word: str) -> Iterator[list[str]]:
    """Overrides that may be meant by one that Hydra does not read, the likeliest first.

    They are without blanks and signs that nobody sees, several words, or with brackets closed.
    """
    text = seen_letters(word)
    key, _, value = text.partition("=")
    if key.strip() == "name":
        dashed = re.sub(r"[^A-Za-z0-9_.-]+", "-", value.strip())
        name = dashed.strip("-.") or "mine"
        yield [f"name={name}"]
        return
    # Several words where a blank and another `key=` follow.
    pieces = re.split(r"\s+(?=[\w./@]+\s*=)", text)
    words = [re.sub(r"\s*=\s*", "=", piece, count=1) for piece in pieces]
    yield words
    *first_words, last_word = words
    closed = last_word.rstrip(",;")
    for opening, closing in ("[]", "{}"):
        if f"={opening}" in closed:
            lacking = closed.count(opening) - closed.count(closing)
            closed += closing * max(0, lacking)
    yield [*first_words, closed]
