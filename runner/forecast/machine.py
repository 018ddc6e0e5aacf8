"""This machine: what memory it has to give, and how fast it multiplies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REACHED = 0.5  # of the speed of large products: about what the passes of a training reach


@dataclass(frozen=True)
class Device:
    """A device that runs are meant for: ``memory`` in bytes and ``speed`` in operations a second, None where unknown.

    ``how`` says where the speed comes from.
    """

    name: str
    gpu: bool
    memory: int | None = None
    speed: float | None = None
    how: str = ""


def read_memory() -> dict[str, int]:
    """Bytes of memory in all and free, with the limit of the container where that is less."""
    names = {"MemTotal": "of memory", "MemAvailable": "free"}
    found = {}
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            key, _, size = line.partition(":")
            if key in names:
                found[names[key]] = int(size.split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        found |= {"allowed here": limit} if limit < found.get("of memory", 0) else {}
    return found


def this_device() -> Device:
    """The device that a run here would train on."""
    import torch

    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        speed = _speed(torch.device("cuda"), torch.bfloat16, 8192, torch.cuda.synchronize)
        return Device(torch.cuda.get_device_name(), True, free, speed, "half of what large bf16 products reach")
    memory = read_memory()
    free = min((memory[name] for name in ("free", "allowed here") if name in memory), default=None)
    speed = _speed(torch.device("cpu"), torch.float32, 1024, lambda: None)
    return Device("this CPU", False, free, speed, "half of what large products reach")


def _speed(device: Any, kind: Any, size: int, wait: Callable[[], Any]) -> float:
    """Operations a second that a training may reach, from the best of a few large products."""
    import torch

    left, right = (torch.rand(size, size, device=device).to(kind) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        wait()
        began = time.perf_counter()
        left @ right
        wait()
        best = min(best, time.perf_counter() - began)
    return REACHED * 2 * size**3 / best
