"""Lists the options of the groups; the help of the command line and the versions, too."""

import platform
import re
import textwrap
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from runner.command import VERBS, CommandLine, table_of
from runner.config.dialect import find_meanings
from runner.config.menu import Options, read_menu, read_options
from runner.errors import ConfigError, Fault
from runner.io.distribution import NAME, read_project
from runner.io.files import MENU
from runner.run import installed_version
from runner.schema.did_you_mean import best_guess
from runner.validate.context import ValidationContext

# options whose keys are found beside the trainers'
WITH_KEYS = {"model": "hub", "dataset": "hub", "peft": "lora"}
LIBRARIES = ("trl", "transformers", "torch", "peft", "datasets", "accelerate")


def main(line: CommandLine) -> int:
    """Print the options of the groups that are named, or of all, each with the first comment of its file."""
    menu = read_menu(line.folders)
    found = {
        word: find_named(word, menu, line.folders) for word in (*line.runs, *line.overrides) or menu
    }
    if strange := [word for word in found if not found[word]]:
        call, expected = (
            "python -m runner options",
            f"an option, a key, or a group: {', '.join(menu)}",
        )
        fixes = {word: f"{call} {best_guess(word, menu)}".rstrip() for word in strange}
        raise ConfigError(Fault(word, "no such name", expected, fix) for word, fix in fixes.items())
    for word, lines in found.items():
        print(word, *(_listed(name, text) for name, text in lines.items()), sep="\n")
    return 0


def find_named(word: str, menu: Options, folders: Sequence[Path]) -> dict[str, str]:
    """The options of the group that a word names; else the options, and the keys with their trainers, that it names."""
    if word in menu:
        return {option: _describe(word, option, folders) for option in menu[word]}
    found = {
        f"{group}={word}": _describe(group, word, folders) for group in menu if word in menu[group]
    }
    others = {group: read_options(group)[option] for group, option in WITH_KEYS.items()}
    for trainer, node in read_options("trainer").items():
        places = ValidationContext(others | {"trainer": node["trainer"]}).places
        meant = [path for meaning in find_meanings(word, 1, trainer) for path in meaning.words]
        known = {*chain(*places.values())} - ({"kl_coef"} - set(node))
        for path in dict.fromkeys(
            path for path in (*places.get(word, ()), *meant) if path in known
        ):
            found[f"{path}="] = ", ".join(filter(None, [found.get(f"{path}="), trainer]))
    return found


def _describe(group: str, option: str, folders: Sequence[Path]) -> str:
    file = next(
        file for root in (*folders, MENU) if (file := root / group / f"{option}.yaml").is_file()
    )
    header = file.read_text(encoding="utf-8", errors="replace").partition("# run:")[0]
    return " ".join(re.findall(r"^# (?!@package)(.*)", header, re.MULTILINE))


def _listed(name: str, text: str) -> str:
    wrapped = textwrap.fill(text or "-", 80, initial_indent=" " * 16, subsequent_indent=" " * 16)
    return f"  {name}\n{wrapped}" if len(name) > 13 else f"  {name}".ljust(16) + wrapped.lstrip()


def help_text(verb: str, folders: Sequence[Path]) -> str:
    """The help of a verb, that of a training with all verbs, of each the first words after its usage, and groups."""
    texts = {name: re.sub(r"^python -m runner.*\n\n", "", table_of(name)["help"]) for name in VERBS}
    verbs = [
        _listed(name, re.split(r"[.:;]\s", text.replace("\n", " "))[0])
        for name, text in texts.items()
    ]
    groups = textwrap.indent(textwrap.fill(", ".join(read_menu(folders)), 78), "  ")
    whole: str = table_of(verb)["help"]
    return whole.format(verbs="\n".join(verbs), groups=groups) if verb == "train" else whole


def version_text() -> str:
    """The version of the runner and of the libraries, none of which is imported."""
    own = read_project().get("version") or installed_version(NAME)
    found = [f"{name} {installed_version(name) or 'missing'}" for name in LIBRARIES]
    return f"{NAME} {own} ({', '.join(found)}, Python {platform.python_version()})"
