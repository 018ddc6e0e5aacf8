"""What a trainer holds: its models, and what each phase of a step adds to them. Bytes of one process.

Phases follow one another and share what they free: the peak is that of the largest. What is counted is what is alive;
allocators keep some more. How the figures are shown is in ``table``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from runner.forecast import simulation as sim
from runner.forecast.simulation import Cost, Setting, Stage
from runner.forecast.structure import Structure, load_adapter_weights

PAIRS = ("DPOTrainer", "RewardTrainer", "ORPOTrainer", "CPOTrainer", "OnlineDPOTrainer")
FUSED = ("SFTTrainer", "DPOTrainer", "KTOTrainer", "GRPOTrainer", "RLOOTrainer", "DistillationTrainer")
SAMPLES = ("GRPOTrainer", "RLOOTrainer", "OnlineDPOTrainer", "DistillationTrainer", "PPOTrainer")
LOOKS = ("DPOTrainer", "KTOTrainer")  # at a reference, between the two halves of a pass
DRAWS = 4  # copies of a step's logits while a token is drawn from them
# Products of many experts at once are known without data for 16 bits only; in 32 they take twice as much.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class Batch:
    """What goes through the model at a time: rows of so many tokens, the share of them that is trained."""

    rows: int
    width: int
    trained: float = 1.0
    prompt: int = 0  # tokens of it that are not sampled


@dataclass
class Trainer:
    """What of a trainer decides its memory: names as in its config, models without data, and what a batch is."""

    name: str
    args: Callable[[str, Any], Any]
    policy: Structure
    setting: Setting
    batch: Batch
    optimizer: str
    reference: int = 0
    critic: str = ""
    others: Mapping[str, int] = field(default_factory=dict)  # bytes of reward models and teachers
    penalises: bool = True

    @property
    def accumulates(self) -> int:
        return int(self.args("gradient_accumulation_steps", 1))

    @property
    def rollout_rows(self) -> int:
        """Completions that are sampled side by side."""
        rows = int(self.args("per_device_train_batch_size", 8))
        if self.name == "PPOTrainer":
            return min(rows * self.accumulates, int(self.args("local_rollout_forward_batch_size", 64)))
        if self.name in ("GRPOTrainer", "RLOOTrainer"):
            whole = self.args("generation_batch_size", 0)
            return int(whole or rows * (self.args("steps_per_generation", 0) or self.accumulates))
        return rows * (2 if self.name == "OnlineDPOTrainer" else 1)


@dataclass(frozen=True)
class Memory:
    """Bytes by what holds them, the most that a phase adds to the models, and what a step costs in operations."""

    held: Mapping[str, int]
    phases: Mapping[str, int]
    update: Cost
    forward: Cost  # of sampled rows, or nothing
    why: str = ""

    @property
    def peak(self) -> int:
        return sum(self.held.values()) + max(self.phases.values())

    @property
    def largest(self) -> str:
        return max(self.phases, key=self.phases.__getitem__)


def measure(trainer: Trainer) -> Memory:
    """The memory of a trainer, each of its phases simulated with the batch that it is given.

    Where the code of an architecture does not run without data, its activations are unknown, and ``why`` says so.
    """
    held, gradients = held_by(trainer), held_gradients(trainer)
    # The gradients of a first batch are there while a second one goes through.
    phases, update, forward, why = {"step": gradients + step_bytes(trainer)}, Cost(), Cost(), ""
    try:
        passes = passes_of(trainer)
        update = passes.update
        phases["update"] = update.peak
        if trainer.name in SAMPLES:
            phases["sampling"], forward = passes.sampling()
    except Exception as error:  # whatever code of somebody else's may raise that misses its data
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        phases.setdefault("update", gradients)
    return Memory(held, phases, update, forward, why)


def passes_of(trainer: Trainer) -> Passes:
    """The passes of a trainer, its model on a stage and ready to train."""
    stage, model = Stage(), trainer.policy.model
    halved = any(getattr(trainer.policy.text, name, None) for name in EXPERTS) and model.dtype == torch.float32
    load_adapter_weights(stage, model, torch.bfloat16 if halved else None)
    if trainer.setting.recompute:
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    return Passes(trainer, stage, factor=2 if halved else 1)


def held_by(trainer: Trainer) -> dict[str, int]:
    """Bytes of what is there all the time."""
    policy = trainer.policy
    learnt = policy.trained_bytes
    critic = critic_bytes(trainer)
    held = {"weights": policy.weights, "optimizer": state_bytes(trainer), "reference": trainer.reference}
    if trainer.name == "PPOTrainer":
        trained = {"adapter": learnt, "head": 0}.get(trainer.critic, critic)
        held |= {"critic": critic, "optimizer": held["optimizer"] + round(held["optimizer"] * trained / max(1, learnt))}
    return {name: size for name, size in (held | dict(trainer.others)).items() if size}


def critic_bytes(trainer: Trainer) -> int:
    """A model of its own without a vocabulary's head, a second adapter, or next to nothing."""
    if trainer.name != "PPOTrainer" or trainer.critic == "head":
        return 0
    if trainer.critic == "adapter":
        return trainer.policy.trained_bytes
    head = trainer.policy.model.get_output_embeddings()
    tied = trainer.policy.text.tie_word_embeddings
    return trainer.policy.weights - (0 if tied or head is None else head.weight.numel() * head.weight.element_size())


