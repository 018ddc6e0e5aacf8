"""The bytes that a training holds, of one process: its models, and what each phase of a step adds to them.

Weights and states of the optimizer are counted; what a pass adds is measured on small models (``measure``) and scaled.
Phases follow one another and share what they free: the peak is that of the largest. What is counted is what is alive;
allocators keep some more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.estimate.steps import Rows, batch_size, completion_of, config_fields, setting
from runner.estimate.weights import ModelWeights, Shape, others_of, source_of
from runner.generate.batch import TOKENS_PER_PASS
from runner.schema import upstream
from runner.schema.text import Config, Node

DRAWS = 4  # copies of a step's logits while a token is drawn from them
# The newer name counts before the older.
RECOMPUTE = (upstream.ACTIVATION_CHECKPOINTING, upstream.GRADIENT_CHECKPOINTING)


@dataclass
class MeasuredStep:
    """A step of a small model. Bytes are those of the first micro-batch, operations those of a whole optimizer step.

    ``tokens`` go through the model at a time, in so many ``rows``; ``sampled`` rows are sampled side by side.
    """

    rows: int = 0
    tokens: int = 0
    sampled: int = 0
    body: int = 0  # activations inside the layers that wait for the backward pass
    maps: int = 0  # those of them that grow with the square of a row's length
    casts: int = 0  # copies of weights in another precision
    peak: int = 0  # all that was alive at once
    peak_in_place: int = 0  # the same where fused functions need no room of their own
    accumulates: bool = False  # gradients are there while another batch goes through
    reference: bool = False  # there is a second model to compare with
    passed: int = 0  # tokens that go forward and backward in an optimizer step
    width: float = 0.0  # of the rows in it, with their padding
    linear: int = 0  # operations that grow with the number of tokens
    square: int = 0  # and those that grow with the length of their rows too


@dataclass(frozen=True)
class Precision:
    """The precision of passes: under bf16 autocast or not, and whether the backward pass recomputes activations."""

    autocast: bool
    recompute: bool

    @staticmethod
    def of(args: Node, gpu: bool) -> Precision:
        """The precision of a config on a GPU; on a CPU only what was typed, as ``training.components.args`` has it."""
        typed = [value for name in RECOMPUTE if (value := args.get(name)) is not None]
        if not gpu:
            return Precision(bool(args.get(upstream.BF16)), any(typed[:1]))
        recompute = any(typed) if typed else any(setting(args, name, False) for name in RECOMPUTE)
        return Precision(args.get(upstream.BF16, True) is not False and not args.get(upstream.FP16), recompute)


class Training:
    """A run's models, its trainer's settings, and a step of small models like its own; what it needs on one device.

    ``small`` has the shapes of two such models of different width, each with what was measured, or only the model
    itself where that is small; it is empty where none could be trained.
    """

    def __init__(self, cfg: Config, rows: Rows, small: Sequence[tuple[Shape, MeasuredStep]], *, gpu: bool):
        own = cfg.get("optimizer") or {}
        self.cfg, self.args, self.rows, self.small, self.gpu = cfg, cfg["trainer"]["args"], rows, small, gpu
        self.precision = Precision.of(self.args, gpu)
        dtype = cfg["model"].get("dtype", "float32")
        self.policy = ModelWeights(source_of(cfg), dtype=dtype, peft=cfg["peft"], quant=cfg["quant"])
        self.others = dict(others_of(cfg))
        self.optimizer = (own.get("_target_", "") + (".fused" if own.get("fused") else "")).lower()
        self.optimizer = self.optimizer or str(setting(self.args, upstream.OPTIM, "adamw_torch_fused"))
        self.completion = completion_of(cfg)
        self.packed = rows.limit if setting(self.args, upstream.PACKING, False) else None
        self.width = self.packed or rows.longest + self.completion
        self.sampled = max((seen.sampled for _, seen in small), default=0)  # completions at a time
        # Texts that go through the model for each row of a batch, such as two of a pair.
        self.texts = max((seen.rows // batch_size(self.args) for _, seen in small), default=1) or 1
        # The critic of a trainer that has one: a model without a head, a second adapter, or a head on the policy's.
        self.critic = str(setting(self.args, "critic", "auto")) if "critic" in config_fields(self.args) else ""
        if self.critic == "auto":
            self.critic = "adapter" if self.policy.is_adapted else "model"
        whole = self.policy.bytes - (0 if self.policy.is_tied else self.policy.head_bytes)
        self.critic_bytes = {"model": whole, "adapter": self.policy.trained_bytes}.get(self.critic, 0)
        self.gradients = self.policy.trained_bytes + self.critic_bytes

    @property
    def held(self) -> dict[str, int]:
        """Bytes by what holds them."""
        reference = any(seen.reference for _, seen in self.small) and not self.args.get(
            upstream.PRECOMPUTE_REF_LOG_PROBS
        )
        held = {
            "weights": self.policy.bytes,
            "optimizer": round(self.state_bytes * self.gradients / max(1, self.policy.trained_bytes)),
            "reference": self.policy.bytes if reference else 0,
            "critic": self.critic_bytes,
        }
        return {name: size for name, size in (held | self.others).items() if size}

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state for the policy's trained weights."""
        name, policy = self.optimizer, self.policy
        if "adafactor" in name:
            return sum(4 * (sum(size) if len(size) > 1 else size.numel()) for size in policy.trained_sizes)
        if "8bit" in name or "4bit" in name:
            states = 1 if "lion" in name or "rmsprop" in name else 2
            return policy.trained * states // (2 if "4bit" in name else 1)
        if "adam" in name:
            return (3 if "ademamix" in name else 2) * policy.trained_bytes
        return policy.trained_bytes if any(word in name for word in ("lion", "rmsprop", "adagrad", "muon")) else 0

    @property
    def peak(self) -> int:
        return sum(self.held.values()) + max(self.phases.values())

    @property
    def phases(self) -> dict[str, int]:
        """The most bytes that each phase of a step adds to what is held."""
        phases = {"step": self.gradients + self.step_bytes, "update": self.gradients}
        if self.small:
            phases["update"] = self.update_bytes
            if self.sampled:
                phases["sampling"] = self.sampling_bytes
        return phases

    @property
    def step_bytes(self) -> int:
        """Bytes that the optimizer's step takes for a moment: fused ones work in place, others make copies."""
        width = self.policy.trained_bytes / max(1, self.policy.trained)
        sizes = [int(size.numel() * width) for size in self.policy.trained_sizes]
        if any(word in self.optimizer for word in ("fused", "8bit", "4bit")):
            return 0
        if "adafactor" in self.optimizer:
            return 3 * max(sizes, default=0)
        return sum(sizes) if self.gpu else 2 * max(sizes, default=0)

    @property
    def update_bytes(self) -> int:
        """Bytes of the forward pass, before its gradients; those of earlier batches are there already."""
        policy, layers = self.policy, self.policy.shape.layers
        (first, seen), (_, tokens) = self.small[0], self.batch
        casts = seen.casts / first.weights * policy.shape.weights
        kept, beside = self.activations + casts, self._beside
        if self.precision.recompute:
            states = policy.dtype.itemsize * policy.shape.hidden * layers * tokens  # between two layers
            kept, beside = states, max(casts, kept / layers + beside)
        begun = self.gradients if any(own.accumulates for _, own in self.small) else 0
        # The gradients of embeddings come last, where they are tied beside those of the head and their sum.
        last = 2 * policy.head_bytes if policy.head_is_trained and policy.is_tied else 0
        return int(max(begun + kept + beside, self.gradients + last) + policy.largest)

    @property
    def activations(self) -> float:
        """Bytes inside all layers that wait for the backward pass of the largest batch."""
        (first, seen), real, (rows, tokens) = self.small[0], self.policy.shape, self.batch
        points = [(shape.width, own.body / own.tokens / shape.layers) for shape, own in self.small]
        share = tokens / rows / (seen.tokens / seen.rows) * real.heads / first.heads * real.layers / first.layers
        return tokens * (extrapolate(points, real.width) * real.layers + seen.maps / seen.tokens * share)

    @property
    def _beside(self) -> float:
        """Bytes beside them: of logits, which grow with the tokens, and of products with the head, which do not."""
        kept = [own.body + own.maps + own.casts for _, own in self.small]
        peaks = [own.peak_in_place if self.gpu else own.peak for _, own in self.small]
        points = [(each[0].hidden, peak - rest) for each, peak, rest in zip(self.small, peaks, kept, strict=True)]
        none = extrapolate(points, 0)
        return none * self.batch[1] / self.small[0][1].tokens + extrapolate(points, self.policy.shape.hidden) - none

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
        item = 2 if self.precision.autocast else self.policy.dtype.itemsize
        cache = 2 * keys * size * item * shape.layers * self.width * self.sampled
        return int(cache + 2 * cache / shape.layers + DRAWS * self.sampled * text.vocab_size * 4)

    @property
    def operations_per_step(self) -> float:
        """Operations of one optimizer step on one process, with rows of the mean width."""
        (first, seen), real, rows = self.small[0], self.policy.shape, batch_size(self.args)
        width = self.packed or self.rows.padded(rows) + self.completion
        end_to_end = seen.rows == 1 < rows
        share = width / (seen.tokens / rows if end_to_end else seen.width)
        linear = [(shape.weights / shape.hidden, own.linear / shape.hidden) for shape, own in self.small]
        products = extrapolate(linear, real.weights / real.hidden) * real.hidden
        recomputed = 2 * real.weights * seen.passed if self.precision.recompute else 0
        square = seen.square * real.hidden / first.hidden * real.layers / first.layers
        square *= 9 / 7 if self.precision.recompute else 1  # two parts forward, five backward
        return (products + recomputed) * share + square * share**2


def extrapolate(points: Sequence[tuple[float, float]], at: float) -> float:
    """The straight line through the first and the last point, at a place; level where they are one.

    >>> extrapolate([(1, 10), (2, 12)], 10), extrapolate([(1, 10)], 5)
    (28.0, 10)
    """
    (left, low), (right, high) = points[0], points[-1]
    return low if left == right else low + (high - low) * (at - left) / (right - left)
