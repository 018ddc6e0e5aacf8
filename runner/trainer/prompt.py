"""Prompts as rows hold them -> token ids, and whether PPO can work with them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from runner.errors import ConfigError, DataError, Fault


def to_prompt_ids(tokenizer: Any, prompt: Any, row: Mapping[str, Any]) -> list[int]:
    """The token ids of a prompt, a chat opened for the answer with the tools of its row."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return tokenizer.apply_chat_template(
        prompt,
        tools=row.get("tools"),
        add_generation_prompt=True,
        return_dict=False,
        **row.get("chat_template_kwargs") or {},
    )


def find_stop_ids(stop_token: str | None, stop_token_id: int | None, model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a completion: with ``eos`` those that tokenizer and model declare, and a further one."""
    own = [] if stop_token_id is None else [stop_token_id]
    if stop_token is None:
        return tuple(own)
    of_model = model.generation_config.eos_token_id
    declared = [tokenizer.eos_token_id, *(of_model if isinstance(of_model, list) else [of_model])]
    ids = sorted({*own, *(token for token in declared if token is not None)})
    if not ids:
        found, cure = "the tokenizer has no end token", "trainer.args.stop_token_id=<id>, or stop_token=null"
        raise ConfigError(Fault("trainer.args.stop_token", found, "a token that ends a completion", cure))
    return tuple(ids)


def check_rows(rows: Any, model: Any, tokenizer: Any, *, needed: int, response_length: int) -> None:
    """Raise DataError for rows that PPO would loop over for ever, or that the model cannot hold.

    A stream is not looked at: its length is not known, and its rows come once.
    """
    columns = getattr(rows, "column_names", None)
    if columns is not None and "prompt" not in columns:
        raise DataError(Fault("dataset", f"columns {', '.join(columns)}", "a column prompt"))
    if not hasattr(rows, "__len__"):
        return
    faults = list(_faults_of_prompts(rows, model, tokenizer, response_length))
    if len(rows) < needed:
        cure = "dataset.limit.train=null, or a smaller trainer.args.per_device_train_batch_size"
        faults.append(Fault("dataset", f"{len(rows)} training rows", f"at least the {needed} of one update", cure))
    if faults:
        raise DataError(faults)


def _faults_of_prompts(rows: Any, model: Any, tokenizer: Any, response_length: int) -> Iterable[Fault]:
    """Prompts without a token, and those that leave no room for the response."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    room = longest - response_length
    counts = {}
    for index, prompt in enumerate(rows["prompt"]):
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
        # A token is at least a byte, and a template adds some, so that most prompts need not be counted.
        if not text or len(text.encode()) + 1024 > room:
            counts[index] = len(to_prompt_ids(tokenizer, prompt, rows[index]))
    too_long = [count for count in counts.values() if count > room]
    empty = [index for index, count in counts.items() if count == 0]
    if too_long:
        found = f"{len(too_long)} prompts are too long, one of {max(too_long)} tokens"
        expected = f"at most {room}: the model holds {longest}, the response {response_length}"
        yield Fault("dataset", found, expected, "a smaller trainer.args.response_length, or shorter prompts")
    if empty:
        yield Fault("dataset", f"{len(empty)} prompts without a token, the first in row {empty[0]}")
