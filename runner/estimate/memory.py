"""The bytes and the operations of a training on one process: its models, and each phase of a step.

Weights and optimizer states are counted; what a pass adds is measured on a small model and scaled.
What one phase frees, the next one uses: the peak is that of the largest. It is of what is alive;
allocators keep some more.
"""

from dataclasses import dataclass
from typing import NamedTuple

from runner.config.experiment import Experiment
from runner.estimate.model_weights import ModelWeights, Shape, others_of, source_of
from runner.estimate.steps import Rows
from runner.generate.budget import answer_tokens, evaluation_budget
from runner.generate.padding import TOKENS_PER_PASS
from runner.run.continuation import computes_once
from runner.schema import upstream
from runner.schema.text import Node, select
from runner.schema.upstream import batch_size, config_fields, setting
from runner.training.checkpoint import state_bytes

DRAWS = 4  # copies of a step's logits while a token is drawn from them
# The fields that have activations recomputed, the newer before the older.
RECOMPUTE = ("activation_checkpointing", "gradient_checkpointing")
IN_PLACE = ("fused", "8bit", "4bit")  # words in the names of optimizers that make no copies
# The first stage of a strategy that splits something; all that is not named here has 3.
FIRST_STAGES = {"optimizer": 1, "gradients": 2}


def autocasts(args: Node, gpu: bool) -> bool:
    """True where passes are under bf16 autocast: as it was typed, else on a GPU."""
    if args.get("fp16"):
        return False
    typed = args.get("bf16")
    return gpu if typed is None else bool(typed)


def recomputes(args: Node, gpu: bool) -> bool:
    """True where the backward pass recomputes activations.

    That is as it was typed, and else, on a GPU only, as the trainer does by default.
    """
    for name in RECOMPUTE:
        if args.get(name) is not None:
            return bool(args[name])
    return gpu and any(setting(args, name, False) for name in RECOMPUTE)


@dataclass
class MeasuredStep:
    """A measured step of a small model: bytes of its first micro-batch, and tokens of all of it."""

    shape: Shape
    rows: int = 0  # that go through the model at a time
    tokens: int = 0  # of these rows
    sampled: int = 0  # rows that are sampled side by side
    body: int = 0  # activations inside the layers that wait for the backward pass
    maps: int = 0  # activations beside these that grow with the square of a row's length
    casts: int = 0  # copies of weights in another precision
    peak: int = 0  # all that was alive at once
    accumulates: bool = False  # gradients are there while another batch goes through
    reference: bool = False  # there is a second model to compare with
    steps: int = 1  # of the optimizer, to which the following belong
    passed: int = 0  # tokens that go forward and backward, with padding
    passed_rows: int = 0  # rows of these
    asked: int = 0  # tokens that only go forward


class Batch(NamedTuple):
    """The rows and the tokens that go through a model at a time."""

    rows: int
    tokens: int


@dataclass(frozen=True)
class Shards:
    """Parts of a training, one in each process.

    They are of its optimizer from ``stage`` 1 on, of gradients from 2 on, and of everything at 3.
    """

    stage: int = 0
    parts: int = 1
    offloaded: bool = False  # into the memory of the host

    def of(self, name: str, size: int) -> int:
        """The bytes that something of this size and name takes on the device of one process."""
        if self.stage < FIRST_STAGES.get(name, 3):
            return size
        return 0 if self.offloaded else size // self.parts


def shards_of(experiment: Experiment) -> Shards:
    """The parts into which the strategy of an experiment splits a training."""
    args = experiment.trainer.args
    parts = select(args, "parallelism_config.dp_shard_size") or experiment.launcher.all_processes
    if args.get("fsdp"):
        return Shards(3, parts, bool(select(args, "fsdp_config.cpu_offload")))
    stage = select(args, "deepspeed.zero_optimization.stage")
    if not isinstance(stage, int):
        stage = 0
    device = select(args, "deepspeed.zero_optimization.offload_optimizer.device")
    return Shards(stage, parts, device == "cpu")


