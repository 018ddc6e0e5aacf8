"""A training step of a run in small, measured: its passes, the activations that it keeps, its peak.

Only what the step itself shows is looked at, so nothing here knows one trainer from another;
``memory`` scales it.
"""

import copy
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import PreTrainedModel, Trainer

from runner.config.experiment import Experiment
from runner.estimate.apart import ask_apart
from runner.estimate.memory import RECOMPUTE, MeasuredStep, autocasts
from runner.estimate.model_weights import ModelWeights, Shape, source_of, trunks_of
from runner.estimate.steps import cycle_of
from runner.io.files import JsonObject
from runner.run import open_run
from runner.schema.text import Config
from runner.schema.upstream import config_fields
from runner.training.components import build_components

# Marks in a profile: where a batch begins to go through the layers with gradients, and where the
# first of these is there.
PASS = "runner.pass"
GRADIENT = "runner.gradient"


def measure_small(cfg: Config, gpu: bool, folder: Path) -> tuple[MeasuredStep | None, str]:
    """A step of a run in small, in the precision of a GPU or of this CPU, or why there is none.

    It is taken in a process of its own: what a training leaves behind in torch and in its
    libraries would change the next one, and a crash of it is an answer too.
    """

    def measure() -> JsonObject:
        step = measure_step(cfg, gpu, folder)
        return {"step": asdict(step)}

    result = ask_apart(measure, folder, "measured")
    if "step" not in result:
        return None, result["why"]
    figures = dict(result["step"])
    shape = Shape(**figures.pop("shape"))
    return MeasuredStep(shape, **figures), ""


