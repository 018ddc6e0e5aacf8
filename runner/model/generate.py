"""Prompts -> completions as text, with the template and the stop rules of model and tokenizer.

How a token is drawn is in ``sample``; what a completion is worth is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.model.sample import Ask, Sampling, draw_batch, in_batches

BATCH = 64


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    batch_size: int = BATCH,
    seed: int = 0,
) -> list[str]:
    """One completion per prompt, as text; prompts are strings or chats. Temperature 0 is greedy.

    It does not depend on the size of the batches, which are halved where memory does not suffice. The random state and
    the model's mode are as they were.
    """
    training, ends = model.training, model.generation_config.eos_token_id
    stops = ends if isinstance(ends, list) else [] if ends is None else [ends]
    asks = [Ask(ids, row) for row, ids in enumerate(_encode(tokenizer, prompts))]
    completions = [""] * len(asks)
    model.eval()
    try:
        for batch in in_batches(asks, batch_size):
            drawn = draw_batch(model, batch, Sampling(max_new_tokens, temperature, seed=seed), stops)
            for ask, one in zip(batch, drawn, strict=True):
                completions[ask.row] = tokenizer.decode(one.tokens, skip_special_tokens=True)
    finally:
        model.train(training)
    return completions


def _encode(tokenizer: Any, prompts: Sequence[Any]) -> list[list[int]]:
    if all(isinstance(prompt, str) for prompt in prompts):
        return tokenizer(list(prompts))["input_ids"] if prompts else []
    return tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, return_dict=True)["input_ids"]
