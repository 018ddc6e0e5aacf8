"""The help of the verb ``clean``, and its options."""

from dataclasses import dataclass
from typing import Literal

from runner.command import VERBS

HELP = (
    """\
python -m runner clean                                     which names are large, and what to type
python -m runner clean outputs/<name> where=state=failed
""".rstrip(),
    VERBS["clean"]
    + " with their sizes: it asks, and where nobody can answer only yes=true is an answer. A run "
    "that is running, queued or held is never touched, nor one in whose folder is something that "
    "no run writes there; no link is followed.",
    {
        "where=state=failed": "which runs, as in report: where='state=lost,updated<2026-11-01'. "
        "Without keep they are deleted whole, for which either this or the folder of one run is "
        "needed",
        "keep=last": "of each run, only the checkpoints go that are older than the newest whole "
        "one; the best stays, too. What is not finished goes on from there",
        "keep=model": "of each finished run, all checkpoints go; the model, the figures and the "
        "log stay, and the same command finds it finished",
        "keep=runs": "only what report makes again goes: pages, plots, summaries and the index",
        "yes=true": "delete without asking",
        "output_root=outputs": "where names and keys of runs are looked up; what lies elsewhere "
        "is not deleted",
    },
)


@dataclass(frozen=True)
class Options:
    """The options of ``clean``."""

    where: str | None = None
    keep: Literal["last", "model", "runs"] | None = None
    yes: bool = False
    output_root: str = "outputs"
