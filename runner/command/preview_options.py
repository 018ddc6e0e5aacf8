"""The help of the verb ``preview``, and its options."""

from dataclasses import dataclass
from typing import Literal

from runner.command import VERBS
from runner.schema.ranges import Count

HELP = (
    "python -m runner preview [RUN] [key=value ...] [rows=3] [html=true] [set=train]",
    VERBS["preview"] + ": which tokens are trained and how much each weighs, what is cut, how the "
    "two answers of a pair lie beside each other, and for trainers that sample, the prompt that "
    "they sample after. It takes exactly what a training takes, or the folder of a run, and "
    "these words of its own:",
    {
        "rows=3": "how many rows to show",
        "html=true": "also as a page, outputs/<name>/preview-<key>.html, or html=<file>",
        "set=train": "train, eval (every held-out set), or all",
        "trust=true": "trust the configuration of a RUN that names what is not on the list",
    },
    "The rows go through the run's own tokenizer, dataset, trainer and collator. Only the "
    "weights of the model are a small stand-in, so that a preview of a large model needs its "
    "tokenizer and no more. Nothing is trained and no run folder is made. Where a training "
    "would be refused, the reasons follow, and the exit code is 2.",
)


@dataclass(frozen=True)
class Options:
    """The options of ``preview``."""

    rows: Count = 3
    html: str = "false"
    set: Literal["train", "eval", "all"] = "train"
    trust: bool = False
