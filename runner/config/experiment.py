"""A configuration as an object: each key that the runner itself reads has its one home here.

A key stands with its name, type, range and default, and with a line of help below it. ``validate``
reads these classes from the source, as it reads the signature of any target, and checks a
configuration by them. Code that comes after that check reads ``Experiment.read(cfg)``, and says
``experiment.launcher.jobs``. What a ``_target_`` takes beside these keys, its signature says; such
arguments are in the ``node`` of a part, and the properties here are those that code asks for.

A new key of the top level that is not in ``run.key.VOLATILE`` must have no value in
``conf/config.yaml``: with one it would enter the key of every run, and all would train again.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from runner.schema.literal import to_list
from runner.schema.ranges import Count, Fraction, Natural, Positive, Processes, Seed, StepSize
from runner.schema.text import Node, named
from runner.schema.trainer_args import TrainerArgs
from runner.schema.upstream.trackers import TRACKERS, TrackerLibrary


@dataclass(frozen=True)
class Part:
    """A part of a configuration: often a ``_target_`` with arguments, and keys of ours beside."""

    # The whole part, as it was composed.
    node: Node = field(init=False, repr=False, compare=False, default_factory=dict)

    @classmethod
    def read(cls, node: Node | None) -> Self:
        """The part that a checked node describes.

        A key that is missing, as in a run of an earlier version, has its default. Keys that are
        not declared are ignored.
        """
        node = node or {}
        keys = {}
        for key in fields(cls):
            if key.init and key.name in node:
                keys[key.name] = node[key.name]
            # A command that only asks a model has a trainer without its form.
            elif key.init and key.default is MISSING and key.default_factory is MISSING:
                keys[key.name] = None
        part = cls(**keys)
        object.__setattr__(part, "node", node)
        return part

    @classmethod
    def read_chosen(cls, node: Node | None) -> Self | None:
        """The part that a node describes; None where nothing was chosen."""
        return cls.read(node) if node else None

    @property
    def target(self) -> str:
        """The dotted name of what is built; empty where there is nothing to build."""
        return str(self.node.get("_target_") or "")

    @property
    def arguments(self) -> dict[str, Any]:
        """The node without the keys of ours."""
        own = key_names(type(self))
        return {name: value for name, value in self.node.items() if name not in own}


def key_names(kind: type[Part]) -> list[str]:
    """The names of the keys that a class here declares."""
    return [key.name for key in fields(kind) if key.init]


@dataclass(frozen=True)
class TrainerPart(Part):
    """The trainer, of TRL or the runner's own."""

    form: str
    """The form of the rows that it learns from, such as ``preference`` (``dataset.form``)."""
    head: Literal["lm", "score"]
    """The head of the model: of tokens, or of scores."""
    evaluates: bool = True
    """It measures held-out rows itself."""
    shares_batch: bool | list[str] = False
    """Its steps are the same on any number of processes; in a run, the arguments that ``batch``
    sets."""
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
    sampler: Literal["auto", "runner", "transformers", "vllm"] | None = None
    """The sampler of completions: auto is the runner where it samples as transformers would; null,
    as in runs of earlier versions, is as TRL does."""
    skip_padding: bool | None = None
    """Passes leave out the padding of a batch; null: on a CPU, where the model can. Losses are
    those of the padded batch, but for the last digits."""
    dynamic_sampling: Natural = 0
    """How often prompts whose completions all earn the same are exchanged for others (Yu et al.
    2025, 3.2)."""
    curriculum: str | None = None
    """Rows that are solved always or never are drawn less: ``rows`` for each by itself, or a column
    whose values share what is known; null draws all alike."""

    @property
    def args(self) -> TrainerArgs:
        """The fields of its config object that are given."""
        args: TrainerArgs = self.node["args"]
        return args

    @property
    def is_online(self) -> bool:
        """True where it learns from what it samples."""
        return self.form == "prompt" and self.head == "lm"


