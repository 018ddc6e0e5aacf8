"""The help of the verb ``watch``, and its options."""

from dataclasses import dataclass

from runner.command import VERBS
from runner.schema.ranges import Port

HELP = (
    VERBS["watch"] + ": the pages of a report, which renew themselves.",
    """\
python -m runner watch                                     every name under outputs/, one in a row
python -m runner watch outputs/<name>                      all runs of a name, side by side
python -m runner watch outputs/<name>/<run>                one run
python -m runner watch outputs/<name> outputs/<other>      runs of several names on one page, too
""".rstrip(),
    "The page of all names says of each the trainer, the model, the best score, the share of the "
    "steps that is done, and the time left. "
    "Prints the address to open, which works on this machine alone and holds a random token: "
    "who has it reads, and nobody writes. From another machine: ssh -L 8123:127.0.0.1:8123 "
    "and port=8123. No file is written; Ctrl-C ends it.",
    {
        "port=8123": "the port; without it any that is free",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
)


@dataclass(frozen=True)
class Options:
    """The options of ``watch``."""

    port: Port = 0
    output_root: str = "outputs"
