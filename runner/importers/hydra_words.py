"""Overrides of a tool that reads its configuration with Hydra, and its nested YAML -> flat keys.

``key=value``, ``+key=value``, ``++key=value`` and ``~key`` stand behind the command, in any order
with Hydra's own flags. Nothing is read from the environment.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from runner.config.limits import parse_yaml
from runner.errors import ConfigError
from runner.importers.foreign_config import Keys, Remark, read_named
from runner.importers.references import fill_references
from runner.schema.text import flatten

OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w-]*(?:[./@][\w-]+)*)=(.*)", re.DOTALL)
DELETION = re.compile(r"~([A-Za-z_][\w.]*)(?:=.*)?")
# Hydra's flags that name the configuration below the overrides.
FLAGS = {
    "--config-path": "config-path",
    "-cp": "config-path",
    "--config-name": "config-name",
    "-cn": "config-name",
    "--config-dir": "config-dir",
    "-cd": "config-dir",
}
# Words at which a command ends.
ENDS = ("|", ">", ">>", "2>&1", "&", "&&", "||", ";", "1>")
# The working directory at the beginning of a path, as scripts write it.
WORKING_DIRECTORY = re.compile(r"^(?:\$\(pwd\)|\$\{?PWD\}?|\$\{?\w+\}?)/")


@dataclass
class HydraCommand:
    """The words behind a command that Hydra reads."""

    keys: Keys = field(default_factory=dict)
    remarks: dict[str, Remark] = field(default_factory=dict)


def read_hydra_words(path: Path, words: Sequence[str]) -> HydraCommand:
    """The keys that the words behind a command give, over those of the YAML that they name.

    The last of several overrides of a key counts, as with Hydra. What only the shell can say is
    noted in the remarks.
    """
    command = HydraCommand()
    flags: dict[str, str] = {}
    unread: list[str] = []
    waiting = ""  # the flag whose value the next word is
    for word in words:
        if word in ENDS:
            break
        name, sign, value = word.partition("=")
        override = OVERRIDE.fullmatch(word)
        deletion = DELETION.fullmatch(word)
        if waiting:
            flags[waiting] = word
            waiting = ""
        elif name in FLAGS and sign:
            flags[FLAGS[name]] = value
        elif name in FLAGS:
            waiting = FLAGS[name]
        elif override:
            command.keys[override[2]] = parse_value(override[3])
        elif deletion:
            command.remarks[word] = Remark(
                None, "a key that is taken away is as if it were left out"
            )
        elif word.startswith("$"):
            unread.append(word)
    if unread:
        why = "words that are set by the shell, and not in this file"
        command.remarks["words"] = Remark(" ".join(unread), why)
    command.keys = {**_read_named_config(path, flags), **command.keys}
    return command


def parse_value(text: str) -> object:
    """The value of an override: lists and mappings as Hydra takes them, anything else as a text."""
    inner = text.strip()
    # The grammar of Hydra is that of YAML's flow style, but for functions.
    if inner[:1] in "[{" and inner[-1:] in "]}" and inner:
        try:
            return parse_yaml(inner, "an override")
        except (ConfigError, yaml.YAMLError):
            return text
    if len(inner) > 1 and inner[0] == inner[-1] and inner[0] in "'\"":
        return inner[1:-1]
    return text


def _read_named_config(path: Path, flags: Mapping[str, str]) -> Keys:
    """The flat keys of the YAML that Hydra's flags name, and those flags that lead nowhere.

    What such a YAML composes from elsewhere is the business of the table.
    """
    name = flags.get("config-name", "")
    if not name:
        return dict(flags)
    folder = WORKING_DIRECTORY.sub("", flags.get("config-path", "."))
    file = f"{folder}/{name.removesuffix('.yaml')}.yaml"
    # A folder that only the shell knows is left out: the file may lie here all the same.
    nested = read_named(path, file)
    if nested is None:
        return dict(flags)
    return flatten_config(nested)


def flatten_config(nested: Keys) -> Keys:
    """The values of a nested configuration by their dotted keys, without references.

    A reference to what is not said there is left out, as if the key were.
    """
    flat = flatten(fill_references(nested))
    resolved: Keys = {}
    for key, value in flat.items():
        if not (isinstance(value, str) and "${" in value):
            resolved[key] = value
    return resolved
