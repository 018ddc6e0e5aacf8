"""The options that all verbs share which ask a trained model."""

from dataclasses import dataclass
from typing import Literal

from runner.schema.ranges import Count, Natural, NotNegative, Seed, Share


@dataclass(frozen=True)
class AskOptions:
    """The settings of the sampling, and the rows and weights that are meant.

    None stands for a default that depends on the run.
    """

    engine: Literal["auto", "loop", "graph", "generate", "vllm"] = "auto"
    batch_size: Count = 32
    max_new_tokens: Count | None = None
    temperature: NotNegative | None = None
    top_k: Natural = 0
    top_p: Share = 1.0
    n: Count | None = None
    seed: Seed = 0
    limit: Count | None = None
    head: Literal["lm", "score"] | None = None
    checkpoint: str | None = None
    file: str | None = None
    set: str | None = None
    to: str | None = None
