"""The help of the verb ``rehearse``, and its options."""

from dataclasses import dataclass, field

from runner.command import VERBS
from runner.schema.ranges import Positive

HELP = (
    "python -m runner rehearse [-m] [key=value ...] [memory=80] [tflops=300]",
    VERBS["rehearse"] + ": the same configuration, stages and sweeps too, with small random "
    "clones of its models and a few short rows. It takes two steps, saves, goes on in a second "
    "process from what was saved, evaluates and exports. Of a sweep, runs that differ in numbers "
    "only are played once. Then it tells what the real run will need: memory of each kind, time, "
    "and disk; and which settings would make it faster (speed=max). It takes exactly what a "
    "training takes, and these words of its own:",
    {
        "memory=80": "GB of the device that it is meant for, in place of what is free here",
        "tflops=300": "TFLOP/s that this device reaches, in place of what this machine was "
        "measured at",
    },
    "Of a model only its config and tokenizer are read, of a dataset of the hub the first "
    "rows. Nothing is tracked, pushed or left in outputs/. Where a part fails, the exit code "
    "is that of the error, and the folder with its log is kept.",
)


@dataclass(frozen=True)
class Options:
    """The options of ``rehearse``."""

    memory: Positive | None = field(default=None, metadata={"unit": "gi?b?"})
    tflops: Positive | None = field(default=None, metadata={"unit": "tflops?(/s)?"})
