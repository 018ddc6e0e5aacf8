"""One training step of a small model, measured: its passes, the activations that it keeps, its peak and operations.

Only what the step itself shows is looked at, so nothing here knows one trainer from another. The measured figures are
scaled to the size of the real run in ``memory``.
"""

from __future__ import annotations

import itertools
import json
import re
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import TrainerCallback

from runner.estimate.weights import trunks_of
from runner.launch.worker import Stop
from runner.run import open_run

aten = torch.ops.aten
# By torch's own formulas, which it applies to the kernels of GPUs only.
ATTENTION_ON_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: sdpa_backward_flop_count(
        *shapes[:4]
    ),
}
UPDATE = "runner.update"  # in a profile, where the first pass with gradients begins


@dataclass
class Measured:
    """A step of a small model. Bytes are those of the first micro-batch, operations those of a whole optimizer step.

    ``tokens`` go through the model at a time, in so many ``rows``; ``sampled`` rows are sampled side by side.
    """

    rows: int = 0
    tokens: int = 0
    sampled: int = 0
    body: int = 0  # activations inside the layers that wait for the way back
    maps: int = 0  # those of them that grow with the square of a row's length
    casts: int = 0  # copies of weights in another precision
    hidden: int = 0  # states between two layers
    peak: int = 0  # all that was alive at once
    peak_in_place: int = 0  # the same where fused functions need no room of their own
    accumulates: bool = False  # gradients are there while another batch goes through
    reference: bool = False  # there is a second model to compare with
    passed: int = 0  # tokens that go there and back in an optimizer step
    width: float = 0.0  # of the rows in it, with their padding
    linear: int = 0  # operations that grow with the number of tokens
    square: int = 0  # and those that grow with the length of their rows too


def measure_step(cfg: Mapping[str, Any], place: Path, steps: int = 1) -> Measured:
    """Train so many steps, a cycle of generation, in a folder of its own, and measure them."""
    from runner.training.build import build_components

    run = open_run({**cfg, "output_root": str(place)}, [])
    trainer = build_components(run, Stop()).trainer
    meter = Meter(place / "profile.json")
    trainer.add_callback(meter)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_ON_CPU) as counter:
        trainer.train()
    counts = counter.get_flop_counts()["Global"]
    seen = meter.seen
    seen.square = sum(count for operation, count in counts.items() if "attention" in str(operation)) // steps
    seen.linear = sum(counts.values()) // steps - seen.square
    seen.passed //= steps
    seen.reference = any(name.startswith("ref") and isinstance(part, nn.Module) for name, part in vars(trainer).items())
    return seen


