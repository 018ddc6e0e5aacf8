"""The help of the verb ``cancel``, and its options."""

from dataclasses import dataclass, field

from runner.command import VERBS

HELP = (
    "python -m runner cancel RUN [RUN ...]",
    VERBS["cancel"] + ". One that trains saves its step first; the command that has submitted "
    "them goes on from there. A RUN may be outputs/<name>, which is every run of that name.",
    {
        "python -m runner cancel outputs/<name>": "",
        "python -m runner cancel outputs/<name>/<run>": "",
        "output_root=outputs": "where names and keys are looked up",
        "launcher.address=<host:port>": "the cluster, where the run names one on another machine",
    },
)


@dataclass(frozen=True)
class Options:
    """The options of ``cancel``."""

    output_root: str = "outputs"
    launcher_address: str | None = field(default=None, metadata={"key": "launcher.address"})
