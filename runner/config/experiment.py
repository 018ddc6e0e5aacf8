"""The configuration of a run as an object: the one home of each key that the runner itself reads.

A key stands here with its name, type, range and default, and with a line of help below it. From
these classes are made the checks of a configuration (``validate``), what ``options`` and ``why``
tell, and :func:`read_experiment`, by which code reads ``cfg.launcher.num_processes``. What a key's
``_target_`` takes besides, its signature says.

A new key of the top level that is not in ``run.key.VOLATILE`` must have no value in
``conf/config.yaml``: with one it would enter the key of every run, and all would train again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from runner.config.menu import GROUPS
from runner.schema.ranges import Count, Fraction, Positive, Processes, Seed, StepSize
from runner.schema.text import Config, Node
from runner.schema.trainer_args import TrainerArgs


@dataclass(frozen=True)
class Part:
    """A part of a run: a ``_target_`` with its arguments, and keys of ours beside them."""

    node: Node = field(repr=False)  # as it was composed

    @property
    def target(self) -> str:
        """The dotted name of what is built; empty where nothing was chosen."""
        return str(self.node.get("_target_") or "")

    @classmethod
    def read(cls, node: Node) -> Self:
        """The part that a node of a configuration describes, with defaults for missing keys."""
        keys = {name: node[name] for name in key_names(cls) if node.get(name) is not None}
        return cls(node, **keys)


def key_names(kind: type[Part]) -> list[str]:
    """The keys of ours that a kind of part declares."""
    return [key.name for key in fields(kind) if key.name != "node"]


@dataclass(frozen=True)
class TrainerPart(Part):
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

    @property
    def args(self) -> TrainerArgs:
        """The fields of the trainer's config object that are given."""
        args: TrainerArgs = self.node["args"]
        return args


@dataclass(frozen=True)
class ModelPart(Part):
    """The model that is trained."""

    tokenizer: dict[str, Any] = field(default_factory=dict)
    """The node that loads its tokenizer or processor."""

    @property
    def path(self) -> str | None:
        """The folder or the name on the hub that it is loaded from."""
        return self.node.get("path")


@dataclass(frozen=True)
class RewardPart(Part):
    """One reward of several."""

    weight: float = 1.0
    """The weight in the sum of the rewards."""
    timeout: Positive | None = None
    """Seconds that one call may take."""


@dataclass(frozen=True)
class DatasetPart(Part):
    """The rows that are trained on and held out; all of its keys are arguments of its target."""

    @property
    def path(self) -> str | list[str] | None:
        """The file, folder or name on the hub that they are read from."""
        return self.node.get("path")

    @property
    def form(self) -> str | None:
        """The form of the rows as they are stored, where it is given."""
        return self.node.get("form")


@dataclass(frozen=True)
class MetricPart(Part):
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
class AdapterPart(Part):
    """An adapter that is trained in place of the whole model."""

    full: list[str] | None = None
    """Layers that are trained whole beside the adapter."""


@dataclass(frozen=True)
class OptimizerPart(Part):
    """The optimizer."""

    groups: dict[str, Any] | None = None
    """Settings of parameters, by a pattern of their names."""
    scheduler: dict[str, Any] | None = None
    """The node that makes the schedule of the learning rate."""


@dataclass(frozen=True)
class LauncherPart(Part):
    """The program that starts the processes of a run."""

    jobs: Processes | None = None
    """The runs of a sweep that train at a time."""
    timeout_seconds: Positive | None = None
    """A run that takes longer has failed."""
    devices: list[int | str] | None = None
    """The devices of this machine that may be used, as in CUDA_VISIBLE_DEVICES."""

    @property
    def num_processes(self) -> int:
        """The processes of a run on each machine."""
        return int(self.node.get("num_processes") or 1)

    @property
    def num_machines(self) -> int:
        """The machines of a run."""
        return int(self.node.get("num_machines") or 1)


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
    alarms: Mapping[str, bool | int] = field(default_factory=dict)

    @classmethod
    def read(cls, node: Node) -> Self:
        """The tolerances that a node of a configuration names."""
        names = {key.name for key in fields(cls)} - {"alarms"}
        keys = {name: node[name] for name in names if node.get(name) is not None}
        alarms = {name: value for name, value in node.items() if name not in names}
        return cls(**keys, alarms=alarms)


@dataclass(frozen=True)
class Experiment:
    """One run: its settings and its parts."""

    cfg: Config = field(repr=False)  # as it was composed, resolved
    trainer: TrainerPart
    model: ModelPart
    dataset: DatasetPart
    launcher: LauncherPart
    tracker: Tracking = field(default_factory=Tracking)
    tolerate: Tolerate = field(default_factory=Tolerate)
    peft: AdapterPart | None = None
    optimizer: OptimizerPart | None = None
    quant: Part | None = None
    collator: Part | None = None
    loss: Part | None = None
    # One part, or several with names.
    weight: Node = field(default_factory=dict)
    reward: Node = field(default_factory=dict)
    metric: Node = field(default_factory=dict)
    callback: Node = field(default_factory=dict)
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

    @classmethod
    def read(cls, cfg: Config) -> Self:
        """The experiment that a composed, checked configuration describes.

        A key without a value, or one that a run of an earlier version did not write, has its
        default.
        """
        keys = {key: cfg[key] for key in SETTINGS if cfg.get(key) is not None}
        return cls(
            cfg=cfg,
            trainer=TrainerPart.read(cfg["trainer"]),
            model=ModelPart.read(cfg["model"]),
            dataset=DatasetPart.read(cfg["dataset"]),
            launcher=LauncherPart.read(cfg["launcher"]),
            tracker=Tracking(**(cfg.get("tracker") or {})),
            tolerate=Tolerate.read(cfg.get("tolerate") or {}),
            peft=AdapterPart.read(cfg["peft"]) if cfg.get("peft") else None,
            optimizer=OptimizerPart.read(cfg["optimizer"]) if cfg.get("optimizer") else None,
            quant=Part(cfg["quant"]) if cfg.get("quant") else None,
            collator=Part(cfg["collator"]) if cfg.get("collator") else None,
            loss=Part(cfg["loss"]) if cfg.get("loss") else None,
            weight=cfg.get("weight") or {},
            reward=cfg.get("reward") or {},
            metric=cfg.get("metric") or {},
            callback=cfg.get("callback") or {},
            **keys,
        )


PARTS = {"cfg", "tracker", "tolerate", *GROUPS}
SETTINGS = [key.name for key in fields(Experiment) if key.name not in PARTS]
