"""The verbs, one file each; each has one public function of the file's name. Only here do the parts meet.

Here, and in the files that begin with an underscore, is what several of them read of the command line.
"""

from dataclasses import dataclass, field
from pathlib import Path

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
