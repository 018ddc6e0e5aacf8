"""The help of the command line and of each verb, as ``--help`` prints it.

Each ``<verb>_options`` holds the parts of its help: a text is filled to the width of a line, a text
of several lines stays as it is, and a mapping is a list of words with what they are for.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from runner.command import VERBS
from runner.config.menu import read_menu

HelpParts = Sequence[str | Mapping[str, str]]
WIDTH = 118
INDENT = 4
EXAMPLE_WIDTH = 22


def asked_verb(words: Sequence[str]) -> str:
    """The verb whose help is all that some words ask for; empty for any others.

    >>> asked_verb(["--help"]), asked_verb(["report", "-h"]), asked_verb(["--help", "seed=1"])
    ('train', 'report', '')
    """
    verbs = [word for word in words if word not in ("--help", "-h")]
    if len(verbs) == len(words) or len(verbs) > 1:
        return ""
    verb = verbs[0] if verbs else "train"
    return verb if verb in VERBS else ""


def help_text(verb: str, folders: Sequence[Path] = ()) -> str:
    """The help of a verb; that of a training lists all verbs and groups."""
    parts: HelpParts = import_module(f"runner.command.{verb}_options").HELP
    text = "\n\n".join(map(_to_text, parts))
    if verb != "train":
        return text
    entries = [list_entry(name, summary) for name, summary in VERBS.items()]
    verbs = "\n".join(entries)
    menu = ", ".join(read_menu(folders))
    filled_menu = textwrap.fill(menu, 78)
    groups = textwrap.indent(filled_menu, "  ")
    return text.format(verbs=verbs, groups=groups)


def list_entry(name: str, text: str) -> str:
    """A name with its description beside it, or below it where the name is long."""
    indent = " " * 16
    filled = textwrap.fill(text or "-", 80, initial_indent=indent, subsequent_indent=indent)
    if len(name) > 13:
        return f"  {name}\n{filled}"
    beginning = f"  {name}".ljust(16)
    return beginning + filled.lstrip()


def _to_text(part: str | Mapping[str, str]) -> str:
    """A part of a help as it is printed."""
    if isinstance(part, Mapping):
        return "\n".join(_word_lines(part))
    if "\n" in part:
        return part
    return textwrap.fill(part, WIDTH)


def _word_lines(words: Mapping[str, str]) -> Iterator[str]:
    """The lines of words that a verb takes: an example, and beside it what it is for."""
    indent = " " * INDENT
    column = " " * (INDENT + EXAMPLE_WIDTH)
    for example, text in words.items():
        if not text:
            yield indent + example
            continue
        head = f"{indent}{example:<{EXAMPLE_WIDTH}}"
        if len(example) >= EXAMPLE_WIDTH:
            head = f"{indent}{example}    "
        yield textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=column)
