"""The options that verbs share which ask a trained model."""

from dataclasses import dataclass
from typing import Literal

from runner.schema.ranges import Count, Natural, NotNegative, Seed, Share


@dataclass(frozen=True)
class ModelOptions:
    """The weights that are meant."""

    checkpoint: str | None = None


@dataclass(frozen=True)
class SamplingOptions(ModelOptions):
    """The settings of the sampling, too; None stands for a default that depends on the run."""

    max_new_tokens: Count | None = None
    temperature: NotNegative | None = None
    top_k: Natural = 0
    top_p: Share = 1.0
    seed: Seed = 0


@dataclass(frozen=True)
class AskOptions(SamplingOptions):
    """The rows that are meant, too, and the way in which they are answered."""

    engine: Literal["auto", "loop", "graph", "generate", "vllm"] = "auto"
    batch_size: Count = 32
    n: Count | None = None
    limit: Count | None = None
    head: Literal["lm", "score"] | None = None
    file: str | None = None
    set: str | None = None
    to: str | None = None