def held_gradients(trainer: Trainer) -> int:
    """Bytes of all gradients, those of a critic too."""
    own = trainer.policy.trained_bytes
    if trainer.name != "PPOTrainer":
        return own
    return own + (own if trainer.critic == "adapter" else critic_bytes(trainer))


def state_bytes(trainer: Trainer) -> int:
    """Bytes of the optimizer's state for the weights that are trained."""
    name, policy = trainer.optimizer, trainer.policy
    learnt = [each for each in policy.model.parameters() if each.requires_grad]
    if "adafactor" in name:
        return sum(4 * (sum(each.shape) if each.dim() > 1 else each.numel()) for each in learnt)
    if "8bit" in name or "4bit" in name:
        states = 1 if "lion" in name or "rmsprop" in name else 2
        return policy.trained * states // (2 if "4bit" in name else 1)
    if "ademamix" in name:
        return 3 * policy.trained_bytes
    if "adam" in name:
        return 2 * policy.trained_bytes
    return policy.trained_bytes if any(word in name for word in ("lion", "rmsprop", "adagrad", "muon")) else 0


def step_bytes(trainer: Trainer) -> int:
    """Bytes that the optimizer's step takes for a moment: fused ones work in place, others make copies."""
    sizes = [each.numel() * each.element_size() for each in trainer.policy.model.parameters() if each.requires_grad]
    largest = max(sizes, default=0)
    if "fused" in trainer.optimizer or "8bit" in trainer.optimizer or "4bit" in trainer.optimizer:
        return 0
    if "adafactor" in trainer.optimizer:
        return 3 * largest
    return sum(sizes) if trainer.setting.gpu else 2 * largest


class Passes:
    """The passes of one step, each simulated once."""

    def __init__(self, trainer: Trainer, stage: Stage, factor: int = 1):
        self.trainer, self.stage, self.factor = trainer, stage, factor
        self.model = trainer.policy.model

    @cached_property
    def update(self) -> Cost:
        """One micro-batch there and back, the gradients of the ones before it being there if there are any."""
        trainer = self.trainer
        first = self._run(self._there_and_back)
        if trainer.accumulates == 1 and trainer.name != "PPOTrainer":
            return first
        second = self._run(self._there_and_back)
        extra = held_gradients(trainer) - trainer.policy.trained_bytes if trainer.name == "PPOTrainer" else 0
        return Cost(second.peak + first.left + extra, first.left, first.linear, first.square)

    def sampling(self) -> tuple[int, Cost]:
        """Bytes while completions are sampled, and what it costs to read all of their tokens once."""
        rows, batch = self.trainer.rollout_rows, self.trainer.batch
        for each in self.model.parameters():
            each.grad = None
        self.model.eval()
        begin = self._run(lambda: self._read(rows, max(1, batch.prompt)))
        whole = self._run(lambda: self._read(rows, batch.width))
        layers = max(1, getattr(self.trainer.policy.text, "num_hidden_layers", 1))
        drawn = DRAWS * rows * self.trainer.policy.text.vocab_size * 4
        return max(begin.peak, whole.left + 2 * whole.left // layers + drawn), whole

    def _run(self, call: Callable[[], Any]) -> Cost:
        cost, more = self.stage.run(call, self.trainer.setting), self.trainer.policy.largest
        return Cost(self.factor * cost.peak + more, self.factor * cost.left, cost.linear, cost.square)

    @torch.no_grad()
    def _read(self, rows: int, width: int) -> Any:
        """Read prompts and keep what the next tokens need of them."""
        base = getattr(self.model, "get_base_model", lambda: self.model)()
        return base(**sim.ids(rows, width), use_cache=True, logits_to_keep=1)

    def _there_and_back(self) -> None:
        trainer, batch = self.trainer, self.trainer.batch
        if trainer.name == "KTOTrainer":
            with torch.no_grad():
                self._loss(batch)
        loss = self._loss(batch)
        if trainer.name in LOOKS and trainer.penalises:
            with torch.no_grad():
                self._loss(batch)
        loss.sum().backward()

    def _loss(self, batch: Batch) -> Any:
        trainer, model = self.trainer, self.model
        given = (batch.rows, batch.width)
        if trainer.name == "RewardTrainer":
            return model(**sim.ids(*given)).logits
        if trainer.name == "PPOTrainer":
            return sim.chunked(model, *given, batch.trained, trainer.setting)
        if trainer.name in FUSED:
            return sim.fused(model, *given, batch.trained, trainer.setting)
        return sim.logits(model, *given)
