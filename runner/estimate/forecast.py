"""A forecast as text: what takes how much memory, how long it trains, and what it writes."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from torch.utils.benchmark import Timer

from runner.estimate.memory import Training
from runner.estimate.steps import steps_of
from runner.run.alarms import steps_to_notice
from runner.run.disk import free, sized
from runner.run.seal import checkpoints_at_once
from runner.schema.literal import number
from runner.schema.upstream import batch_size, setting

# The share of a device's memory from which on a forecast warns: allocators keep some more than
# what is alive.
TIGHT = 0.9
ASSUMED = 100e12  # operations a second, as a scale where nothing was measured
KEPT = 2  # checkpoints, where nothing else is configured
REACHED = 0.5  # of the speed of large products: about what the passes of a training reach
PROPOSED_PROCESSES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # by a warning
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of the container that this process is in


@dataclass(frozen=True)
class Device:
    """A device that runs are meant for; None stands for what nobody knows."""

    name: str
    gpu: bool
    memory: int | None = None  # bytes
    speed: float | None = None  # operations a second
    how: str = ""  # the speed is known


def this_device() -> Device:
    """The device that a run here would train on, with the speed that it may reach.

    The speed is taken from the best of a few large products.
    """
    is_gpu = torch.cuda.is_available()
    if is_gpu:
        name = torch.cuda.get_device_name()
        memory = torch.cuda.mem_get_info()[0]
        how = "half of what large bf16 products reach"
        size = 8192
        place = {"device": "cuda", "dtype": torch.bfloat16}
    else:
        name = "this CPU"
        memory = psutil.virtual_memory().available
        with contextlib.suppress(OSError, ValueError):  # no container, or none with a limit
            memory = min(memory, int(MEMORY_LIMIT.read_text()))
        how = "half of what large products reach"
        size = 1024
        place = {"device": "cpu", "dtype": torch.float32}
    factors = {name: torch.rand(size, size, **place) for name in ("left", "right")}
    timer = Timer("left @ right", globals=factors, num_threads=torch.get_num_threads())
    best = min(timer.timeit(1).mean for _ in range(5))
    return Device(name, is_gpu, memory, REACHED * 2 * size**3 / best, how)


@dataclass(frozen=True)
class Forecast:
    """The needs of a run on one device."""

    training: Training
    device: Device
    why: str = ""  # its activations are not known, where they are not

    @property
    def steps(self) -> int | None:
        """The steps of the whole training; None where nobody knows."""
        return steps_of(self.training.experiment, self.training.rows)

    def shares(self) -> dict[str, int | None]:
        """Bytes by what holds them; activations and sampling take turns."""
        training = self.training
        phases = training.phases
        shares: dict[str, int | None] = {
            "weights": training.held["weights"],
            "gradients": training.gradients,
            **training.held,
            "activations": None,
        }
        if not self.why:
            shares["activations"] = max(0, phases["update"] - training.gradients)
        if "sampling" in phases:
            shares["or sampling"] = phases["sampling"]
        return shares

    def warning(self) -> list[str]:
        """A line where the run will hardly fit, with what to type for less of what takes most."""
        memory = self.device.memory
        peak = self.training.peak
        if not memory or peak <= TIGHT * memory:
            return []
        over = "more than" if peak > memory else "nearly all of"
        return [
            f"  warning      {self.device.name}: {over} the available memory; "
            f"{self._lighter_words(memory)}"
        ]

    def _lighter_words(self, memory: int) -> str:
        """The words that make the run need less, of what takes most."""
        training = self.training
        held = training.held
        phases = training.phases
        state_bytes = held["weights"] + held.get("optimizer", 0) + training.gradients
        if max(phases.values()) - training.gradients <= state_bytes:
            words = "peft=qlora" if training.experiment.peft else "peft=lora"
            count = self._processes_that_fit(memory)
            if self.device.gpu and training.parts.stage < 3 and count:
                words += f", or strategy=fsdp2 launcher.num_processes={count}"
            return words
        if not training.recompute and max(phases, key=phases.__getitem__) == "update":
            return "trainer.args.activation_checkpointing=true"
        fewer = batch_size(training.args) // 2
        if fewer:
            return f"trainer.args.per_device_train_batch_size={fewer}"
        return f"rows of {training.width // 2} tokens"

    def _processes_that_fit(self, memory: int) -> int | None:
        """The fewest of the proposed processes that together hold what one cannot."""
        training = self.training
        split = sum(training.held.values()) + training.gradients
        for count in PROPOSED_PROCESSES:
            is_enough = training.peak - split + split // count <= TIGHT * memory
            if count >= training.experiment.launcher.all_processes and is_enough:
                return count
        return None

    def computed(self) -> str:
        """The device, and its precision in words."""
        training = self.training
        if training.autocast:
            precision = "bf16 autocast"
        else:
            precision = str(training.policy.dtype).removeprefix("torch.")
        text = f"{self.device.name} in {precision}"
        if training.recompute:
            text += " with activations recomputed"
        count = training.experiment.launcher.all_processes
        if count > 1:
            text += f", in each of {count} processes"
            if training.parts.stage:
                text += " a part"
        return text

    def time(self) -> str:
        """The time that all steps take on the device, and where its speed comes from."""
        if self.why:
            return "unknown"
        speed = self.device.speed or ASSUMED
        operations = self.training.operations_per_step * (self.steps or 1)
        evaluations = self.training.evaluation_operations(self.steps)
        text = _span(operations / speed)
        if not self.steps:
            text += " a step"
        if evaluations:
            text += f", and {_span(evaluations / speed)} of evaluations that sample"
        how = self.device.how or "assumed; type tflops=<them>"
        return (
            f"{text}, {number(operations + evaluations, 2)} FLOP: "
            f"{self.device.name} at {sized(speed, 'FLOP/s')} ({how})"
        )

    def disk(self) -> list[str]:
        """The checkpoints on the disk at a time, and the model; with a warning if need be."""
        training = self.training
        args = training.args
        policy = training.policy
        model = policy.trained_bytes if policy.is_adapted else policy.bytes
        checkpoint = model
        if not args.get("save_only_model"):
            checkpoint += training.held.get("optimizer", 0)
        if training.critic:  # it is saved too, and the policy once more for others
            checkpoint += training.gradients
        count = checkpoints_at_once(
            int(args.get("save_total_limit") or KEPT),
            steps_to_notice(training.experiment.tolerate),
            setting(args, "save_strategy", "steps"),
            float(setting(args, "save_steps", 500)),
            self.steps,
        )
        room = free(training.experiment.root)
        need = count * checkpoint + model
        checkpoints = "no checkpoint"
        if count:
            ending = "s" if count > 1 else ""
            checkpoints = f"{count} checkpoint{ending} of {sized(checkpoint)} at a time"
        parts = f"{checkpoints}, {sized(model)} for model/; {sized(room)} free"
        lines = [_line("disk", parts)]
        if need > room:
            warning = f"{sized(need)} do not fit on the disk: output_root=<a larger disk>"
            lines.append(_line("warning", warning))
        return lines


def _span(seconds: float) -> str:
    """A time as text: ``4.2 s``, ``0:03:20`` or ``2 days, 1:00:00``."""
    if seconds < 60:
        return f"{number(seconds, 2)} s"
    return str(timedelta(seconds=round(seconds)))


def _line(name: str, text: str) -> str:
    return f"  {name:<13}{text}"


def format_forecasts(forecasts: Sequence[Forecast]) -> list[str]:
    """The forecasts of one run, a column for each device, and warnings of what will not fit."""
    first = forecasts[0]
    training = first.training
    policy = training.policy
    trained = "all" if policy.trained == policy.count else sized(policy.trained, "")
    lines = [
        _line("model", f"{sized(policy.count, '')} weights, {trained} of them trained"),
        _line(
            "batch",
            f"{training.batch.rows} rows of {training.width} tokens at a time, the longest rows "
            "that were seen",
        ),
        _line("computed", "; ".join(forecast.computed() for forecast in forecasts)),
        *_memory_table(forecasts),
        _line("steps", _describe_steps(first)),
    ]
    for forecast in forecasts:
        lines.append(_line("time" if forecast is first else "", forecast.time()))
    if training.completion:
        lines.append(_line("", "sampling may take several times as long: memory limits it"))
    lines += first.disk()
    if first.why:
        lines.append(_line("unknown", f"activations, and with them the peak: {first.why}"))
    for forecast in forecasts:
        lines += forecast.warning()
    return lines


def _memory_table(forecasts: Sequence[Forecast]) -> list[str]:
    """A line for each thing that takes memory, below the names of the devices."""
    columns = []
    for forecast in forecasts:
        device = forecast.device
        totals = {"peak": forecast.training.peak, "there": device.memory}
        columns.append(forecast.shares() | totals)
    last_names = ("peak", "there")
    names: list[str] = []
    for column in columns:
        for name in column:
            if name not in names and name not in last_names:
                names.append(name)
    table = {"": [forecast.device.name for forecast in forecasts]}
    for name in (*names, *last_names):
        sizes = [column.get(name) for column in columns]
        table[name] = ["-" if size is None else sized(size) for size in sizes]
    width = max(len(cell) for cells in table.values() for cell in cells)
    lines = []
    for name, cells in table.items():
        aligned = [cell.rjust(width) for cell in cells]
        lines.append(_line(name, "  ".join(aligned)))
    return lines


def _describe_steps(forecast: Forecast) -> str:
    """The steps and the tokens of each, over all processes and without padding.

    Of sampled completions those are all that may be written.
    """
    training = forecast.training
    rows = batch_size(training.args)
    rows *= setting(training.args, "gradient_accumulation_steps", 1)
    rows *= training.experiment.launcher.all_processes
    row_tokens = training.packed or training.rows.mean + training.completion
    tokens = round(rows * training.texts * row_tokens)
    steps = forecast.steps
    if not steps:
        return f"unknown, because the rows were not counted; {tokens:,} tokens each"
    all_tokens = sized(tokens * steps, "")
    return f"{steps:,} of {tokens:,} tokens, {all_tokens} in all"
