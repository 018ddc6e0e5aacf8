"""One training step of small models, measured: its passes, the activations that it keeps, its peak and operations.

Only what the step itself shows is looked at, so nothing here knows one trainer from another. The measured figures are
scaled to the size of the real run in ``memory``.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import os
import re
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from runner.errors import RunnerError
from runner.estimate.memory import RECOMPUTE, MeasuredStep
from runner.estimate.reduce import is_small
from runner.estimate.steps import config_fields, cycle_of
from runner.estimate.weights import ModelWeights, Shape, trunks_of
from runner.io.files import read_json, write_json
from runner.io.terminal import write_output_to
from runner.launch import worker
from runner.model.clone import Source, write_clone
from runner.run import open_run
from runner.schema import upstream
from runner.schema.text import Config
from runner.training.components import build_components

aten = torch.ops.aten
# By torch's own formulas, which it applies to the kernels of GPUs only.
ATTENTION_ON_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **named: sdpa_flop_count(q, k, v),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **named: sdpa_backward_flop_count(grad, q, k, v)
    ),
}
# In a profile: where a batch begins to go through the model with gradients, and the optimizer's step.
BATCH, STEP = "runner.batch", "Optimizer.step"
HEAD_SIZES = (8, 16)  # of the two models that are measured
LOADER = "runner.model.load.load_model"


def measure_small(
    cfg: Config, source: Source, autocast: bool, folder: Path
) -> tuple[list[tuple[Shape, MeasuredStep]], str]:
    """A step of models like that of a source, of two widths, or why none could be measured; of a small one of itself.

    They train in a process of their own with the small run's configuration; its files go below ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "measured.json"
    result.unlink(missing_ok=True)

    def measure() -> int:
        try:
            training, models = training_alone(cfg, autocast), [source]
            if not is_small(source):
                models = [Source(str(folder / f"model{size}"), trust=source.trust) for size in HEAD_SIZES]
                kept = {
                    name: cfg["model"].get(name) for name in ("tokenizer", "attention", "trust_remote_code", "dtype")
                }
                training["model"] = {name: value for name, value in kept.items() if value is not None}
            seen = []
            for model, size in zip(models, HEAD_SIZES, strict=False):
                if model is not source:
                    write_clone(source, Path(model.path), size)
                    training["model"] |= {"_target_": LOADER, "path": model.path}
                shape = ModelWeights(model, trained=False).shape
                seen.append((asdict(shape), asdict(measure_step(training, folder))))
            write_json(result, {"seen": seen})
        except Exception as error:  # whatever a trainer may raise
            traceback.print_exc()
            first = error.faults[0].found if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
            write_json(result, {"why": first.splitlines()[0]})
        return 0

    run_apart(measure, folder / "log.txt", folder / "cache")
    read = read_json(result) or {"why": "the process that measured it was killed"}
    return [(Shape(**shape), MeasuredStep(**seen)) for shape, seen in read.get("seen", ())], read.get("why", "")


def run_apart(call: Callable[[], int], log: Path, cache: Path) -> int:
    """The exit code of a call in a process of its own, which ends with this one and writes into a log.

    What is built and trained there leaves nothing behind in this one; what it prepares of rows goes into a ``cache``,
    and not into that of real ones.
    """

    def apart() -> int:
        os.setpgid(0, 0)
        datasets.config.HF_DATASETS_CACHE = cache
        write_output_to(log)
        return call()

    process = worker.fork(apart)
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    finally:
        for kill in (os.killpg, os.kill):  # with what it has left running
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return ended if ended >= 0 else 128 - ended


def training_alone(cfg: Config, autocast: bool) -> dict[str, Any]:
    """The configuration of a training alone, for one cycle of generation, whose activations are all kept."""
    own = copy.deepcopy(dict(cfg))
    args = own["trainer"]["args"]
    args |= {name: False for name in RECOMPUTE if name in config_fields(args)}
    args |= {upstream.USE_CPU: True, upstream.BF16: autocast, upstream.FP16: False, upstream.MAX_STEPS: cycle_of(args)}
    args |= {upstream.SAVE_STRATEGY: "no", upstream.EVAL_STRATEGY: "no", upstream.LOAD_BEST_MODEL_AT_END: False}
    if path := args.pop("sft_model_path", None):  # in whose place another model is set
        own["model"]["path"] = path
    return own | dict.fromkeys(("callback", "metric", "quant"))  # a quantised product has no count of operations


