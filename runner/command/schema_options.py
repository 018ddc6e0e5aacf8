"""The help of the verb ``schema``, and its options."""

from dataclasses import dataclass

from runner.command import VERBS

HELP = (
    "python -m runner schema [to=FOLDER]",
    VERBS["schema"] + ": one JSON Schema for experiments and one for each group, with the type, "
    "range, default and description of every key, as the installed libraries have them. An editor "
    "with a YAML language server (VS Code, JetBrains, Neovim, Emacs, Helix) then completes and "
    "checks a file whose first lines have the line that this command prints. Options of your own, "
    "and the classes and functions that they name, are among them; nothing is imported.",
    {
        "to=FOLDER": "the folder of groups; the default is the first of --config-dir, else conf/ "
        "here. The schemas are in FOLDER/.schema",
    },
    "After an update of the libraries, or with an option more, the same command writes them anew.",
)


@dataclass(frozen=True)
class Options:
    """The options of ``schema``."""

    to: str | None = None
