"""The help of the verb ``diff``, and its options."""

from dataclasses import dataclass

from runner.command import VERBS

HELP = (
    "python -m runner diff A B",
    VERBS["diff"] + ": configuration, data, versions, hardware, code, command, results and the "
    "last metrics. What is alike is said in one line; of the rest, the shortest section comes "
    "first. Reads only what the two folders hold, in whatever state the runs are. A run is its "
    "folder, <name>/<run>, a <name> with one run, or the key at the end of its folder's name.",
    {
        "output_root=outputs": "where names and keys are looked up",
    },
)


@dataclass(frozen=True)
class Options:
    """The options of ``diff``."""

    output_root: str = "outputs"
