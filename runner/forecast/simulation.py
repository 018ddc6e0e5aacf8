"""A model without data -> what a pass through it holds at most, and how many operations it takes.

The tensors are torch's fake ones: they have a size and no bytes, and run through the real code of the model, its
adapter, its attention and its loss. So no architecture needs a formula of its own. Which passes a trainer makes is in
``memory``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from runner.trainer.batch import LOGITS_PER_CHUNK, LOGITS_PER_CHUNK_ELSEWHERE

TILE = (4096, 32768)  # tokens and words that TRL's fused head projects at a time


class Live(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, the most that there were, and the operations that made them.

    ``linear`` operations grow with the number of tokens, those of attention (``square``) also with the length of a row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = self.linear = self.square = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = call(*args, **(kwargs or {}))
        if count := COUNTS.get(call._overloadpacket):
            operations = count(*args, **(kwargs or {}), out_val=made)
            if "attention" in str(call):
                self.square += operations
            else:
                self.linear += operations
        for part in tree_iter(made):
            if isinstance(part, Tensor):
                self._see(part.untyped_storage())
        return made

    def _see(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.now += self.sizes[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)


@dataclass(frozen=True)
class Cost:
    """What a pass holds beyond the weights, at most and when it is over, and its operations by how they grow."""

    peak: int = 0
    left: int = 0
    linear: int = 0
    square: int = 0


@dataclass(frozen=True)
class Setting:
    """How a pass is computed: with a GPU's kernels or a CPU's, under bf16 autocast, its activations recomputed."""

    gpu: bool = False
    autocast: bool = False
    recompute: bool = False


class Stage:
    """Where tensors have no data. Models are made within it, and passes run in it."""

    def __init__(self) -> None:
        self.fake = FakeTensorMode()
        self.live = Live()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with self.fake, self.live:
            yield

    def run(self, call: Callable[[], Any], setting: Setting) -> Cost:
        """What a call costs; what it leaves are gradients, or what it gives back."""
        live = self.live
        with self.open():
            before, linear, square = live.now, live.linear, live.square
            live.peak = before
            with torch.autocast("cpu", torch.bfloat16, enabled=setting.autocast):
                kept = call()
        cost = Cost(live.peak - before, live.now - before, live.linear - linear, live.square - square)
        del kept
        return cost


def _flash(query: Any, key: Any, *args: Any, **kwargs: Any) -> int:
    rows, heads, width, size = query.shape
    return 4 * rows * heads * width * key.shape[2] * size


def _flash_back(gradient: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> int:
    return 5 * _flash(query, key) // 2


COUNTS = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _flash,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _flash_back,
}


# --- Passes ---------------------------------------------------------------------------------------


def ids(rows: int, width: int) -> dict[str, Tensor]:
    """A batch of full rows."""
    return {"input_ids": torch.zeros(rows, width, dtype=torch.long), "attention_mask": torch.ones(rows, width).long()}


def states(model: nn.Module, rows: int, width: int) -> Tensor:
    """The last hidden states (rows, width, hidden)."""
    base = getattr(model, "get_base_model", lambda: model)()
    return base.base_model(**ids(rows, width), use_cache=False).last_hidden_state


def fused(model: nn.Module, rows: int, width: int, trained: float, setting: Setting) -> Tensor:
    """Log-probabilities as TRL's fused head gives them: of every token on CPU, of trained ones on a GPU."""
    hidden = states(model, rows, width)[:, :-1]
    weight = model.get_output_embeddings().weight
    if setting.gpu:
        count = max(1, round(trained * rows * width))
        return FusedOnGpu.apply(hidden.reshape(-1, hidden.shape[-1])[:count], weight)
    from trl.kernels import ChunkedLogProbFunction

    targets = torch.zeros(rows * (width - 1), dtype=torch.long)
    flat = hidden.reshape(-1, hidden.shape[-1])
    tile = min(TILE[1], len(weight))  # what lies behind the vocabulary is never touched, and so takes no page
    return ChunkedLogProbFunction.apply(flat, weight, None, targets, 1.0, tile, None, 1.0, ("entropy",))[0]


class FusedOnGpu(torch.autograd.Function):
    """The buffers of TRL's fused head where it folds each tile in place."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
        tile = hidden.new_empty(min(len(hidden), TILE[0]), min(len(weight), TILE[1]), dtype=ctx.kind)
        part = weight[: TILE[1]].to(ctx.kind)
        for _ in range(-(-len(weight) // TILE[1])):
            torch.mm(hidden.to(ctx.kind), part.t()) if len(hidden) <= TILE[0] else None
        return hidden.new_empty(len(hidden), dtype=torch.float32) + 0 * tile[0, 0] + 0 * part[0, 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        states = torch.zeros(hidden.shape, dtype=torch.float32)
        weights = torch.zeros(weight.shape, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        tile = hidden.new_empty(min(len(hidden), TILE[0]), min(len(weight), TILE[1]), dtype=ctx.kind)
        part = weight[: TILE[1]].to(ctx.kind)
        del tile, part
        return states.to(hidden.dtype), None if weights is None else weights.to(weight.dtype)


def logits(model: nn.Module, rows: int, width: int) -> Tensor:
    """A loss of all logits at once, as trainers without a fused head have it."""
    made = model(**ids(rows, width), use_cache=False).logits[:, :-1]
    targets = torch.zeros(made.shape[:2], dtype=torch.long)
    likely = made.float().log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    return likely.sum()


def chunked(model: nn.Module, rows: int, width: int, trained: float, setting: Setting) -> Tensor:
    """Log-probabilities of sampled tokens as our PPO makes them: some logits at a time, and again in the way back."""
    head = model.get_output_embeddings()
    count = max(1, round(trained * rows * width))
    hidden = states(model, rows, width).flatten(0, 1)[:count]
    step = max(1, (LOGITS_PER_CHUNK_ELSEWHERE if setting.gpu else LOGITS_PER_CHUNK["cpu"]) // head.weight.shape[0])

    def score(part: Tensor) -> Tensor:
        return -cross_entropy(head(part).float(), torch.zeros(len(part), dtype=torch.long), reduction="none")

    if count <= step or not torch.is_grad_enabled():
        return torch.cat([score(part) for part in hidden.split(step)])
    return torch.cat([checkpoint(score, part, use_reentrant=False) for part in hidden.split(step)])