class Training:
    """The needs of a run on one device, from its models and settings.

    ``small`` is its step in small, None where none was measured.
    """

    def __init__(
        self, experiment: Experiment, rows: Rows, small: MeasuredStep | None, *, gpu: bool
    ):
        args = experiment.trainer.args
        self.experiment = experiment
        self.args = args
        self.rows = rows
        self.gpu = gpu
        self.autocast = autocasts(args, gpu)
        self.recompute = recomputes(args, gpu)
        self.policy = ModelWeights(
            source_of(experiment),
            dtype=experiment.model.node.get("dtype", "float32"),
            peft=experiment.peft,
            quant=experiment.quant,
        )
        self.small = small or MeasuredStep(self.policy.shape)
        self.others = dict(others_of(experiment))
        self.optimizer = _optimizer_name(experiment)
        # The most tokens of a completion that is sampled after each prompt; 0 where rows hold
        # their completions.
        self.completion = 0
        if experiment.trainer.form == "prompt":
            lengths = [setting(args, name) for name in upstream.COMPLETION_LENGTHS]
            self.completion = int(next(filter(None, lengths), 0))
        self.packed = rows.limit if setting(args, "packing", False) else None
        self.width = self.packed or rows.longest + self.completion
        # Texts that go through the model for each row of a batch, such as two of a pair.
        self.texts = max(1, self.small.rows // batch_size(args))
        self._add_critic()
        self.parts = shards_of(experiment)
        self.once = self._asks_reference_once()
        self.gradients = self.parts.of("gradients", self.policy.trained_bytes + self.critic_bytes)

    def _add_critic(self) -> None:
        """Set the kind of critic and its bytes.

        It is a model without a head, a second adapter, or a head on the policy's model, which
        takes nothing; of a trainer without one the kind is empty.
        """
        self.critic = ""
        if "critic" in config_fields(self.args):
            self.critic = str(setting(self.args, "critic", "auto"))
        value_bytes = self.others.pop("value", 0)  # of a model that is named for it
        if value_bytes:
            self.critic = "model"
        elif self.critic == "auto":
            self.critic = "adapter" if self.policy.is_adapted else "model"

        self.critic_bytes = 0
        if self.critic == "adapter":
            self.critic_bytes = self.policy.trained_bytes
        elif self.critic == "model":
            head = 0 if self.policy.is_tied else self.policy.shape.head
            without_head = self.policy.bytes - self.policy.dtype.itemsize * head
            self.critic_bytes = value_bytes or without_head

    def _asks_reference_once(self) -> bool:
        """True where the reference is asked before the first step alone.

        It is the policy itself then, or the model below its adapter.
        """
        name = "precompute_ref_log_probs"
        settings: dict[str, object] = {}
        for field, parameter in config_fields(self.args).items():
            settings[field] = parameter.default
        settings |= dict(self.args)
        total = self.rows.total
        is_left_open = name in settings and name not in self.args
        if is_left_open and total is not None:
            return computes_once(self.experiment, settings, total or 1)
        return bool(settings.get(name))

    @property
    def held(self) -> dict[str, int]:
        """Bytes that are there all the time, by what holds them.

        The optimizer's states are those of the policy, scaled to what is trained with the critic.
        """
        policy = self.policy
        trained_bytes = policy.trained_bytes + self.critic_bytes
        share = trained_bytes / max(1, policy.trained_bytes)
        policy_states = state_bytes(self.optimizer, policy.learned)
        has_reference = self.small.reference and (policy.is_adapted or not self.once)
        sizes = {
            "weights": policy.bytes,
            "optimizer": round(share * policy_states),
            "reference": policy.bytes if has_reference else 0,
            "critic": self.critic_bytes,
            **self.others,
        }
        held = {}
        for name, size in sizes.items():
            size_here = self.parts.of(name, size)
            if size_here:
                held[name] = size_here
        return held

    @property
    def peak(self) -> int:
        """The most bytes that are there at once."""
        held = sum(self.held.values())
        largest_phase = max(self.phases.values())
        return held + largest_phase

    @property
    def phases(self) -> dict[str, int]:
        """The most bytes that each phase of a step adds to what is held."""
        phases = {"step": self.gradients + self.step_bytes, "update": self.gradients}
        if self.small.tokens:
            phases["update"] = self.update_bytes
            if self.once:
                # Layer after layer, while the optimizer has no states yet.
                step_rows = batch_size(self.args)
                rows = self.args.get("precompute_ref_batch_size") or step_rows
                layer = self.activations / self.policy.shape.layers
                states = self.held.get("optimizer", 0)
                phases["reference"] = int(layer * rows / step_rows) - states
        if self.small.sampled:
            phases["sampling"] = self.sampling_bytes
        if self.parts.stage == 3:
            # A pass gathers one layer at a time and the next one ahead, sampling all of them.
            two_layers = 2 * self.policy.bytes // self.policy.shape.layers
            for name in phases:
                phases[name] += self.policy.bytes if name == "sampling" else two_layers
        return phases

    @property
    def step_bytes(self) -> int:
        """Bytes that the optimizer's step takes for a moment; fused ones work in place.

        On a GPU torch takes a step for all weights together, on a CPU for one after the other.
        """
        if any(word in self.optimizer for word in IN_PLACE):
            return 0
        sizes = [weight.nbytes for weight in self.policy.learned]
        largest = max(sizes, default=0)
        if "adafactor" in self.optimizer:
            return 3 * largest
        if not self.gpu:
            return 2 * largest
        return self.parts.of("optimizer", sum(sizes))

    @property
    def update_bytes(self) -> int:
        """Bytes of the forward pass before its gradients, and of those of earlier batches."""
        policy = self.policy
        small = self.small
        tokens = self.batch.tokens
        casts = small.casts / small.shape.weights * policy.shape.weights
        # Beside the layers there are the head's gradient, which comes first, its copy for bf16,
        # and logits.
        gradient = policy.dtype.itemsize if policy.head_is_trained else 0
        item = gradient
        if self.autocast and policy.dtype.itemsize > 2:
            item += 2
        measured_logits = small.peak - small.body - small.maps - small.casts
        logits = (measured_logits - item * small.shape.head) / small.tokens
        kept = self.activations + casts
        beside = logits * tokens + item * policy.shape.head
        if self.recompute:
            # Only the states between two layers are kept, and one layer is computed again.
            one_layer = kept / policy.shape.layers
            beside = max(casts, one_layer + beside)
            state = policy.dtype.itemsize * policy.shape.hidden  # of a token
            kept = state * policy.shape.layers * tokens
        earlier = self.gradients if small.accumulates else 0
        # The gradients of embeddings come last; tied ones are beside those of the head, with a sum.
        last = 2 * gradient * policy.shape.head if policy.is_tied else 0
        before_gradients = earlier + kept + beside
        with_gradients = self.gradients + last
        return int(max(before_gradients, with_gradients) + policy.largest)

    @property
    def activations(self) -> float:
        """Bytes inside all layers that wait for the backward pass of the largest batch.

        What was measured on the small model grows with the tokens, the layers and the width of
        the real one; maps of attention with the heads and, for each token, with its row's length.
        """
        small = self.small
        real_shape = self.policy.shape
        small_shape = small.shape
        rows, tokens = self.batch
        lines = small.body * real_shape.width / small_shape.width
        row_length = tokens / rows
        small_row_length = small.tokens / small.rows
        longer = row_length / small_row_length
        squares = small.maps * longer * real_shape.heads / small_shape.heads
        layers = real_shape.layers / small_shape.layers
        return (lines + squares) * tokens / small.tokens * layers

    @property
    def batch(self) -> Batch:
        """The largest batch that goes through the policy at a time."""
        rows = batch_size(self.args)
        most = self.args.get("max_tokens_per_micro_batch")
        can_pack = "max_tokens_per_micro_batch" in config_fields(self.args)
        if can_pack and (most or not self.gpu):
            rows *= int(setting(self.args, "gradient_accumulation_steps", 1))
            bound = max(self.width, most or TOKENS_PER_PASS)
            return Batch(rows, min(rows * self.width, bound))
        rows *= self.texts
        return Batch(rows, rows * self.width)

    @property
    def sampling_bytes(self) -> int:
        """Bytes of the keys and values of all tokens, two more layers of them, and the logits."""
        text = self.policy.text
        shape = self.policy.shape
        rows = self.small.sampled
        key_heads = getattr(text, "num_key_value_heads", None) or shape.heads
        head_size = getattr(text, "head_dim", None) or shape.hidden // shape.heads
        item = 2 if self.autocast else self.policy.dtype.itemsize
        layer = 2 * key_heads * head_size * item * self.width * rows
        logits = DRAWS * rows * text.vocab_size * 4
        return int(layer * (shape.layers + 2) + logits)

    @property
    def operations_per_step(self) -> float:
        """Operations of one optimizer step on one process, with rows of the mean width.

        A token takes two with each weight forward, two backward, and two more with each that is
        trained. With each other token of its row it takes four forward, and two and a half times as
        many backward, for every state.
        """
        small = self.small
        shape = self.policy.shape
        rows = batch_size(self.args)
        width = self.packed or self.rows.padded(rows) + self.completion
        if small.rows == 1 < rows:  # its rows were laid end to end
            small_width = small.tokens / rows
        else:
            small_width = small.passed / small.passed_rows
        forward = small.asked + small.passed * (2 if self.recompute else 1)
        weights = shape.weights + shape.head
        attention = 4 * shape.layers * shape.hidden * width
        forward_of_token = 2 * weights + attention
        trained = min(weights, self.policy.trained)
        backward_of_token = 2 * (weights + trained) + 2.5 * attention
        operations = forward * forward_of_token + small.passed * backward_of_token
        return float(width / small_width / small.steps * operations)

    def evaluation_operations(self, steps: int | None) -> float:
        """The most operations, on one process, of the answers that evaluations sample."""
        budget = evaluation_budget(self.experiment, steps)
        if budget is None:
            return 0.0
        lengths = [metric.max_new_tokens for metric in self.experiment.metrics.values()]
        shape = self.policy.shape
        width = self.rows.mean + answer_tokens(lengths, self.completion)
        processes = self.experiment.launcher.all_processes
        tokens = budget.evaluations * budget.answers * width / processes
        weights = shape.weights + shape.head
        attention = 4 * shape.layers * shape.hidden * width
        return tokens * (2 * weights + attention)


def _optimizer_name(experiment: Experiment) -> str:
    """The name of the optimizer: of the configuration's own, or else as the trainer knows it."""
    optimizer = experiment.optimizer
    if optimizer is None:
        return str(setting(experiment.trainer.args, "optim", "adamw_torch_fused"))
    name = optimizer.target.lower()
    if optimizer.node.get("fused"):
        return f"{name}.fused"
    return name
