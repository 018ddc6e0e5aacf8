"""The clock of a side of ``card.py``, as a callback of its trainer.

Where two sides share a socket they take turns step by step, so that a machine that is slow for a
moment is slow for both.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback


class Turns(TrainerCallback):
    """The clock of a side: tokens, loss and seconds of each step, and the peak of its memory.

    From the begin of a step to the begin of the next; with a ``baton``, the number of a socket, the
    time in which the other side has its turn does not count. ``first`` says that it begins.
    """

    def __init__(self, result: str, baton: int | None = None, first: bool = True):
        self.result = Path(result)
        self.baton = None if baton is None else socket.socket(fileno=baton)
        self.has_turn = first or baton is None
        self.steps: list[dict[str, float]] = []
        self.peak = 0
        self.tokens = 0.0
        self.tokens_before = 0.0
        self.loss = 0.0
        self.started: float | None = None
        self.cpu_started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_step()
        if self.baton is not None:
            with contextlib.suppress(ConnectionError):  # the other side has ended
                if self.started is not None:
                    self.baton.sendall(b".")
                    self.has_turn = False
                if not self.has_turn:
                    self.baton.recv(1)
                    self.has_turn = True
        self.started = time.perf_counter()
        self.cpu_started = time.process_time()

    def _end_step(self) -> None:
        if self.started is None:
            return
        _wait_for_device()
        self.steps.append(
            {
                "tokens": self.tokens - self.tokens_before,
                "loss": self.loss,
                "seconds": time.perf_counter() - self.started,
                "cpu_seconds": time.process_time() - self.cpu_started,
            }
        )
        self.tokens_before = self.tokens

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Before the log, with which the runner begins another peak.
        self.peak = max(self.peak, _peak_bytes())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.tokens = logs.get("num_tokens", 0.0)
            self.loss = logs["loss"]

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        self._end_step()
        if self.baton is not None:
            self.baton.close()
        figures = {
            "steps": self.steps,
            "peak_gb": self.peak / 1e9,
            "is_sharded": isinstance(model, FSDPModule),
        }
        self.result.write_text(json.dumps(figures))


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _peak_bytes() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
