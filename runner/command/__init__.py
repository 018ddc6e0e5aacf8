"""The verbs, one file each; each has one public function of the file's name. Only here do the parts meet.

The help of a verb and its own options stand in the YAML file beside it. Here, and in the files that begin with an
underscore, is what several of them read of the command line.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.schema.text import read_tables

VERBS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


@dataclass(frozen=True)
class CommandLine:
    """The words of a command, sorted: the verb, overrides, run folders, our flags, and the flags for Hydra alone."""

    verb: str
    overrides: list[str]
    runs: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    multirun: bool = False
    dry_run: bool = False
    debug: bool = False
    inspect: list[str] = field(default_factory=list)


def table_of(verb: str) -> dict[str, Any]:
    """The table beside a verb: its ``help``, and the ``options`` of its own with those that it shares with others."""
    table = read_tables(str(Path(__file__).with_name(f"{verb}.py")))
    shared = table_of(table["beside"])["options"] if "beside" in table else {}
    return table | {"options": shared | table.get("options", {})}
