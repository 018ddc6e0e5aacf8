"""The part ``repeat`` of ``card.py``: the same prompts sampled thrice, and compared bit by bit.

On a GPU no engine repeats its samples; the part shows which kernels of attention do.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from card_setting import Row, Setting
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    "as torch chooses": None,
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}
ENGINES = ("loop", "graph")


def repeat(setting: Setting) -> Iterator[Row]:
    """The same prompts sampled twice, by each engine with each kernel of attention pinned."""
    # Read when the first product is taken: without it cuBLAS may add in another order each time.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = setting.model("qwen")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    draw = random.Random(0)
    prompts = []
    for _ in range(8 if setting.tiny else 64):
        prompts.append([draw.randrange(20) for _ in range(draw.randint(64, 256))])
    for engine in ENGINES:
        for kernel, backend in KERNELS.items():
            yield sample_twice(model, prompts, engine, kernel, backend)


def sample_twice(
    model: Any, prompts: list[list[int]], engine: str, kernel: str, backend: SDPBackend | None
) -> Row:
    """The row of one engine and one kernel: how many completions are equal, bit by bit."""
    from runner.generate.sampler import Sampling, sample, seeded_generator, uniform

    how = Sampling(max_new_tokens=32)
    noise = []
    for row in range(len(prompts)):
        noise.append(uniform(how.max_new_tokens, generator=seeded_generator(0, row)))
    noise_BR = torch.stack(noise)
    side = f"{engine}, {kernel}"
    pinned = nullcontext() if backend is None else sdpa_kernel(backend)
    samples = []
    seconds = []
    try:
        with pinned:
            for _ in range(3):
                started = time.perf_counter()
                samples.append(sample(model, prompts, how, noise_BR, engine=engine))
                seconds.append(time.perf_counter() - started)
    except RuntimeError as error:
        if "kernel" in str(error) or "backend" in str(error):
            return Row(side, note="not for these prompts on this machine")
        raise
    differ = []
    equal = 0
    for row in range(len(prompts)):
        place = first_difference([responses.logprobs[row] for responses in samples])
        tokens = [responses.tokens[row] for responses in samples]
        if place is None and first_difference(tokens) is None:
            equal += 1
        else:
            differ.append(place or 0)
    count = sum(len(tokens) for tokens in samples[0].tokens)
    note = f"{equal} of {len(prompts)} completions equal to the bit, three times"
    if differ:
        note += f"; the first differs from token {min(differ)}"
    return Row(side, tokens_per_second=count / min(seconds), note=note)


def first_difference(tensors: list[torch.Tensor]) -> int | None:
    """The first place in which one of these rows differs from the first row; None without any."""
    lists = [tensor.tolist() for tensor in tensors]
    length = min(map(len, lists))
    for place in range(length):
        if any(values[place] != lists[0][place] for values in lists):
            return place
    return None if all(len(values) == length for values in lists) else length
