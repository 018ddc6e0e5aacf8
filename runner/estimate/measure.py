"""One training step of small models, measured: its passes, the activations that it keeps, its peak and operations.

Only what the step itself shows is looked at, so nothing here knows one trainer from another. The measured figures are
scaled to the size of the real run in ``memory``.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import traceback
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.errors import RunnerError
from runner.estimate.memory import RECOMPUTE, MeasuredStep
from runner.estimate.process import run_apart
from runner.estimate.reduce import is_small
from runner.estimate.steps import config_fields, cycle_of
from runner.estimate.weights import Shape, trunks_of
from runner.io.files import read_json, write_json
from runner.model.clone import Source, write_clone
from runner.run import open_run
from runner.schema import upstream
from runner.schema.text import Config
from runner.training.components import build_components

aten = torch.ops.aten
# By torch's own formulas, which it applies to the kernels of GPUs only.
ATTENTION_ON_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: sdpa_backward_flop_count(
        *shapes[:4]
    ),
}
UPDATE = "runner.update"  # in a profile, where the first pass with gradients begins
HEAD_SIZES = (8, 16)  # of the two models that are measured
LOADER = "runner.model.load.load_model"


def measure_small(
    cfg: Config, source: Source, autocast: bool, folder: Path
) -> tuple[list[tuple[Shape, MeasuredStep]], str]:
    """A step of models like that of a source, of two widths, or why none could be measured.

    They train in a process of their own with the small run's configuration; its files go below ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "measured.json"
    result.unlink(missing_ok=True)

    def measure() -> int:
        try:
            training = training_alone(cfg, autocast)
            models = _narrow(training, source, folder)
            write_json(result, {"seen": [(asdict(shape), asdict(measure_step(own, folder))) for shape, own in models]})
        except Exception as error:  # whatever a trainer may raise
            traceback.print_exc()
            first = error.faults[0].found if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
            write_json(result, {"why": first.splitlines()[0]})
        return 0

    run_apart(measure, folder / "log.txt", folder / "cache")
    read = read_json(result) or {"why": "the process that measured it was killed"}
    return [(Shape(**shape), MeasuredStep(**seen)) for shape, seen in read.get("seen", ())], read.get("why", "")


def training_alone(cfg: Config, autocast: bool) -> dict[str, Any]:
    """The configuration of a training alone, for one cycle of generation, whose activations are all kept."""
    own = copy.deepcopy(dict(cfg))
    args = own["trainer"]["args"]
    args |= {name: False for name in RECOMPUTE if name in config_fields(args)}
    args |= {upstream.USE_CPU: True, upstream.BF16: autocast, upstream.FP16: False, upstream.MAX_STEPS: cycle_of(args)}
    args |= {upstream.SAVE_STRATEGY: "no", upstream.EVAL_STRATEGY: "no", upstream.LOAD_BEST_MODEL_AT_END: False}
    return own | dict.fromkeys(("callback", "metric", "quant"))  # a quantised product has no count of operations


def _narrow(cfg: dict[str, Any], source: Source, folder: Path) -> Iterator[tuple[Shape, dict[str, Any]]]:
    """The configuration with a small model of each width, and its shape; as it is where the model itself is small."""
    if is_small(source):
        yield Shape.of_source(source), cfg
        return
    kept = {name: cfg["model"].get(name) for name in ("tokenizer", "attention", "trust_remote_code", "dtype")}
    model = {"_target_": LOADER} | {name: value for name, value in kept.items() if value is not None}
    for head_size in HEAD_SIZES:
        path = str(folder / f"model{head_size}")
        write_clone(source, Path(path), head_size)
        args = cfg["trainer"]["args"] | (
            {"sft_model_path": path} if cfg["trainer"]["args"].get("sft_model_path") else {}
        )
        shape = Shape.of_source(Source(path, trust=source.trust))
        yield shape, cfg | {"model": model | {"path": path}, "trainer": cfg["trainer"] | {"args": args}}


def measure_step(cfg: Config, folder: Path) -> MeasuredStep:
    """Train in a folder of its own, as many steps as a cycle of generation has, and measure them."""
    steps = cfg["trainer"]["args"][upstream.MAX_STEPS]
    trainer = build_components(open_run({**cfg, "output_root": str(folder)}, [])).trainer
    meter = Meter(folder / "profile.json")
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
    seen: MeasuredStep = field(default_factory=MeasuredStep)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model: nn.Module = kwargs["model"]
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

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.global_step == 0:
            self.profile = self.open.enter_context(profile(activities=[ProfilerActivity.CPU], profile_memory=True))
            self.open.enter_context(saved_tensors_hooks(self._keep, lambda saved: saved.tensor))

    def on_substep_end(self, *args: object, **kwargs: object) -> None:
        self._finish()
        self.seen.accumulates = True

    def on_pre_optimizer_step(self, *args: object, **kwargs: object) -> None:
        self._finish()

    def _finish(self) -> None:
        if self.seen.peak:
            return
        self.open.close()
        self.profile.export_chrome_trace(str(self.trace))
        self.seen.peak, self.seen.peak_in_place = read_peaks(self.trace)

    def _enter(self, trunk: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
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
        if torch.is_grad_enabled():
            self.seen.hidden = max(self.seen.hidden, output[0].nbytes)

    def _keep(self, tensor: Tensor) -> Saved:
        """Count a tensor saved for the backward pass, once for all that share its bytes, until it is released."""
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
    # The backward pass of a function written in Python; those of torch itself end with a digit.
    fused = {name for name, _, _ in named if re.fullmatch(r"\w+Backward", name)}
    fused |= {name.removesuffix("Backward") for name in fused}
    spans = [(start, start + lasted) for name, start, lasted in named if name in fused]
    changes = [(float(event["ts"]), event["args"]) for event in events if event.get("name") == "[memory]"]
    born: dict[int, tuple[float, int]] = {}
    largest = dict.fromkeys(spans, 0)
    plain, in_place = [], []
    for time, about in sorted(changes, key=lambda change: change[0]):
        if time < begin:
            continue
        plain.append((time, about["Bytes"]))
        start, size = born.pop(about["Addr"], (time, 0))
        if about["Bytes"] > 0:
            born[about["Addr"]] = time, about["Bytes"]
        elif span := next((span for span in spans if span[0] <= start and time <= span[1]), None):
            largest[span] = max(largest[span], size)
            in_place += [(start, -size), (time, size)]
    for (start, end), size in largest.items():
        in_place += [(start, size), (end, -size)]
    # Of changes at the same time, what is taken away goes first.
    peaks = [
        max(itertools.accumulate(size for _, size in sorted(each)), default=0) for each in (plain, plain + in_place)
    ]
    return peaks[0], peaks[1]
