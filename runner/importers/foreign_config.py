"""The keys of somebody else's configuration, and what is known of the file that they come from.

Files are read here: YAML and JSON become keys. How a shell script becomes keys is in
``training_command``, and ``foreign_file`` puts both together.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.config.limits import check_size, encoding_fault, parse_yaml
from runner.errors import ConfigError, Fault
from runner.io.filetype import EXPERIMENT_FILES
from runner.schema.did_you_mean import files_beside

FILE_TYPES = (".yaml", ".yml", ".json")
NOTEBOOK = ".ipynb"
MAX_NOTEBOOK = 64_000_000  # bytes, most of which are the pictures and sounds that it has shown

Keys = dict[str, Any]  # keys of a file with their values


@dataclass(frozen=True)
class Remark:
    """Something in a file that is no key, and why it is not taken over."""

    value: object
    why: str


@dataclass
class ForeignConfig:
    """The keys of a file and the tool that they are meant for."""

    path: Path
    keys: Keys
    dialect: str = ""
    why: str = ""  # what says that it is of this dialect
    command: str = ""  # the subcommand, if the file holds a command
    devices: int = 1  # on how many it ran
    # The name of the script that it starts, where the dialect knows some.
    script: str = ""
    # What the rules of its table may ask for, and is no key of the file.
    facts: Keys = field(default_factory=dict)
    # Keys that have a remark in place of a value, which nobody knows before the file is run.
    unknown: list[str] = field(default_factory=list)
    # What else the file holds.
    remarks: dict[str, Remark] = field(default_factory=dict)
    # Values of a file that it reads, and that its own take the place of.
    overridden: dict[str, Remark] = field(default_factory=dict)
    # The names that keys have in the file, where the table knows them under others.
    written_names: dict[str, str] = field(default_factory=dict)

    def rename(self, names: Mapping[str, str]) -> None:
        """Give keys the names that the table knows them under, if no other key has that name."""
        renamed_keys: Keys = {}
        for key, value in self.keys.items():
            name = names.get(key, key)
            if name in self.keys:
                name = key
            elif name != key:
                self.written_names[name] = key
            renamed_keys[name] = value
        self.keys = renamed_keys


def assign(keys: Keys, words: Sequence[str]) -> Keys:
    """Set keys as the words ``outer.inner=value`` say; ``~outer.inner`` takes a key out.

    A word for a component as a whole sets which one it is. Returns what had another value.
    """
    earlier: Keys = {}
    for word in words:
        path, sign, value = word.partition("=")
        *outer, last = path.lstrip("~+").split(".")
        node = keys
        for name in outer:
            inner = node.get(name)
            if not isinstance(inner, dict):
                inner = node[name] = {}
            node = inner
        if sign and isinstance(node.get(last), dict):
            node = node[last]
            last = "_component_"
        if node.get(last) not in (None, value):
            earlier[path.lstrip("~+")] = node[last]
        if not sign or word.startswith("~"):
            node.pop(last, None)
        else:
            node[last] = value
    return earlier


def read_foreign_text(path: Path) -> str:
    """The text of a file; ConfigError where it is missing, too large, or not UTF-8."""
    try:
        is_shown = path.suffix == NOTEBOOK and path.is_file()
        if not is_shown or path.stat().st_size > MAX_NOTEBOOK:
            check_size(path)
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(encoding_fault(path, error.object, "a configuration in UTF-8")) from None
    except OSError as error:
        likeliest = [*files_beside(path, EXPERIMENT_FILES), "--help"][0]
        raise ConfigError(
            Fault(
                where=str(path),
                found=error.strerror or str(error),
                expected="a configuration",
                fix=f"python -m runner import {shlex.quote(likeliest)}",
            )
        ) from None


def read_named(path: Path, name: str) -> Keys | None:
    """The keys of a file that the file at ``path`` names; None where there is no such file.

    It is looked for from the working directory, then from the folder of ``path``, then right
    beside it.
    """
    for file in (Path(name), path.parent / name, path.parent / Path(name).name):
        if file.is_file():
            return parse_keys(read_foreign_text(file), name)
    return None


def parse_keys(text: str, name: str) -> Keys:
    """The keys of a text in YAML or JSON, whose file is called ``name`` in faults.

    Raises ConfigError where the text has no keys.
    """
    keys = parse_yaml(text, name)
    if not isinstance(keys, dict):
        found = "an empty file"
        if keys is not None:
            found = f"a {type(keys).__name__}"
        raise ConfigError(
            Fault(
                where=name,
                found=found,
                expected="keys with values",
                fix="python -m runner import <a file of keys and values>",
            )
        )
    return {str(key): value for key, value in keys.items()}
