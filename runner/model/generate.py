"""Prompts -> completions, in batches, with the template and the stop rules of the tokenizer.

What a completion is worth is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


@torch.no_grad()
def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    batch_size: int = 64,
    seed: int = 0,
) -> list[str]:
    """One completion per prompt, as text; prompts are strings or chats. Temperature 0 is greedy.

    The caller's random state, the model's mode and the tokenizer's padding side come back as they
    were.
    """
    training, side = model.training, tokenizer.padding_side
    model.eval()
    tokenizer.padding_side = "left"
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    completions = []
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), batch_size):
                batch = _encode(tokenizer, prompts[start : start + batch_size]).to(model.device)
                tokens = model.generate(
                    **batch,
                    max_new_tokens=max_new_tokens,
                    pad_token_id=tokenizer.pad_token_id,
                    **sampling,
                )
                new = tokens[:, batch["input_ids"].shape[1] :]
                completions += tokenizer.batch_decode(new, skip_special_tokens=True)
    finally:
        model.train(training)
        tokenizer.padding_side = side
    return completions


def _encode(tokenizer: Any, prompts: Sequence[Any]) -> Any:
    if isinstance(prompts[0], str):
        return tokenizer(list(prompts), return_tensors="pt", padding=True)
    return tokenizer.apply_chat_template(
        list(prompts),
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        padding=True,
    )
