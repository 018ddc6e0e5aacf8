"""A training step of a run in small, measured: its passes, the activations that it keeps and its peak.

Only what the step itself shows is looked at, so nothing here knows one trainer from another; ``memory`` scales it.
"""

import contextlib
import copy
import itertools
import json
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor, is_grad_enabled, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import Trainer

from runner.errors import RunnerError
from runner.estimate.memory import RECOMPUTE, MeasuredStep, autocasts, cycle_of
from runner.estimate.weights import ModelWeights, Shape, source_of, trunks_of
from runner.io.files import read_json, write_json
from runner.io.terminal import HidingLog
from runner.launch import worker
from runner.run import open_run
from runner.schema import upstream
from runner.schema.text import Config
from runner.schema.upstream import config_fields
from runner.training.components import build_components

# In a profile: where a batch goes through the layers with gradients, and where the first of these is there.
PASS, GRADIENT = "runner.pass", "runner.gradient"


def measure_small(cfg: Config, gpu: bool, folder: Path) -> tuple[MeasuredStep | None, str]:
    """A step of a run in small, in the precision that it has on a GPU or here, or why none could be measured."""
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "measured.json"
    result.unlink(missing_ok=True)

    def measure() -> int:
        try:
            write_json(result, {"seen": asdict(measure_step(cfg, gpu, folder))})
        except Exception as error:  # whatever a trainer may raise
            traceback.print_exc()
            first = error.faults[0].found if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
            write_json(result, {"why": first.splitlines()[0]})
        return 0

    run_apart(measure, folder / "log.txt", folder / "cache")
    read = read_json(result) or {"why": "the process that measured it was killed"}
    if "seen" not in read:
        return None, read["why"]
    return MeasuredStep(**read["seen"] | {"shape": Shape(**read["seen"]["shape"])}), ""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside: a process forked from one that has several of OpenMP would wait for ever."""
    with contextlib.ExitStack() as behind:
        behind.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        yield


def run_apart(call: Callable[[], int], log: Path, cache: Path) -> int:
    """The exit code of a call in a process of its own, below zero the signal that killed it.

    The process ends with this one, writes into a log, leaves nothing behind here, and has a ``cache`` of its own.
    """

    def apart() -> int:
        os.setpgid(0, 0)
        datasets.config.HF_DATASETS_CACHE = cache
        output.take_output()
        return call()

    output = HidingLog.open(log)
    process = worker.fork(apart)
    output.close()
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    finally:
        for kill in (os.killpg, os.kill):  # with what it has left running
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        output.wait()
    return os.waitstatus_to_exitcode(status)


def measure_step(cfg: Config, gpu: bool, folder: Path) -> MeasuredStep:
    """Train alone in a folder of its own, for one cycle of generation with all activations kept, and measure that."""
    own = copy.deepcopy(dict(cfg)) | dict.fromkeys(("callback", "metric", "quant")) | {"output_root": str(folder)}
    args = own["trainer"]["args"]
    args |= {upstream.BF16: autocasts(args, gpu), upstream.FP16: False}
    args |= {name: False for name in RECOMPUTE if name in config_fields(args)}
    args |= {upstream.USE_CPU: True, upstream.MAX_STEPS: cycle_of(args)}
    args |= {upstream.SAVE_STRATEGY: "no", upstream.EVAL_STRATEGY: "no", upstream.LOAD_BEST_MODEL_AT_END: False}
    if own["peft"] and own["peft"].get("r"):
        own["peft"]["r"] = 1  # what a rank adds does not grow with the width, and is little in a wide model
    trainer = build_components(open_run(own, [])).trainer
    shape, trace = ModelWeights(source_of(cfg), dtype="float32", trained=False).shape, folder / "profile.json"
    meter = Meter(trainer, shape)
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with profiler, saved_tensors_hooks(meter.keep, lambda tensor: tensor):
        trainer.train()
    profiler.export_chrome_trace(str(trace))
    return replace(meter.seen, peak=read_peak(trace, gpu), steps=args[upstream.MAX_STEPS])


class Meter:
    """Watches what the first micro-batch of a training keeps for its backward pass, and counts the passes of all."""

    def __init__(self, trainer: Trainer, shape: Shape):
        models = {name: part for name, part in vars(trainer).items() if isinstance(part, nn.Module)}
        self.weights = weights = list(trainer.model.parameters())
        self.seen = MeasuredStep(shape, reference=any(name.startswith("ref") for name in models))
        self.matrices = {size for each in weights if each.dim() > 1 for size in (each.shape, each.shape[::-1])}
        self.precisions = {each.dtype for each in weights}
        self.known = {each.untyped_storage().data_ptr() for each in weights}  # storages that are not to be counted
        self.is_inside = False  # of the layers
        self.is_first = True  # of the batches: no gradient was before it
        for trunk in {trunk for part in models.values() for trunk in trunks_of(part)}:
            trunk.register_forward_pre_hook(self._enter, with_kwargs=True)
            trunk.register_forward_hook(self._leave)
        for weight in weights:
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(self._end_batch)

    def _enter(self, trunk: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = next(each for each in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args) if each is not None)
        rows, width = given.shape[:2]
        if not is_grad_enabled():
            self.seen.sampled = max(self.seen.sampled, rows * (width == 1))
            self.seen.asked += rows * width
            return
        self.is_inside = True
        if not self.seen.tokens:
            with record_function(PASS):
                self.seen.rows, self.seen.tokens = rows, rows * width
        self.seen.accumulates |= any(each.grad is not None for each in self.weights)
        self.seen.passed_rows += rows
        self.seen.passed += rows * width

    def _leave(self, *_: object) -> None:
        self.is_inside = False

    def _end_batch(self, weight: Tensor) -> None:
        if self.is_first:
            with record_function(GRADIENT):
                self.is_first = False

    def keep(self, tensor: Tensor) -> Tensor:
        """Count a tensor saved for the backward pass of the first batch, once for all that share its bytes."""
        storage = tensor.untyped_storage()
        if self.is_first and storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            if tensor.shape in self.matrices and tensor.dtype not in self.precisions:
                self.seen.casts += storage.nbytes() * self.is_inside
            elif self.is_inside:
                square = tensor.dim() > 2 and tensor.shape[-1] == tensor.shape[-2]
                self.seen.maps += storage.nbytes() * (square and tensor.shape[-3] > 1)  # a mask is there once
                self.seen.body += storage.nbytes() * (not square)
        return tensor


def read_peak(trace: Path, in_place: bool) -> int:
    """The most bytes of the first batch that were alive at once, up to its first gradient."""
    events = [(float(event["ts"]), event) for event in json.loads(trace.read_text())["traceEvents"] if "ts" in event]
    begin, end = (min(time for time, event in events if event["name"] == mark) for mark in (PASS, GRADIENT))
    named = [(event["name"], time, time + event["dur"]) for time, event in events if event.get("cat") == "cpu_op"]
    # The backward pass of a function written in Python; those of torch itself end with a digit.
    fused = {name for name, *_ in named if in_place and re.fullmatch(r"\w+Backward", name)}
    spans = [span for name, *span in named if name in fused or f"{name}Backward" in fused]
    changes = [(time, event["args"]) for time, event in events if event["name"] == "[memory]" and begin <= time < end]
    born: dict[int, tuple[int, float]] = {}
    lives: dict[int, list[tuple[int, float, float]]] = {}  # sizes and times, by the number of the function
    for time, about in sorted(changes, key=lambda change: change[0]):
        if about["Bytes"] > 0:
            born[about["Addr"]] = about["Bytes"], time
        elif life := born.pop(about["Addr"], None):
            within = (index for index, (first, last) in enumerate(spans) if first <= life[1] and time <= last)
            lives.setdefault(next(within, -1), []).append((*life, time))
    counted = [*lives.pop(-1, []), *((*life, end) for life in born.values()), *map(max, lives.values())]
    alive = sorted(change for size, start, stop in counted for change in ((start, size), (stop, -size)))
    return max(itertools.accumulate(size for _, size in alive), default=0)