def measure_step(cfg: Config, gpu: bool, folder: Path) -> MeasuredStep:
    """Train alone in a folder for one cycle of generation, keep all activations, and measure it.

    Checkpoints of activations are switched off, because ``memory`` computes what they save from
    all that would be kept.
    """
    alone = copy.deepcopy(dict(cfg))
    alone |= {"callback": None, "metric": None, "quant": None, "output_root": str(folder)}
    alone["trainer"] = {**alone["trainer"], "skip_padding": False}  # a GPU computes it
    args = alone["trainer"]["args"]
    args |= {"bf16": autocasts(args, gpu), "fp16": False}
    for name in RECOMPUTE:
        if name in config_fields(args):
            args[name] = False
    args |= {"use_cpu": True, "max_steps": cycle_of(args)}
    args |= {"save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False}
    if alone["peft"] and alone["peft"].get("r"):
        # What a rank adds does not grow with the width, and is little in a wide model.
        alone["peft"]["r"] = 1
    run = open_run(alone, [])
    trainer = build_components(run).trainer
    source = source_of(Experiment.read(cfg))
    weights = ModelWeights(source, dtype="float32", trained=False)
    meter = Meter(trainer, weights.shape)
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with profiler, saved_tensors_hooks(meter.keep, lambda tensor: tensor):
        trainer.train()
    trace = folder / "profile.json"
    profiler.export_chrome_trace(str(trace))
    peak = read_peak(trace, in_place=gpu)
    return replace(meter.step, peak=peak, steps=args["max_steps"])


class Meter:
    """Watches what the first micro-batch of a training keeps for its backward pass.

    It also counts the tokens of all passes.
    """

    def __init__(self, trainer: Trainer, shape: Shape):
        models = {name: part for name, part in vars(trainer).items() if isinstance(part, nn.Module)}
        # As trainers name the model to compare with.
        has_reference = any(name.startswith("ref") for name in models)
        self.step = MeasuredStep(shape, reference=has_reference)
        self.weights = list(trainer.model.parameters())
        # A saved tensor of a weight's shape, transposed or not, in a precision that no weight has,
        # is a copy that autocast has made.
        self.precisions = {weight.dtype for weight in self.weights}
        self.matrices: set[torch.Size] = set()
        for weight in self.weights:
            if weight.dim() > 1:
                self.matrices |= {weight.shape, weight.shape[::-1]}
        # Storages that are not to be counted, by their addresses.
        self.counted = {weight.untyped_storage().data_ptr() for weight in self.weights}
        self.is_inside = False  # of the layers
        self.is_first = True  # of the batches: no gradient was before it
        trunks: set[PreTrainedModel] = set()
        for model in models.values():
            trunks.update(trunks_of(model))
        for trunk in trunks:
            trunk.register_forward_pre_hook(self._enter, with_kwargs=True)
            trunk.register_forward_hook(self._leave)
        for weight in self.weights:
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(self._end_batch)

    def _enter(self, trunk: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count the tokens of a pass through the layers before it begins."""
        inputs = [kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args]
        first_input = next(tensor for tensor in inputs if tensor is not None)
        rows, width = first_input.shape[:2]
        tokens = rows * width
        step = self.step
        if not is_grad_enabled():
            if width == 1:  # a token is sampled for each row
                step.sampled = max(step.sampled, rows)
            step.asked += tokens
            return
        self.is_inside = True
        if not step.tokens:
            with record_function(PASS):
                step.rows = rows
                step.tokens = tokens
        step.accumulates |= any(weight.grad is not None for weight in self.weights)
        step.passed_rows += rows
        step.passed += tokens

    def _leave(self, *_: object) -> None:
        self.is_inside = False

    def _end_batch(self, weight: Tensor) -> None:
        """Note that the first gradient is there: from then on activations only become fewer."""
        if self.is_first:
            with record_function(GRADIENT):
                self.is_first = False

    def keep(self, tensor: Tensor) -> Tensor:
        """Count a tensor that the first batch saves for its backward pass, shared bytes once."""
        storage = tensor.untyped_storage()
        if not self.is_first or storage.data_ptr() in self.counted:
            return tensor
        self.counted.add(storage.data_ptr())
        if not self.is_inside:
            return tensor
        size = storage.nbytes()
        if tensor.shape in self.matrices and tensor.dtype not in self.precisions:
            self.step.casts += size
        elif tensor.dim() > 2 and tensor.shape[-1] == tensor.shape[-2]:
            if tensor.shape[-3] > 1:  # a map for each head; a mask is there once
                self.step.maps += size
        else:
            self.step.body += size
        return tensor


# --- The peak, read from a profile ----------------------------------------------------------------


@dataclass(frozen=True)
class AllocatedBlock:
    """Memory that was alive from one moment of a profile to another."""

    size: int
    start: float
    end: float


def read_peak(trace: Path, in_place: bool) -> int:
    """The most bytes of the first batch that were alive at once, up to its first gradient.

    With ``in_place`` only the largest block counts of those that a function written in Python
    allocates and frees itself: on a GPU such functions are fused kernels.
    """
    profile_content = json.loads(trace.read_text())
    events = [event for event in profile_content["traceEvents"] if "ts" in event]
    begin = min(float(event["ts"]) for event in events if event["name"] == PASS)
    end = min(float(event["ts"]) for event in events if event["name"] == GRADIENT)
    spans = _fused_spans(events) if in_place else []
    changes = []
    for event in events:
        if event["name"] == "[memory]" and begin <= float(event["ts"]) < end:
            changes.append(event)
    changes.sort(key=lambda event: float(event["ts"]))

    counted: list[AllocatedBlock] = []
    largest: dict[int, AllocatedBlock] = {}  # of each span
    alive: dict[int, tuple[int, float]] = {}  # sizes and times by the address
    for event in changes:
        time = float(event["ts"])
        address = event["args"]["Addr"]
        size = event["args"]["Bytes"]
        if size > 0:
            alive[address] = (size, time)
        elif address in alive:
            block = AllocatedBlock(*alive.pop(address), time)
            number = _find_span(block, spans)
            if number is None:
                counted.append(block)
            elif number not in largest or _by_size(block) > _by_size(largest[number]):
                largest[number] = block
    counted += largest.values()
    # What nothing has freed is alive to the end.
    for size, start in alive.values():
        counted.append(AllocatedBlock(size, start, end))

    # Of changes at one moment those that free come first.
    steps = [(block.start, block.size) for block in counted]
    steps += [(block.end, -block.size) for block in counted]
    totals = itertools.accumulate(size for _, size in sorted(steps))
    return max(totals, default=0)


def _fused_spans(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """The begin and the end of each function written in Python, and of its backward pass.

    The name of such a pass ends with Backward; of torch's own a digit follows.
    """
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    names = {event["name"] for event in operators if re.fullmatch(r"\w+Backward", event["name"])}
    spans = []
    for event in operators:
        if event["name"] in names or f"{event['name']}Backward" in names:
            begin = float(event["ts"])
            spans.append((begin, begin + event["dur"]))
    return spans


def _find_span(block: AllocatedBlock, spans: list[tuple[float, float]]) -> int | None:
    """The number of the first span that a block was alive in alone."""
    for number, (begin, end) in enumerate(spans):
        if begin <= block.start and block.end <= end:
            return number
    return None


def _by_size(block: AllocatedBlock) -> tuple[int, float, float]:
    return block.size, block.start, block.end
