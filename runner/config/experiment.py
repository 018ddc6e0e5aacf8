"""The keys of a configuration that the runner itself reads: each has its one home here.

A key stands with its name, type, range and default, and with a line of help below it. ``validate``
reads these classes from the source, as it reads the signature of any target, and checks a
configuration by them; code takes a default from the class, as ``Experiment.attempts``. What a
``_target_`` takes beside these keys, its signature says.

A new key of the top level that is not in ``run.key.VOLATILE`` must have no value in
``conf/config.yaml``: with one it would enter the key of every run, and all would train again.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from runner.schema.ranges import Count, Fraction, Positive, Processes, Seed, StepSize


def key_names(kind: type[Any]) -> list[str]:
    """The names of the keys that a class here declares."""
    return [key.name for key in fields(kind)]


@dataclass(frozen=True)
class TrainerPart:
    """The trainer, of TRL or the runner's own."""

    form: str
    """The form of the rows that it learns from: demonstration, preference, label or prompt."""
    head: Literal["lm", "score"]
    """The head of the model: of tokens, or of scores."""
    evaluates: bool = True
    """It measures held-out rows itself."""
    shares_batch: bool | list[str] = False
    """Its steps are the same on any number of processes; of a run, the arguments made of ``batch``."""
    reads_once: bool = True
    """One process may read the weights and hand them out to the others."""
    reference_column: str = ""
    """The column of the rows that its own teacher sees beside the prompt."""
    needs_gpu: bool = False
    """It learns on a GPU alone."""
    tool_timeout: float = 60.0
    """Seconds that a call of a tool may take."""
    images: bool = False
    """It takes rows with images."""


@dataclass(frozen=True)
class ModelPart:
    """The model that is trained."""

    tokenizer: dict[str, Any] = field(default_factory=dict)
    """The node that loads its tokenizer or processor."""


@dataclass(frozen=True)
class RewardPart:
    """One reward of several."""

    weight: float = 1.0
    """The weight in the sum of the rewards."""
    timeout: Positive | None = None
    """Seconds that one call may take."""


@dataclass(frozen=True)
class MetricPart:
    """One held-out metric."""

    on: list[str] | None = None
    """The held-out sets that it measures; null is all."""
    limit: Count | None = None
    """The most rows of each set."""
    max_new_tokens: Count | None = None
    """The most tokens of a sampled answer; null is as the trainer samples."""
    answers: Literal["right", "all"] = "right"
    """The answers that are read."""
    better: Literal["higher", "lower"] = "higher"
    """The direction in which its values are better."""
    preprocess: dict[str, Any] | None = None
    """A function that is given logits and targets first."""


@dataclass(frozen=True)
class AdapterPart:
    """An adapter that is trained in place of the whole model."""

    full: list[str] | None = None
    """Layers that are trained whole beside the adapter."""


@dataclass(frozen=True)
class OptimizerPart:
    """The optimizer."""

    groups: dict[str, Any] | None = None
    """Settings of parameters, by a pattern of their names."""
    scheduler: dict[str, Any] | None = None
    """The node that makes the schedule of the learning rate."""


@dataclass(frozen=True)
class LauncherPart:
    """The program that starts the processes of a run."""

    jobs: Processes | None = None
    """The runs of a sweep that train at a time."""
    timeout_seconds: Positive | None = None
    """A run that takes longer has failed."""
    grace_seconds: Positive | None = None
    """Seconds that a run has to end its step and save it once it is asked to end; null is 90."""
    devices: list[int | str] | None = None
    """The devices of this machine that may be used, as in CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True)
class Tracking:
    """Services that a run reports to beside its own folder."""

    report_to: str | list[str] = "none"
    """The trackers by the names that transformers has for them."""
    environment: dict[str, str] | None = None
    """Variables that are set for them."""
    tags: list[str] | None = None
    """Tags of the run there."""


@dataclass(frozen=True)
class Tolerate:
    """Faults that a run may go on with.

    The name of an alarm (``run.alarms``) is a key as well: true switches it off, and a number is
    for how many steps in a row it may ring.
    """

    truncated: Fraction = 0.1
    """The share of rows that may be cut or left out."""
    nothing_trained: bool = False
    """Rows without a trained token."""
    no_end: bool = False
    """Completions without a trained end."""
    doubled_bos: bool = False
    """A token for the beginning that stands twice."""
    other_template: bool = False
    """A chat template that is not the one the model was trained with."""
    lost_text: bool = False
    """Texts of rows that the chat template leaves out."""
    turn_weights: bool = False
    """Weights of turns, for a trainer that weighs none."""
    random_head: bool = False
    """A reward model that was trained to do something else."""
    beyond_positions: bool = False
    """Rows longer than the model's positions."""
    versions: bool = False
    """Versions of libraries that were not tried."""
    loss: Positive | bool = False
    """The highest loss of a healthy step."""
    loss_steps: Count = 3
    """The steps in a row that may have a higher one."""


@dataclass(frozen=True)
class Experiment:
    """The keys of the top level."""

    name: str | None = None
    """The folder under ``output_root``; runs with the same name are compared with each other."""
    seed: Seed = 0
    """The seed of every random number."""
    learning_rate: StepSize | None = None
    """The learning rate, by whatever name the trainer takes it."""
    kl_coef: float | None = None
    """The weight of the distance from the reference, by whatever name the trainer takes it."""
    batch: Count | None = None
    """The rows of an optimizer step over all processes."""
    allow: list[str] | None = None
    """Further packages whose ``_target_``s may run; from the command line only."""
    output_root: str = "outputs"
    """The folder for the runs of all names."""
    objective: str | None = None
    """The held-out score by which a search optimises and a report ranks."""
    resume: str | None = None
    """A run whose checkpoints this one begins with."""
    on_sick: Literal["stop", "rollback"] = "stop"
    """A sick run ends, or goes on from its last good checkpoint with half the learning rate."""
    on_memory: Literal["halve", "stop"] = "halve"
    """A run out of memory halves its micro-batches, or ends."""
    attempts: Count = 4
    """The number of times that it may do either."""
