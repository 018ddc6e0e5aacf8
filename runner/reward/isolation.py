"""Contexts in which code of the user's leaves the training as it was."""

import contextlib
import hashlib
import os
import random
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from runner.io.terminal import keep_output


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Keep the training's autograd, dtype, folder and output, whatever the body does with them."""
    dtype = torch.get_default_dtype()
    folder = os.getcwd()
    stdout = sys.stdout
    stderr = sys.stderr
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_default_dtype(dtype)
        os.chdir(folder)
        keep_output(stdout, stderr)


@contextlib.contextmanager
def random_state_kept(devices: Sequence[int] | None = None) -> Iterator[None]:
    """Leave every source of random numbers as it was; of accelerators these, or with None all."""
    state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


@contextlib.contextmanager
def undisturbed(name: str, completions: Sequence[object]) -> Iterator[None]:
    """As :func:`contained`, and with random numbers of the body's own.

    They follow from name and completions, so that a resumed run draws the same.
    """
    text = f"{name} {completions}".encode(errors="replace")
    digest = hashlib.sha256(text).digest()
    seed = int.from_bytes(digest[:4])
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with contained(), random_state_kept(devices):
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        yield
