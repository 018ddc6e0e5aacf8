"""The help of the verb ``reproduce``, and its options."""

from dataclasses import dataclass

from runner.command import VERBS
from runner.schema.ranges import NotNegative

HELP = (
    "python -m runner reproduce RUN [tolerance=0]",
    VERBS["reproduce"] + "; its frozen configuration, beside it in <name>-again/: every logged "
    "step, the scores, the bytes of the weights. Says before what of the old circumstances "
    "cannot be matched: versions, code, runs that it built on. Where the data is no longer the "
    "same nothing is trained. The original is not touched, nor is the repository. The exit code "
    "is 0 where both are equal, and 3 where they are not; reproduction.json keeps the verdict.",
    {
        "tolerance=1e-3": "numbers may differ by so much of themselves, and the weights with them",
        "live=true": "tools and environments are called anew; otherwise they answer as they did in "
        "the run, without what they need, and the first call that differs ends the training",
        "name=<name>": "instead of <name>-again",
        "trust=true": "trust a configuration that names what is not on the list, as for runs made "
        "with allow=[...]",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
)


@dataclass(frozen=True)
class Options:
    """The options of ``reproduce``."""

    tolerance: NotNegative = 0.0
    name: str | None = None
    trust: bool = False
    live: bool = False
    output_root: str = "outputs"