@dataclass(frozen=True)
class ModelPart(Part):
    """The model that is trained."""

    tokenizer: dict[str, Any] = field(default_factory=dict)
    """The node that loads its tokenizer or processor."""

    @property
    def path(self) -> str | None:
        """The folder or the name on the hub that it is loaded from."""
        return self.node.get("path")

    @property
    def revision(self) -> str | None:
        """The version of it on the hub."""
        return self.node.get("revision")

    @property
    def is_spread(self) -> bool:
        """True where its layers lie on several devices of one process."""
        return bool(self.node.get("device_map"))

    @property
    def trusts_code(self) -> bool:
        """True where code from its folder may run."""
        return bool(self.node.get("trust_remote_code"))


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

    @property
    def limits(self) -> Mapping[str, int | None]:
        """The most rows to train on and to hold out, as ``train`` and ``eval``."""
        return self.node.get("limit") or {}

    @property
    def mixed(self) -> list[str]:
        """The names of the datasets in a mixture."""
        return list(self.node.get("parts") or ())


@dataclass(frozen=True)
class EnvironmentPart(Part):
    """The environment in which episodes are played; it may bring the rows, tools and rewards."""

    size: Count = 1000
    """The rows that it makes for the training."""
    held_out: Count | None = 100
    """The rows that it makes to hold out; null is none."""
    seed: Seed | None = None
    """The seed of its rows; null is that of the run."""
    on_error: Literal["stop", "skip"] = "stop"
    """An episode whose environment fails ends the run, or only itself, without a reward."""
    timeout: Positive = 60.0
    """Seconds that one call of the environment may take."""
    max_turns: Count | None = None
    """The most turns of the model in an episode; null is no limit but that of its tokens."""
    weights: dict[str, float] | None = None
    """The weights of its rewards by their names; null is its own, or 1 for each."""


@dataclass(frozen=True)
class RewardPart(Part):
    """One reward of several."""

    weight: float = 1.0
    """The weight in the sum of the rewards."""
    timeout: Positive | None = 1800.0
    """Seconds that one call may take; null is no limit."""


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
    learning_rate_factor: Positive | None = None
    """Times the trainer's learning rate, unless a rate is typed, or a model, an experiment or a
    file of the user's own brings one; null is once."""


@dataclass(frozen=True)
class OptimizerPart(Part):
    """The optimizer."""

    groups: dict[str, Any] | None = None
    """Settings of parameters, by a pattern of their names."""
    scheduler: dict[str, Any] | None = None
    """The node that makes the schedule of the learning rate."""


@dataclass(frozen=True)
class LossPart(Part):
    """A loss in place of the trainer's; the keys are for trainers that learn from groups."""

    advantage: Literal["group", "batch", "mean", "leave_one_out"] | None = None
    """The comparison of a reward: with its group's mean, in deviations of the group or of the
    batch, or as it is; or the mean of the group's other rewards. null is as ``scale_rewards``
    says."""
    average: Literal["token", "micro_batch", "sequence", "constant", "sum"] = "token"
    """The unit of equal weight: each token of a step, or of a micro-batch; each completion; each
    token by the longest length; or each completion, with the sum of its tokens."""


@dataclass(frozen=True)
class LauncherPart(Part):
    """The program that starts the processes of a run."""

    jobs: Processes | None = None
    """The runs of a sweep that train at a time."""
    timeout_seconds: Positive | None = None
    """A run that takes longer has failed."""
    grace_seconds: Positive | None = None
    """Seconds that a run has to end its step and save it once it is asked to end; null is 90."""
    devices: list[int | str] | None = None
    """The devices of this machine that may be used, as in CUDA_VISIBLE_DEVICES."""

    @property
    def is_queue(self) -> bool:
        """True for a cluster that takes runs into a queue."""
        return "wait" in self.node

    @property
    def num_processes(self) -> int:
        """The processes of a run on each machine."""
        return int(self.node.get("num_processes") or 1)

    @property
    def num_machines(self) -> int:
        """The machines of a run."""
        return int(self.node.get("num_machines") or 1)

    @property
    def all_processes(self) -> int:
        """The processes of a run on all machines."""
        return self.num_processes * self.num_machines


