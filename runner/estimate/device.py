"""This machine: what memory it has to give, and how fast it multiplies."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

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
    """The device that a run here would train on, and what it may reach: from the best of a few large products.

    Its memory is what is free of it, or for a CPU what the container may have where that is less.
    """
    import psutil
    import torch
    from torch.utils.benchmark import Timer

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
