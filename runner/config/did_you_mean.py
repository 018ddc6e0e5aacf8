"""What a misspelt or foreign word is corrected by.

    nearest, best_guess, files_beside    names that look like it
    find_meanings                        other names of our keys and options: those of other tools,
                                         and of earlier versions of the libraries
    meant_command                        another tool's word for one of our verbs
    join_pairs, to_flag, respell         words of a command line, as they should have been typed

The other names stand in the tables of ``dialect``. Which names there are, and which of several
corrections a fault shows, is up to the callers.
"""

import contextlib
import difflib
import functools
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.conversion import CONVERSIONS
from runner.config.dialect import (
    SHARED,
    Rule,
    Rules,
    filled,
    find_dialects,
    holds,
    is_wanted,
    read_dialect_texts,
    read_rules,
    read_sections,
)
from runner.schema.literal import to_text
from runner.schema.text import Node, to_override

MIN_LIKENESS = 0.6  # from here on, a name is offered
# A remark that is a command as a whole.
COMMAND = re.compile(r"(python -m runner|[\w.]+=)((?![,;] |<).)+")
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
        return not name.endswith(path.suffix), -likeness(path.name, name), name

    files = [file for file in path.parent.glob("[!.]*") if file.suffix.lower() in suffixes]
    return sorted(map(str, files), key=rank)


# --- Other names ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Meaning:
    """The options and values of ours that a word stands for."""

    words: Node  # by their keys
    why: str  # a remark, or the reason why there are no words
    fix: str = ""  # what comes nearest, where there are none
    final: bool = False  # meant even where the word is a key of ours elsewhere


@functools.cache
def _read_typed() -> list[Rules]:
    """The rules for what is typed, those that all tables share, and those of each dialect."""
    shared = read_sections()[SHARED]
    tables = [read_rules({"keys": shared["typed"]}), read_rules(shared)]
    for dialect in find_dialects().values():
        tables.append(read_rules(dialect))
    return tables


def find_meanings(key: str, value: object, trainer: str = "") -> Iterator[Meaning]:
    """The meanings of a key that is not ours, with this value, the likeliest first.

    An adapter is taken for LoRA.
    """
    # Most keys are in no table, and it takes a while to read them all.
    if not any(key in text for text in read_dialect_texts().values()):
        return
    rules = []
    for rows in _read_typed():
        for rule in rows.get(key, ()):
            if not rule.by and "*" not in rule.to:
                rules.append(rule)
    facts: dict[str, list[object]] = {"value": [value], "trainer": [trainer], "peft": ["lora"]}
    names = {"key": key, "value": value, "trainer": trainer}
    for rule in rules:
        if holds(rule, facts, {key: value}):
            meaning = _to_meaning(rule, names)
            yield meaning
            if not meaning.words:
                return
    if rules and is_wanted(value, "disabled"):
        yield Meaning({}, "it is off without it")


def _to_meaning(rule: Rule, names: Mapping[str, object]) -> Meaning:
    """The meaning that a rule gives to a word; ``names`` are those that its texts may use."""
    words: dict[str, object] = {}
    group, _, option = filled(rule.choose, names).partition("=")
    if group:
        words[group] = None if option == "null" else option
    if rule.to:
        words[rule.to] = names["value"]
        if rule.write is not None:
            words[rule.to] = filled(rule.write, names)
        elif rule.convert:
            with contextlib.suppress(ValueError):  # the check of values says what it expects
                words[rule.to] = CONVERSIONS[rule.convert](names["value"])
    for path, constant in rule.also.items():
        words[path] = filled(constant, names)

    why = filled(rule.reason or rule.why, names)
    remark = filled(rule.typed or rule.nearest, names)
    fix = ""
    if COMMAND.fullmatch(remark):
        fix = remark
    elif remark:
        why = f"{why}; nearest: {remark}".removeprefix("; ")
    return Meaning(words, why, fix, final=rule.kind == "refused")


def meant_command(word: str) -> str:
    """The command that another tool's word for one of our verbs stands for; else empty.

    It has names in braces: ``{word}``, ``{rest}`` of the words, and the ``{runs}`` among them.
    """
    commands: dict[str, str] = read_sections()[SHARED]["words"]
    return commands.get(word.lower(), "")


# --- Words of a command line ----------------------------------------------------------------------
def join_pairs(words: Sequence[str]) -> list[str]:
    """The words, in which those that are a key with its value together are one key=value."""
    typed = "\0".join(words)
    joined = PAIR.sub(r"\1=", typed)
    return list(words) if joined == typed else joined.split("\0")


def to_flag(word: str) -> str:
    """The flag that a word with the dash of an editor stands for; else empty."""
    dashed = DASHED.fullmatch(word)
    if not dashed:
        return ""
    name = dashed[1]
    return f"--{name}" if len(name) > 1 else f"-{name}"


def respell(word: str, is_readable: Callable[[str], bool]) -> str:
    """The words to type for an override that Hydra does not read, as ``is_readable`` says."""
    letters = [letter for letter in word if letter.isprintable() or letter.isspace()]
    text = "".join(letters).strip()
    for words in _respellings(text):
        if all(map(is_readable, words)):
            return shlex.join(words)

    key, _, value = text.partition("=")
    key = key.strip()
    value = value.strip()
    if value.startswith("{"):
        file = f"{key} in a file of --config-dir, where a name may have any letters"
        return f"{file}; Hydra's grammar knows few"
    is_key = re.fullmatch(r"[\w/@-]+(\.[\w/@-]+)*", key)
    is_call = re.match(r"\w+\(", value)
    if is_key and not is_call and is_readable(f"{key}={to_text(value)}"):
        return to_override(key, value)
    return f"leave {key or word} out"


def _respellings(text: str) -> Iterator[list[str]]:
    """Words that may be meant by a text: without blanks, as several words, with brackets closed."""
    key, _, value = text.partition("=")
    if key.strip() == "name":
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", value.strip()).strip("-.")
        yield [f"name={name or 'mine'}"]
        return
    pieces = re.split(r"\s+(?=[\w./@]+\s*=)", text)
    words = [re.sub(r"\s*=\s*", "=", piece, count=1) for piece in pieces]
    yield words
    closed = words[-1].rstrip(",;")
    for opening, closing in ("[]", "{}"):
        lacking = closed.count(opening) - closed.count(closing)
        if f"={opening}" in closed:
            closed += closing * max(0, lacking)
    yield [*words[:-1], closed]