class Saved:
    """A tensor that autograd keeps; its end is that of the need for it."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


@dataclass
class Meter(TrainerCallback):
    """Watches the first micro-batch of a training, and counts the passes of all of them."""

    trace: Path
    seen: Measured = field(default_factory=Measured)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        self.weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
        self.matrices = {
            shape for each in model.parameters() if each.dim() > 1 for shape in (each.shape, each.shape[::-1])
        }
        self.precisions = {each.dtype for each in model.parameters()}
        self.storages: dict[tuple[int, int], tuple[str, int]] = {}  # alive ones: of what kind, and how many keep it
        self.alive = {"body": 0, "maps": 0, "casts": 0, "rest": 0}
        self.inside = self.passes = self.most = 0
        self.open = ExitStack()
        for trunk in trunks_of(model):
            trunk.register_forward_pre_hook(self._enter, with_kwargs=True)
            trunk.register_forward_hook(self._leave)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.profile = self.open.enter_context(profile(activities=[ProfilerActivity.CPU], profile_memory=True))
            self.open.enter_context(saved_tensors_hooks(self._keep, lambda saved: saved.tensor))

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._finish()
        self.seen.accumulates = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._finish()

    def _finish(self) -> None:
        if self.seen.peak:
            return
        self.open.close()
        self.profile.export_chrome_trace(str(self.trace))
        self.seen.peak, self.seen.peak_in_place = read_peaks(self.trace)

    def _enter(self, trunk: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.inside += 1
        given = next(each for each in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args) if each is not None)
        rows, width = given.shape[:2]
        if not torch.is_grad_enabled():
            self.seen.sampled = max(self.seen.sampled, rows * (width == 1))
            return
        if not self.passes:
            with record_function(UPDATE):
                self.seen.rows, self.seen.tokens = rows, rows * width
        elif not any(self.alive.values()):
            self._finish()
            self.seen.accumulates = True
        self.passes += 1
        self.seen.passed += rows * width
        self.seen.width += (width - self.seen.width) / self.passes

    def _leave(self, trunk: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.inside -= 1
        self.seen.hidden = max(self.seen.hidden, output[0].nbytes) if torch.is_grad_enabled() else self.seen.hidden

    def _keep(self, tensor: Tensor) -> Saved:
        """Count a tensor that is kept for the way back, once for all that share its bytes, until nobody keeps it."""
        saved, storage = Saved(tensor), tensor.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        if key[0] not in self.weights:
            kind, keepers = self.storages.get(key, (self._kind(tensor), 0))
            self.storages[key] = kind, keepers + 1
            self.alive[kind] += 0 if keepers else key[1]
            weakref.finalize(saved, self._release, key)
            if (now := sum(self.alive.values())) > self.most:
                self.most = now
                self.seen.body, self.seen.maps, self.seen.casts, _ = self.alive.values()
        return saved

    def _release(self, key: tuple[int, int]) -> None:
        kind, keepers = self.storages.pop(key)
        if keepers > 1:
            self.storages[key] = kind, keepers - 1
        else:
            self.alive[kind] -= key[1]

    def _kind(self, tensor: Tensor) -> str:
        if not self.inside:
            return "rest"
        if tensor.shape in self.matrices and tensor.dtype not in self.precisions:
            return "casts"
        square = tensor.dim() > 2 and tensor.shape[-1] == tensor.shape[-2]
        return "rest" if square and tensor.shape[-3] == 1 else "maps" if square else "body"  # a mask is there once


def read_peaks(trace: Path) -> tuple[int, int]:
    """The most bytes that were alive at once from the first pass with gradients on, above what there was before it.

    Second with fused functions in place, as GPUs have kernels for: of what lives within one, only the largest counts.
    """
    events = json.loads(trace.read_text())["traceEvents"]
    begin = min((float(event["ts"]) for event in events if event.get("name") == UPDATE), default=0.0)
    named = [(event["name"], float(event["ts"]), event["dur"]) for event in events if event.get("cat") == "cpu_op"]
    # The way back of a function written in Python; those of torch itself end with a digit.
    fused = {name for name, _, _ in named if re.fullmatch(r"\w+Backward", name)}
    fused |= {name.removesuffix("Backward") for name in fused}
    spans = [(start, start + lasted) for name, start, lasted in named if name in fused]
    changes = [(float(event["ts"]), event["args"]) for event in events if event.get("name") == "[memory]"]
    changes = sorted((change for change in changes if change[0] >= begin), key=lambda change: change[0])
    born: dict[int, tuple[float, int]] = {}
    largest = dict.fromkeys(spans, 0)
    plain, others = [], []
    for time, about in changes:
        plain.append((time, about["Bytes"]))
        start, size = born.pop(about["Addr"], (time, 0))
        if about["Bytes"] > 0:
            born[about["Addr"]] = time, about["Bytes"]
        elif span := next((span for span in spans if span[0] <= start and time <= span[1]), None):
            largest[span] = max(largest[span], size)
            others += [(start, -size), (time, size)]
    for (start, end), size in largest.items():
        others += [(start, size), (end, -size)]
    return _highest(plain), _highest([*plain, *others])


def _highest(changes: list[tuple[float, int]]) -> int:
    """The highest level that changes come to; of those at the same time, what is taken away goes first."""
    return max(itertools.accumulate(size for _, size in sorted(changes)), default=0)
