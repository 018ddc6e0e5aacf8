"""The help of the verb ``sync``, and its options."""

from dataclasses import dataclass

from runner.command import VERBS

HELP = (
    "python -m runner sync outputs/<name>/<run> tracker=wandb",
    VERBS["sync"] + " that was not chosen when they were trained: the figures of each step, the "
    "held-out scores, the frozen config and tags, as if the tracker had been there from the first "
    "step. Of outputs/<name>, every run is sent. What a tracker has is not sent again; what a run "
    "has logged since then is. No model is sent, and nothing leaves this machine unless "
    "tracker.mode=online is typed.",
    {
        "tracker=wandb": "the tracker, or several: tracker=[tensorboard,mlflow]",
        "tracker.mode=online": "any other key of the group tracker, as in a training",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
)


@dataclass(frozen=True)
class Options:
    """The options of ``sync``."""

    output_root: str = "outputs"
