"""The record of a training: ``metrics.jsonl`` and the state of the run folder."""

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.io.files import ROWS, JsonObject, forget_rows, read_last_row, replace_rows, sync_rows
from runner.run import Run
from runner.schema.text import Node

# Between two writes of the status, each of which takes as long as a short step.
SECONDS_OF_STATUS = 1.0
# ``ru_maxrss`` counts kilobytes on Linux, bytes on macOS.
BYTES_OF_MAXRSS = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class TokenCount:
    """The tokens that were trained on so far."""

    tokens: float
    seconds: float  # since this process began to train


class Record(TrainerCallback):
    """One line of strict JSON per logged step in ``metrics.jsonl``, each step once.

    When a run goes on, the rows of steps that will be taken again are dropped from every file
    beside it.
    Everything logged at one step, training and evaluation, is one line. Beside the trainer's own
    names it holds ``step``, ``max_steps``, ``percentage``, ``epoch``, ``elapsed_seconds`` and
    ``remaining_seconds``; of the time since the line before it ``tokens_per_second``, where the
    trainer counts tokens, and ``memory/peak_gb`` of its GPU, else of the whole process.
    """

    def __init__(self, path: Path, set_status: Callable[..., None], run: Run | None = None):
        self.path = path
        self.run = run or Run(path.parent)
        self.set_status = set_status
        self.line: JsonObject = {}  # the last one
        self.started = time.monotonic()
        self.first_step = 0
        self.seconds_before = 0.0  # that the run has trained before this process
        self.status_written = -math.inf  # seconds since this process began to train
        self.counted: TokenCount | None = None
        self.ended = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.ended = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.ended = False
        if not state.is_world_process_zero:
            return
        for name in ROWS:
            forget_rows(self.path.parent / name, state.global_step)
        self.line = read_last_row(self.path)
        self._restore_lines(state)
        self._drop_figures_of_the_end(state)
        self.seconds_before = self.line.get("elapsed_seconds", 0.0)
        self.started = time.monotonic()
        self.first_step = state.global_step
        self.status_written = -math.inf
        # A run that goes on does not know yet how many tokens it has counted.
        self.counted = None if state.global_step else TokenCount(0.0, 0.0)
        self.set_status(step=state.global_step, max_steps=state.max_steps)

    def _restore_lines(self, state: TrainerState) -> None:
        """Write lines that a power failure has taken again, from the history of the checkpoint."""
        last_step = self.line.get("step", -1)
        elapsed = self.line.get("elapsed_seconds", 0.0)
        for logs in state.log_history:
            if last_step < logs["step"] <= state.global_step:
                self._add(logs["step"], state.max_steps, logs, elapsed, None)

    def _drop_figures_of_the_end(self, state: TrainerState) -> None:
        """Drop the figures of the end of a training from the last line where more steps follow."""
        if state.global_step >= state.max_steps:
            return
        line = {}
        for name, value in self.line.items():
            if name != "total_flos" and not name.startswith("train_"):
                line[name] = value
        if line != self.line:
            self.line = line
            replace_rows(self.path, [self.line])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if control.should_log or control.should_save:  # not at every step: a network disk is slow
            self.run.check_there()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.run.check_there()  # it may have taken long, and a save comes next

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.run.check_there()
        if state.is_world_process_zero:
            sync_rows(self.path.parent)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: JsonObject,
        **_: object,
    ) -> None:
        if not state.is_world_process_zero:
            return
        if self.ended and args.load_best_model_at_end:
            return  # these figures are the best model's, not this step's
        seconds = time.monotonic() - self.started
        self._add_speed(logs, seconds)
        logs["memory/peak_gb"] = round(_peak_bytes() / 1e9, 3)
        elapsed = round(self.seconds_before + seconds, 2)
        remaining = None
        steps = state.global_step - self.first_step
        if steps > 0:
            remaining = round(seconds / steps * (state.max_steps - state.global_step), 2)
        self._add(state.global_step, state.max_steps, logs, elapsed, remaining)
        is_due = seconds > self.status_written + SECONDS_OF_STATUS
        if is_due or state.global_step >= state.max_steps:
            self.status_written = seconds
            self.set_status(step=state.global_step, max_steps=state.max_steps)

    def _add_speed(self, logs: JsonObject, seconds: float) -> None:
        """Add the tokens per second since the last line of a training that counts tokens."""
        tokens = logs.get("num_tokens")
        if tokens is None or "loss" not in logs:
            return
        before = self.counted
        if before is not None and seconds > before.seconds:
            speed = (tokens - before.tokens) / (seconds - before.seconds)
            logs["tokens_per_second"] = round(speed, 1)
        self.counted = TokenCount(tokens, seconds)

    def _add(
        self,
        step: int,
        max_steps: int,
        logs: Node,
        elapsed: float,
        remaining: float | None,
    ) -> None:
        """Write the line of a step, joined with what was logged at this step before."""
        if self.line.get("step") != step:
            self.line = {"step": step}
        percentage = round(100 * step / max_steps, 2) if max_steps else 0.0
        self.line |= {"max_steps": max_steps, "percentage": percentage, **logs}
        self.line |= {"elapsed_seconds": elapsed, "remaining_seconds": remaining}
        replace_rows(self.path, [self.line])


def _peak_bytes() -> float:
    """The most memory of the GPU since the last call, or of this process since its start."""
    if torch.cuda.is_available():
        peak = float(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * BYTES_OF_MAXRSS