def measure_step(cfg: Config, folder: Path) -> MeasuredStep:
    """Train in a folder of its own, as many steps as a cycle of generation has, and measure them."""
    steps = cfg["trainer"]["args"][upstream.MAX_STEPS]
    trainer = build_components(open_run({**cfg, "output_root": str(folder)}, [])).trainer
    meter, trace = Meter(trainer.model), folder / "profile.json"
    counter = FlopCounterMode(display=False, custom_mapping=ATTENTION_ON_CPU)
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with counter, profiler, saved_tensors_hooks(meter.keep, lambda tensor: tensor):
        trainer.train()
    profiler.export_chrome_trace(str(trace))
    counts, seen = counter.get_flop_counts()["Global"], meter.seen
    seen.peak, seen.peak_in_place, seen.accumulates = read_peaks(trace)
    seen.square = sum(count for operation, count in counts.items() if "attention" in str(operation)) // steps
    seen.linear = sum(counts.values()) // steps - seen.square
    seen.passed //= steps
    seen.reference = any(name.startswith("ref") and isinstance(part, nn.Module) for name, part in vars(trainer).items())
    return seen


class Meter:
    """Watches what the first micro-batch of a training keeps for its backward pass, and counts the passes of all."""

    def __init__(self, model: nn.Module):
        weights = list(model.parameters())
        self.seen = MeasuredStep()
        self.matrices = {shape for each in weights if each.dim() > 1 for shape in (each.shape, each.shape[::-1])}
        self.precisions = {each.dtype for each in weights}
        self.known = {each.untyped_storage().data_ptr() for each in weights}  # storages that are not to be counted
        self.inside = self.passes = 0
        self.is_new, self.is_first = True, True  # of the batch: not yet begun, and no gradient before it
        for trunk in trunks_of(model):
            trunk.register_forward_pre_hook(self._enter, with_kwargs=True)
            trunk.register_forward_hook(self._leave)
        for weight in weights:
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(self._end_batch)

    def _enter(self, trunk: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.inside += 1
        given = next(each for each in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args) if each is not None)
        rows, width = given.shape[:2]
        if not torch.is_grad_enabled():
            self.seen.sampled = max(self.seen.sampled, rows * (width == 1))
            return
        if self.is_new:
            with record_function(BATCH):
                self.is_new = False
        if not self.passes:
            self.seen.rows, self.seen.tokens = rows, rows * width
        self.passes += 1
        self.seen.passed += rows * width
        self.seen.width += (width - self.seen.width) / self.passes

    def _leave(self, *_: object) -> None:
        self.inside -= 1

    def _end_batch(self, weight: Tensor) -> None:
        self.is_new, self.is_first = True, False

    def keep(self, tensor: Tensor) -> Tensor:
        """Count a tensor saved for the backward pass of the first batch, once for all that share its bytes."""
        storage = tensor.untyped_storage()
        if self.is_first and storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            if tensor.shape in self.matrices and tensor.dtype not in self.precisions:
                self.seen.casts += storage.nbytes() * bool(self.inside)
            elif self.inside:
                square = tensor.dim() > 2 and tensor.shape[-1] == tensor.shape[-2]
                self.seen.maps += storage.nbytes() * (square and tensor.shape[-3] > 1)  # a mask is there once
                self.seen.body += storage.nbytes() * (not square)
        return tensor


def read_peaks(trace: Path) -> tuple[int, int, bool]:
    """The most bytes that were alive at once in the first batch with gradients, above what there was before it.

    Second with fused functions in place, as GPUs have kernels for: of what lives within one, only the largest counts.
    Third whether another batch goes through before the optimizer's step.
    """
    events = [(float(event["ts"]), event) for event in json.loads(trace.read_text())["traceEvents"] if "ts" in event]
    begin, *others = sorted(time for time, event in events if event["name"] == BATCH)
    steps = [time for time, event in events if event["name"].startswith(STEP) and time > begin]
    end = min([*others, *steps, math.inf])
    named = [(event["name"], time, event["dur"]) for time, event in events if event.get("cat") == "cpu_op"]
    # The backward pass of a function written in Python; those of torch itself end with a digit.
    fused = {name for name, _, _ in named if re.fullmatch(r"\w+Backward", name)}
    fused |= {name.removesuffix("Backward") for name in fused}
    largest = {(start, start + lasted): 0 for name, start, lasted in named if name in fused}
    changes = [(time, event["args"]) for time, event in events if event["name"] == "[memory]" and begin <= time < end]
    born: dict[int, tuple[float, int]] = {}
    plain, in_place = [], []
    for time, about in sorted(changes, key=lambda change: change[0]):
        plain.append((time, about["Bytes"]))
        start, size = born.pop(about["Addr"], (time, 0))
        if about["Bytes"] > 0:
            born[about["Addr"]] = time, about["Bytes"]
        elif span := next((span for span in largest if span[0] <= start and time <= span[1]), None):
            largest[span] = max(largest[span], size)
            in_place += [(start, -size), (time, size)]
    in_place += [change for (start, end), size in largest.items() for change in ((start, size), (end, -size))]
    # Of changes at the same time, what is taken away goes first.
    most, less = (
        max(itertools.accumulate(size for _, size in sorted(each)), default=0) for each in (plain, plain + in_place)
    )
    return most, less, bool(others) and others[0] < min([*steps, math.inf])
