"""Lists the options of the groups, and finds an option or a key by its name."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from runner.command import CommandLine
from runner.command._help import list_entry
from runner.config.dialect import find_meanings
from runner.config.menu import Options, read_menu, read_options
from runner.errors import ConfigError, Fault
from runner.io.files import MENU
from runner.schema.did_you_mean import best_guess
from runner.validate.context import ValidationContext

# Options whose keys are found beside those of the trainers.
WITH_KEYS = {"model": "hub", "dataset": "hub", "peft": "lora"}


def main(line: CommandLine) -> int:
    """Print the options of the groups that are named, or of all, with their first comments."""
    menu = read_menu(line.folders)
    words = [*line.runs, *line.overrides] or list(menu)
    expected = f"an option, a key, or a group: {', '.join(menu)}"
    descriptions = {}
    faults = []
    for word in dict.fromkeys(words):
        named = find_named(word, menu, line.folders)
        descriptions[word] = named
        if not named:
            guess = best_guess(word, menu)
            fix = f"python -m runner options {guess}".rstrip()
            faults.append(
                Fault(
                    where=word,
                    found="no such name",
                    expected=expected,
                    fix=fix,
                )
            )
    ConfigError.refuse(faults)
    for word, named in descriptions.items():
        print(word)
        for name, text in named.items():
            print(list_entry(name, text))
    return 0


def find_named(word: str, menu: Options, folders: Sequence[Path]) -> dict[str, str]:
    """The options of the group of this name, each with its description.

    Where there is no such group: the words for each option of this name, and for each key of this
    name those with the trainers that have it.
    """
    if word in menu:
        return {option: describe(word, option, folders) for option in menu[word]}
    named = {}
    for group, options in menu.items():
        if word in options:
            named[f"{group}={word}"] = describe(group, word, folders)
    trainers: dict[str, list[str]] = {}
    for trainer in read_options("trainer"):
        for path in _find_keys(word, trainer):
            trainers_of_key = trainers.setdefault(f"{path}=", [])
            trainers_of_key.append(trainer)
    for path, names in trainers.items():
        named[path] = ", ".join(names)
    return named


def _find_keys(word: str, trainer: str) -> list[str]:
    """The keys with a trainer of which a word is the last name, or what another tool calls so."""
    option = read_options("trainer")[trainer]
    cfg = {group: read_options(group)[name] for group, name in WITH_KEYS.items()}
    cfg["trainer"] = option["trainer"]
    places = ValidationContext(cfg).places
    keys = set(chain.from_iterable(places.values()))
    if "kl_coef" not in option:
        keys.discard("kl_coef")
    paths = list(places.get(word, ()))
    for meaning in find_meanings(word, 1, trainer):
        paths += meaning.words
    return [path for path in dict.fromkeys(paths) if path in keys]


def describe(group: str, option: str, folders: Sequence[Path]) -> str:
    """The comment at the head of an option's file, that of the first folder that has one."""
    for root in (*folders, MENU):
        file = root / group / f"{option}.yaml"
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            header, _, _ = text.partition("# run:")
            comments = re.findall(r"^# (?!@package)(.*)", header, re.MULTILINE)
            return " ".join(comments)
    return ""
