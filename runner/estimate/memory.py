"""The steps of a training, and the bytes that it holds, of one process: its models, and what each phase of a step adds.

Weights and optimizer states are counted; what a pass adds is measured on a small model and scaled. Phases share what
they free: the peak is that of the largest. It is of what is alive; allocators keep some more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.config.machines import processes_of
from runner.estimate.weights import ModelWeights, Shape, others_of, source_of
from runner.generate.batch import TOKENS_PER_PASS
from runner.generate.budget import answer_tokens, evaluation_budget
from runner.run.continuation import computes_once
from runner.schema import upstream
from runner.schema.text import Config, Node, named, select
from runner.schema.upstream import batch_size, config_fields, setting
from runner.training.checkpoint import state_bytes

DRAWS = 4  # copies of a step's logits while a token is drawn from them
WHOLE_BATCHES = {upstream.NUM_GENERATIONS, "num_ppo_epochs"}  # fields of trainers that leave out a last batch not full
RECOMPUTE = (upstream.ACTIVATION_CHECKPOINTING, upstream.GRADIENT_CHECKPOINTING)  # the newer counts before the older


@dataclass(frozen=True)
class Rows:
    """The rows to train on: tokens of those that were looked at, and how many there are in all."""

    lengths: Sequence[int]  # of sequences as they are trained, or of prompts
    limit: int | None = None  # by which they are cut
    total: float | None = None  # None where nobody knows

    @property
    def longest(self) -> int:
        return max(self.lengths, default=1)

    @property
    def mean(self) -> float:
        return sum(self.lengths) / max(1, len(self.lengths))

    def padded(self, rows: int) -> float:
        """The mean width of batches of so many rows, each as wide as its longest."""
        groups = [self.lengths[start : start + rows] for start in range(0, len(self.lengths), rows)] or [[1]]
        return sum(map(max, groups)) / len(groups)


def autocasts(args: Node, gpu: bool) -> bool:
    """True where passes are under bf16 autocast: as it was typed, else on a GPU."""
    typed = args.get(upstream.BF16)
    return bool(gpu if typed is None else typed) and not args.get(upstream.FP16)


def recomputes(args: Node, gpu: bool) -> bool:
    """True where the backward pass recomputes activations: as it was typed, else on a GPU as the trainer has it."""
    typed = [value for name in RECOMPUTE if (value := args.get(name)) is not None]
    return any(typed[:1]) if typed or not gpu else any(setting(args, name, False) for name in RECOMPUTE)


def cycle_of(args: Node) -> int:
    """Optimizer steps from one generation to the next, from the arguments as they are written."""
    known = {name: setting(args, name, 1) for name in (upstream.GRADIENT_ACCUMULATION_STEPS, upstream.NUM_ITERATIONS)}
    steps, whole = args.get(upstream.STEPS_PER_GENERATION), args.get(upstream.GENERATION_BATCH_SIZE)
    steps = steps or (whole and max(1, whole // batch_size(args)))
    return upstream.cycle_steps(known | {upstream.STEPS_PER_GENERATION: steps})


def rows_per_step(args: Node) -> float:
    """Rows of the dataset that one process draws for an optimizer step, on average."""
    rows = batch_size(args) * setting(args, upstream.GRADIENT_ACCUMULATION_STEPS, 1)
    return rows / (setting(args, upstream.NUM_GENERATIONS, 1) * setting(args, upstream.NUM_ITERATIONS, 1))


def steps_of(cfg: Config, rows: Rows) -> int | None:
    """Optimizer steps of the whole training; None where nobody knows how many rows there are."""
    args = cfg["trainer"]["args"]
    if (most := setting(args, upstream.MAX_STEPS, -1)) > 0:
        return int(most)
    share = rows_per_step(args) * processes_of(cfg)
    if episodes := args.get("total_episodes"):
        return math.ceil(episodes / share)
    if (total := rows.total) is None:
        return None
    if setting(args, upstream.PACKING, False) and rows.limit:
        total = math.ceil(total * rows.mean / rows.limit)
    whole = math.floor if WHOLE_BATCHES & config_fields(args).keys() else math.ceil
    return math.ceil(whole(total / share) * float(setting(args, upstream.NUM_TRAIN_EPOCHS, 3.0)))


@dataclass
class MeasuredStep:
    """A step of a small model of this shape. Bytes are those of the first micro-batch, tokens those of all steps."""

    shape: Shape
    rows: int = 0  # that go through the model at a time, with
    tokens: int = 0
    sampled: int = 0  # rows that are sampled side by side
    body: int = 0  # activations inside the layers that wait for the backward pass
    maps: int = 0  # those of them that grow with the square of a row's length
    casts: int = 0  # copies of weights in another precision
    peak: int = 0  # all that was alive at once
    accumulates: bool = False  # gradients are there while another batch goes through
    reference: bool = False  # there is a second model to compare with
    steps: int = 1  # of the optimizer, in which
    passed: int = 0  # tokens go forward and backward, of
    passed_rows: int = 0  # rows, with their padding,
    asked: int = 0  # and tokens forward only


@dataclass(frozen=True)
class Shards:
    """Parts of a training, one in each process: from ``stage`` 1 of its optimizer, 2 of gradients, 3 of everything."""

    stage: int = 0
    parts: int = 1
    offloaded: bool = False  # into the memory of the host

    def of(self, name: str, size: int) -> int:
        """The bytes of this process and its device."""
        first = {"optimizer": 1, "gradients": 2}.get(name, 3)
        return size if self.stage < first else 0 if self.offloaded else size // self.parts


def shards_of(cfg: Config) -> Shards:
    """The parts into which the strategy of a configuration splits a training."""
    args = cfg["trainer"]["args"]
    parts = select(args, f"{upstream.PARALLELISM_CONFIG}.dp_shard_size") or processes_of(cfg)
    if args.get(upstream.FSDP):
        return Shards(3, parts, bool(select(args, f"{upstream.FSDP_CONFIG}.cpu_offload")))
    stage = select(args, f"{upstream.DEEPSPEED}.zero_optimization.stage")
    is_offloaded = select(args, f"{upstream.DEEPSPEED}.zero_optimization.offload_optimizer.device") == "cpu"
    return Shards(stage if isinstance(stage, int) else 0, parts, is_offloaded)


class Training:
    """A run's models and settings, and ``small``, its step in small if one was measured: its needs on one device."""

    def __init__(self, cfg: Config, rows: Rows, small: MeasuredStep | None, *, gpu: bool):
        own = cfg.get("optimizer") or {}
        self.cfg, self.args, self.rows, self.gpu = cfg, cfg["trainer"]["args"], rows, gpu
        self.autocast, self.recompute = autocasts(self.args, gpu), recomputes(self.args, gpu)
        dtype = cfg["model"].get("dtype", "float32")
        self.policy = ModelWeights(source_of(cfg), dtype=dtype, peft=cfg["peft"], quant=cfg["quant"])
        self.small = small or MeasuredStep(self.policy.shape)
        self.others = dict(others_of(cfg))
        self.optimizer = (own.get("_target_", "") + (".fused" if own.get("fused") else "")).lower()
        self.optimizer = self.optimizer or str(setting(self.args, upstream.OPTIM, "adamw_torch_fused"))
        # Most tokens of a completion that is sampled after each prompt; 0 where rows hold their completions.
        lengths = (setting(self.args, name) for name in upstream.COMPLETION_LENGTHS)
        self.completion = int(next(filter(None, lengths), 0)) if cfg["trainer"]["form"] == "prompt" else 0
        self.packed = rows.limit if setting(self.args, upstream.PACKING, False) else None
        self.width = self.packed or rows.longest + self.completion
        # Texts that go through the model for each row of a batch, such as two of a pair.
        self.texts = max(1, self.small.rows // batch_size(self.args))
        # The critic of a trainer that has one: a model without a head, a second adapter, or a head on the policy's.
        self.critic = str(setting(self.args, "critic", "auto")) if "critic" in config_fields(self.args) else ""
        value = self.others.pop("value", 0)  # a model for it
        if self.critic == "auto" or value:
            self.critic = "adapter" if self.policy.is_adapted and not value else "model"
        head = 0 if self.policy.is_tied else self.policy.dtype.itemsize * self.policy.shape.head
        sizes = {"model": value or self.policy.bytes - head, "adapter": self.policy.trained_bytes}
        self.critic_bytes = sizes.get(self.critic, 0)
        self.parts, once = shards_of(cfg), upstream.PRECOMPUTE_REF_LOG_PROBS
        known = {name: each.default for name, each in config_fields(self.args).items()} | dict(self.args)
        is_open = once in known and once not in self.args and rows.total is not None
        # The reference is asked before the first step alone, and is the policy itself, or what is below its adapter.
        self.once = computes_once(cfg, known, rows.total or 1) if is_open else bool(known.get(once))
        self.gradients = self.parts.of("gradients", self.policy.trained_bytes + self.critic_bytes)

    @property
    def held(self) -> dict[str, int]:
        """Bytes by what holds them."""
        reference = self.small.reference and (self.policy.is_adapted or not self.once)
        share = (self.policy.trained_bytes + self.critic_bytes) / max(1, self.policy.trained_bytes)
        states = round(share * state_bytes(self.optimizer, self.policy.learned))
        held = {"weights": self.policy.bytes, "optimizer": states}
        held |= {"reference": self.policy.bytes if reference else 0, "critic": self.critic_bytes}
        parts = {name: self.parts.of(name, size) for name, size in (held | self.others).items()}
        return {name: size for name, size in parts.items() if size}

    @property
    def peak(self) -> int:
        return sum(self.held.values()) + max(self.phases.values())

    @property
    def phases(self) -> dict[str, int]:
        """The most bytes that each phase of a step adds to what is held."""
        phases = {"step": self.gradients + self.step_bytes}
        phases["update"] = self.update_bytes if self.small.tokens else self.gradients
        if self.small.tokens and self.once:  # one layer at a time, and the optimizer has no states yet
            rows = self.args.get(upstream.PRECOMPUTE_REF_BATCH_SIZE) or batch_size(self.args)
            layer = self.activations / self.policy.shape.layers
            phases["reference"] = int(layer * rows / batch_size(self.args)) - self.held.get("optimizer", 0)
        phases |= {"sampling": self.sampling_bytes} if self.small.sampled else {}
        if self.parts.stage == 3:  # layers are gathered one at a time and the next one ahead, and all of them to sample
            whole, layers = self.policy.bytes, 2 * self.policy.bytes // self.policy.shape.layers
            phases = {name: size + (whole if name == "sampling" else layers) for name, size in phases.items()}
        return phases

    @property
    def step_bytes(self) -> int:
        """Bytes that the optimizer's step takes for a moment: fused ones work in place, others make copies."""
        sizes = [each.nbytes for each in self.policy.learned]
        if any(word in self.optimizer for word in ("fused", "8bit", "4bit")):
            return 0
        if "adafactor" in self.optimizer:
            return 3 * max(sizes, default=0)
        return self.parts.of("optimizer", sum(sizes)) if self.gpu else 2 * max(sizes, default=0)

    @property
    def update_bytes(self) -> int:
        """Bytes of the forward pass, before its gradients; those of earlier batches are there already."""
        policy, seen, tokens = self.policy, self.small, self.batch[1]
        real, own = policy.shape, seen.shape
        casts = seen.casts / own.weights * real.weights
        # Beside the layers there are the head's gradient, which comes first, its copy for bf16, and logits.
        gradient = policy.dtype.itemsize * policy.head_is_trained
        item = gradient + 2 * (self.autocast and policy.dtype.itemsize > 2)
        logits = (seen.peak - seen.body - seen.maps - seen.casts - item * own.head) / seen.tokens
        kept, beside = self.activations + casts, logits * tokens + item * real.head
        if self.recompute:
            states = policy.dtype.itemsize * real.hidden * real.layers * tokens  # between two layers
            kept, beside = states, max(casts, kept / real.layers + beside)
        begun = self.gradients if seen.accumulates else 0
        # The gradients of embeddings come last, where they are tied beside those of the head and their sum.
        last = 2 * gradient * real.head if policy.is_tied else 0
        return int(max(begun + kept + beside, self.gradients + last) + policy.largest)

    @property
    def activations(self) -> float:
        """Bytes inside all layers that wait for the backward pass of the largest batch."""
        seen, own, real, (rows, tokens) = self.small, self.small.shape, self.policy.shape, self.batch
        lines = seen.body * real.width / own.width
        squares = seen.maps * (tokens / rows) / (seen.tokens / seen.rows) * real.heads / own.heads
        return (lines + squares) * tokens / seen.tokens * real.layers / own.layers

    @property
    def batch(self) -> tuple[int, int]:
        """Rows and tokens of the largest batch that goes through the policy at a time."""
        most, rows = self.args.get("max_tokens_per_micro_batch"), batch_size(self.args)
        if "max_tokens_per_micro_batch" in config_fields(self.args) and (most or not self.gpu):
            rows *= int(setting(self.args, upstream.GRADIENT_ACCUMULATION_STEPS, 1))
            return rows, min(rows * self.width, max(self.width, most or TOKENS_PER_PASS))
        rows *= self.texts
        return rows, rows * self.width

    @property
    def sampling_bytes(self) -> int:
        """Bytes of the keys and values of all tokens, two more layers of them, and the logits that are drawn from."""
        text, shape = self.policy.text, self.policy.shape
        keys = getattr(text, "num_key_value_heads", None) or shape.heads
        size = getattr(text, "head_dim", None) or shape.hidden // shape.heads
        item = 2 if self.autocast else self.policy.dtype.itemsize
        cache = 2 * keys * size * item * shape.layers * self.width * self.small.sampled
        return int(cache + 2 * cache / shape.layers + DRAWS * self.small.sampled * text.vocab_size * 4)

    @property
    def operations_per_step(self) -> float:
        """Operations of one optimizer step on one process, with rows of the mean width.

        A token takes two with each weight forward, two backward, and two more with each that is trained. With each
        other token of its row it takes four forward, and two and a half times as many backward, for every state.
        """
        seen, real, rows = self.small, self.policy.shape, batch_size(self.args)
        width = self.packed or self.rows.padded(rows) + self.completion
        end_to_end = seen.rows == 1 < rows
        share = width / (seen.tokens / rows if end_to_end else seen.passed / seen.passed_rows) / seen.steps
        forward = seen.asked + seen.passed * (2 if self.recompute else 1)
        weights = real.weights + real.head
        attention = 4 * real.layers * real.hidden * width
        backward = 2 * (weights + min(weights, self.policy.trained)) + 2.5 * attention
        return share * (forward * (2 * weights + attention) + seen.passed * backward)

    def evaluation_operations(self, steps: int | None) -> float:
        """Operations of all answers that the evaluations of so many steps sample, at most, on one process."""
        if (budget := evaluation_budget(self.cfg, steps)) is None:
            return 0.0
        longest = (each.get("max_new_tokens") for each in named(self.cfg["metric"] or {}, "metric").values())
        real, width = self.policy.shape, self.rows.mean + answer_tokens(longest, self.completion)
        tokens = budget.evaluations * budget.answers * width / processes_of(self.cfg)
        return tokens * (2 * (real.weights + real.head) + 4 * real.layers * real.hidden * width)
