"""A forecast as text: what holds how much, what a device has, how long it takes, and what it writes."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from torch.utils.benchmark import Timer

from runner.config.machines import processes_of
from runner.estimate.memory import Training, steps_of
from runner.run.alarms import steps_to_notice
from runner.run.disk import free, sized
from runner.run.seal import checkpoints_at_once
from runner.schema import upstream
from runner.schema.text import number
from runner.schema.upstream import batch_size, setting

TIGHT = 0.9  # of what is there, from which on a forecast warns: allocators keep some more than what is alive
ASSUMED = 100e12  # operations a second, as a scale where nothing was measured
KEPT = 2  # checkpoints, where nothing else is configured
REACHED = 0.5  # of the speed of large products: about what the passes of a training reach


@dataclass(frozen=True)
class Device:
    """A device that runs are meant for; None is what nobody knows."""

    name: str
    gpu: bool
    memory: int | None = None  # bytes
    speed: float | None = None  # operations a second
    how: str = ""  # the speed is known


def this_device() -> Device:
    """The device that a run here would train on, and what it may reach: from the best of a few large products."""
    gpu = torch.cuda.is_available()
    kind, dtype, size = ("cuda", torch.bfloat16, 8192) if gpu else ("cpu", torch.float32, 1024)
    both = {name: torch.rand(size, size, device=kind).to(dtype) for name in ("left", "right")}
    timer = Timer("left @ right", globals=both, num_threads=torch.get_num_threads())
    best = min(timer.timeit(1).mean for _ in range(5))
    name = torch.cuda.get_device_name() if gpu else "this CPU"
    free = [torch.cuda.mem_get_info()[0] if gpu else psutil.virtual_memory().available]
    with contextlib.suppress(OSError, ValueError):  # there is no container, or none with a limit
        free += [] if gpu else [int(Path("/sys/fs/cgroup/memory.max").read_text())]
    how = f"half of what large {'bf16 ' if gpu else ''}products reach"
    return Device(name, gpu, min(free), REACHED * 2 * size**3 / best, how)


@dataclass(frozen=True)
class Forecast:
    """The needs of a run on one device, and ``why`` its activations are not known where they are not."""

    training: Training
    device: Device
    why: str = ""

    @property
    def steps(self) -> int | None:
        return steps_of(self.training.cfg, self.training.rows)

    def shares(self) -> dict[str, int | None]:
        """Bytes by what holds them; activations and sampling take turns, and the peak is with the larger."""
        held, phases, gradients = self.training.held, self.training.phases, self.training.gradients
        activations = None if self.why else max(0, phases["update"] - gradients)
        shares = {"weights": held.pop("weights"), "gradients": gradients, **held, "activations": activations}
        return shares | ({"or sampling": phases["sampling"]} if "sampling" in phases else {})

    def warning(self) -> list[str]:
        """A line where the run will hardly fit, with what to type for less of what takes most."""
        training, there, peak = self.training, self.device.memory, self.training.peak
        if not there or peak <= TIGHT * there:
            return []
        held, phases, gradients = training.held, training.phases, training.gradients
        lighter = "peft=qlora" if training.cfg["peft"] else "peft=lora"
        split, now = sum(held.values()) + gradients, processes_of(training.cfg)
        spread = (2**n for n in range(1, 11) if 2**n >= now and peak - split + split // 2**n <= TIGHT * there)
        if self.device.gpu and training.parts.stage < 3 and (count := next(spread, None)):
            lighter += f", or strategy=fsdp2 launcher.num_processes={count}"
        if max(phases.values()) - gradients > held["weights"] + held.get("optimizer", 0) + gradients:
            fewer, shorter = batch_size(training.args) // 2, training.width // 2
            lighter = f"trainer.args.per_device_train_batch_size={fewer}" if fewer else f"rows of {shorter} tokens"
            if not training.recompute and max(phases, key=phases.__getitem__) == "update":
                lighter = "trainer.args.activation_checkpointing=true"
        over = "more than" if peak > there else "nearly all of"
        return [f"  warning      {self.device.name}: {over} the memory that is there; {lighter}"]

    def computed(self) -> str:
        """The device, and its precision in words."""
        training = self.training
        kind = "bf16 autocast" if training.autocast else str(training.policy.dtype).removeprefix("torch.")
        more = " with activations recomputed" if training.recompute else ""
        if (count := processes_of(training.cfg)) > 1:
            more += f", in each of {count} processes{' a part' * bool(training.parts.stage)}"
        return f"{self.device.name} in {kind}{more}"

    def time(self) -> str:
        """The time that all steps take at the speed of a device, and where that speed comes from."""
        if self.why:
            return "unknown"
        operations, speed = self.training.operations_per_step * (self.steps or 1), self.device.speed or ASSUMED
        evaluations = self.training.evaluation_operations(self.steps)
        where = f"{self.device.name} at {sized(speed, 'FLOP/s')} ({self.device.how or 'assumed; type tflops=<them>'})"
        more = f", and {_span(evaluations / speed)} of evaluations that sample" if evaluations else ""
        each = "" if self.steps else " a step"
        return f"{_span(operations / speed)}{each}{more}, {number(operations + evaluations, 2)} FLOP: {where}"

    def disk(self) -> list[str]:
        """Checkpoints that are on the disk at a time, those that are kept and one that is written, and the model."""
        training, args, policy = self.training, self.training.args, self.training.policy
        model = policy.trained_bytes if policy.is_adapted else policy.bytes
        state = 0 if args.get(upstream.SAVE_ONLY_MODEL) else training.held.get("optimizer", 0)
        # A trainer with a critic saves that, and its policy once more for others.
        checkpoint = model + state + (training.gradients if training.critic else 0)
        keep, notice = int(args.get(upstream.SAVE_TOTAL_LIMIT) or KEPT), steps_to_notice(training.cfg.get("tolerate"))
        strategy, every = setting(args, upstream.SAVE_STRATEGY, "steps"), float(setting(args, upstream.SAVE_STEPS, 500))
        saves = checkpoints_at_once(keep, notice, strategy, every, self.steps)
        room, need = free(Path(str(training.cfg["output_root"]))), saves * checkpoint + model
        many = f"{saves} checkpoint{'s' * (saves > 1)} of {sized(checkpoint)} at a time" if saves else "no checkpoint"
        line = f"  {'disk':<13}{many}, {sized(model)} for model/; {sized(room)} free"
        full = f"  {'warning':<13}{sized(need)} do not fit on the disk: output_root=<a larger disk>"
        return [line, full] if need > room else [line]


def _span(seconds: float) -> str:
    return f"{number(seconds, 2)} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def format_forecasts(forecasts: Sequence[Forecast]) -> list[str]:
    """Forecasts of one run, a column for each device, ending with a warning where something will not fit."""
    first = forecasts[0]
    training, policy, steps, args = first.training, first.training.policy, first.steps, first.training.args
    # Of one step over all processes, without padding; of sampled ones all that may be written.
    rows = batch_size(args) * setting(args, upstream.GRADIENT_ACCUMULATION_STEPS, 1) * processes_of(training.cfg)
    tokens = round(rows * training.texts * (training.packed or training.rows.mean + training.completion))
    trained = "all" if policy.trained == policy.count else sized(policy.trained, "")
    counted = f"{steps:,} of {tokens:,} tokens, {sized(tokens * steps, '')} in all" if steps else ""
    shares = [each.shares() for each in forecasts]
    names = dict.fromkeys(name for share in shares for name in share)
    sizes = {name: [share.get(name) for share in shares] for name in names}
    sizes |= {"peak": [each.training.peak for each in forecasts], "there": [each.device.memory for each in forecasts]}
    cells = {name: ["-" if size is None else sized(size) for size in row] for name, row in sizes.items()}
    cells = {"": [each.device.name for each in forecasts], **cells}
    width = max(len(cell) for row in cells.values() for cell in row)
    return [
        f"  {'model':<13}{sized(policy.count, '')} weights, {trained} of them trained",
        f"  {'batch':<13}{training.batch[0]} rows of {training.width} tokens, the longest that were seen, at a time",
        f"  {'computed':<13}{'; '.join(each.computed() for each in forecasts)}",
        *(f"  {name:<13}{'  '.join(cell.rjust(width) for cell in row)}" for name, row in cells.items()),
        f"  {'steps':<13}{counted or f'unknown, nobody has counted the rows; {tokens:,} tokens each'}",
        *(f"  {'time' if each is first else '':<13}{each.time()}" for each in forecasts),
        *([f"  {'':<13}sampling may take several times as long: memory bounds it"] if training.completion else []),
        *first.disk(),
        *([f"  unknown      activations, and with them the peak: {first.why}"] if first.why else []),
        *(line for each in forecasts for line in each.warning()),
    ]