@dataclass(frozen=True)
class Tracking(Part):
    """Services that a run reports to beside its own folder."""

    report_to: str | list[str] = "none"
    """The trackers by the names that transformers has for them."""
    project: str | None = None
    """The project there that the run belongs to; null is runner, in MLflow the run's name."""
    entity: str | None = None
    """The team, workspace or owner of that project."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Send the figures, keep them on this machine, or record nothing."""
    environment: dict[str, str] | None = None
    """Variables that are set for them."""
    tags: list[str] | None = None
    """Tags of the run there."""

    @property
    def libraries(self) -> list[TrackerLibrary]:
        """The trackers of transformers that are chosen."""
        if self.report_to == "all":
            with_library = [tracker for tracker in TRACKERS.values() if tracker.library]
            return [tracker for tracker in with_library if find_spec(tracker.library)]
        names = to_list(self.report_to)
        return [tracker for name, tracker in TRACKERS.items() if name in names]

    @property
    def variables(self) -> dict[str, str]:
        """The variables that are set for the trackers; those of ``environment`` win."""
        variables: dict[str, str] = {}
        for library in self.libraries:
            variables |= library.variables_for(self.project, self.entity, self.mode)
        for name, value in (self.environment or {}).items():
            variables[name] = str(value)
        return variables


@dataclass(frozen=True)
class Tolerate(Part):
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

    def alarm(self, name: str) -> bool | int | None:
        """True where an alarm is off, or its patience in steps; None leaves it as it is."""
        patience: bool | int | None = self.node.get(name)
        return patience


@dataclass(frozen=True)
class Experiment(Part):
    """One run: its settings, and its parts, each read when it is first asked for."""

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
    engine: Literal["vllm"] | None = None
    """vLLM samples held-out answers; null is the runner's own sampler."""
    resume: str | None = None
    """A run whose checkpoints this one begins with."""
    on_sick: Literal["stop", "rollback"] = "stop"
    """A sick run ends, or goes on from its last good checkpoint with half the learning rate."""
    on_memory: Literal["halve", "stop"] = "halve"
    """A run out of memory halves its micro-batches, or ends."""
    attempts: Count = 4
    """The most times that it may go back to a good checkpoint, and that it may halve."""

    @property
    def root(self) -> Path:
        """The folder for the runs of all names."""
        return Path(self.output_root)

    @cached_property
    def trainer(self) -> TrainerPart:
        return TrainerPart.read(self.node.get("trainer"))

    @cached_property
    def model(self) -> ModelPart:
        return ModelPart.read(self.node.get("model"))

    @cached_property
    def dataset(self) -> DatasetPart:
        return DatasetPart.read(self.node.get("dataset"))

    @cached_property
    def environment(self) -> EnvironmentPart | None:
        return EnvironmentPart.read_chosen(self.node.get("environment"))

    @cached_property
    def launcher(self) -> LauncherPart:
        return LauncherPart.read(self.node.get("launcher"))

    @cached_property
    def tracker(self) -> Tracking:
        return Tracking.read(self.node.get("tracker"))

    @cached_property
    def tolerate(self) -> Tolerate:
        return Tolerate.read(self.node.get("tolerate"))

    @cached_property
    def peft(self) -> AdapterPart | None:
        return AdapterPart.read_chosen(self.node.get("peft"))

    @cached_property
    def optimizer(self) -> OptimizerPart | None:
        return OptimizerPart.read_chosen(self.node.get("optimizer"))

    @cached_property
    def quant(self) -> Part | None:
        return Part.read_chosen(self.node.get("quant"))

    @cached_property
    def collator(self) -> Part | None:
        return Part.read_chosen(self.node.get("collator"))

    @cached_property
    def loss(self) -> LossPart | None:
        return LossPart.read_chosen(self.node.get("loss"))

    @cached_property
    def rewards(self) -> dict[str, RewardPart]:
        """The rewards by their names; a single one is called as its function is."""
        node = self.node.get("reward") or {}
        nodes = named(node, str(node.get("_target_")).rpartition(".")[2])
        return {name: RewardPart.read(node) for name, node in nodes.items()}

    @cached_property
    def metrics(self) -> dict[str, MetricPart]:
        """The held-out metrics by their names; a single one is called ``metric``."""
        nodes = self.group("metric")
        return {name: MetricPart.read(node) for name, node in nodes.items()}

    @property
    def weights(self) -> Mapping[str, Node]:
        """The nodes of the rules that weigh tokens, by their names."""
        return self.group("weight")

    @property
    def callbacks(self) -> Mapping[str, Node]:
        """The nodes of the user's callbacks by their names."""
        return self.group("callback")

    def group(self, name: str) -> Mapping[str, Node]:
        """The nodes of a group of several parts, by their names."""
        return named(self.node.get(name) or {}, name)
