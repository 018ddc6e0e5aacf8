"""The words of a call from Python, which are those of the command line without verbs and flags."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.config.choice import A_FILE
from runner.config.menu import read_menu
from runner.config.override import expand, is_experiment_file
from runner.errors import ConfigError, Fault
from runner.io.filetype import TRAINING_FILES
from runner.schema.text import to_override

# The blanks between several overrides in one text.
BETWEEN_WORDS = re.compile(r"\s+(?=[\w./@]+=)")


def to_overrides(
    words: Sequence[str], folders: Sequence[Path], call: str, /, **keys: object
) -> list[str]:
    """The overrides as Hydra takes them; ConfigError for all other words.

    The path of a file chooses the experiment in it. ``keys`` are the keyword arguments of the
    ``call``, which are no words either.
    """
    strange = [word for word in words if not isinstance(word, str)]
    fix = f'runner.{call}("seed=1")'
    ConfigError.refuse(
        Fault(
            where=f"runner.{call}",
            found=repr(word),
            expected="words",
            fix=fix,
        )
        for word in strange
    )
    words = [f"experiment={word}" if is_experiment_file(word) else word for word in words]
    faults = list(_find_word_faults(words, call))
    for key, value in keys.items():
        fix = f'runner.{call}("{to_override(key, value)}")'
        faults.append(
            Fault(
                where=key,
                found="an argument of this name",
                expected="a word of the command line",
                fix=fix,
            )
        )
    for folder in folders:
        if not folder.is_dir():
            faults.append(
                Fault(
                    where="config_dir",
                    found=str(folder),
                    expected="a folder",
                )
            )
    ConfigError.refuse(faults)
    return expand(words, read_menu(folders))


def _find_word_faults(words: Sequence[str], call: str) -> Iterator[Fault]:
    """The faults of words that no shell has split: verbs and runs, and several words in one text.

    A quoted value may hold what looks like another word.
    """
    for word in words:
        if "=" not in word and not word.startswith("~"):
            fix = f"python -m runner {' '.join(words)}"
            if word.endswith(TRAINING_FILES):
                fix = f'runner.{call}("{A_FILE}")'
            yield Fault(
                where="runner",
                found=repr(word),
                expected="key=value, or the path of a file; for several values, one call each",
                fix=fix,
            )
    for word in words:
        parts = BETWEEN_WORDS.split(word)
        if len(parts) > 1 and "'" not in word and '"' not in word:
            typed = ", ".join(f'"{part}"' for part in parts)
            yield Fault(
                where="runner",
                found=repr(word),
                expected="one word each",
                fix=f"runner.{call}({typed})",
            )
