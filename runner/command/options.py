"""python -m runner options [GROUP ...]

Lists every option of the groups, with what it is. One word of a command chooses it, as in trainer=dpo. The options in
folders that --config-dir names are among them.
"""

# The help of the command line is here too: ``options.txt`` with what there is, verbs and groups; and the versions.

import ast
import platform
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from runner.command import VERBS, CommandLine
from runner.config.menu import read_menu
from runner.errors import ConfigError, Fault
from runner.io.distribution import NAME, read_project
from runner.io.files import MENU
from runner.run import installed_version
from runner.schema.text import nearest

LIBRARIES = ("trl", "transformers", "torch", "peft", "datasets", "accelerate")


def main(line: CommandLine) -> int:
    """Print the options of the groups that are named, or of all, each with the first comment of its file."""
    menu, call = read_menu(line.folders), "python -m runner options"
    if strange := [word for word in (*line.runs, *line.overrides) if word not in menu]:
        fixes = {word: " ".join([call, *nearest(word, menu)[:1]]) for word in strange}
        raise ConfigError(Fault(word, "no such group", ", ".join(menu), fix) for word, fix in fixes.items())
    for group in line.runs or menu:
        print(group)
        for option in menu[group]:
            file = next(file for root in (*line.folders, MENU) if (file := root / group / f"{option}.yaml").is_file())
            header = file.read_text(encoding="utf-8").partition("# run:")[0]
            print(_listed(option, " ".join(re.findall(r"^# (?!@package)(.*)", header, re.MULTILINE))))
    return 0


def _listed(name: str, text: str) -> str:
    return textwrap.fill(text or "-", 80, initial_indent=f"  {name} ".ljust(16), subsequent_indent=" " * 16)


def help_text(folders: Sequence[Path]) -> str:
    """The help on about one screen, 80 letters wide; of a verb the first words after its usage, up to a mark."""
    here, verbs = Path(__file__), []
    for verb in VERBS:
        tree = ast.parse(here.with_name(f"{verb}.py").read_text(encoding="utf-8"))
        said = re.sub(r"^python -m runner.*\n\n", "", ast.get_docstring(tree) or "")
        verbs.append(_listed(verb, re.split(r"[.:;]\s", said.replace("\n", " "))[0]))
    groups = textwrap.indent(textwrap.fill(", ".join(read_menu(folders)), 78), "  ")
    return here.with_suffix(".txt").read_text(encoding="utf-8").format(verbs="\n".join(verbs), groups=groups).strip()


def version_text() -> str:
    """The version of the runner and of the libraries, none of which is imported."""
    own = read_project().get("version") or installed_version(NAME)
    found = [f"{name} {installed_version(name) or 'missing'}" for name in LIBRARIES]
    return f"{NAME} {own} ({', '.join(found)}, Python {platform.python_version()})"
