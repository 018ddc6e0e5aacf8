"""Token ids of prompts -> completions with their log-probabilities, each drawn with random numbers of its own.

A completion depends on the model, its prompt and its numbers alone, not on what is beside it in the batch or was
generated before; rounding aside, which only differs where the batches do. How a prompt is spelt is not decided here.
Letters at the end of a tensor's name: B rows, T tokens, R new tokens, V words of the vocabulary.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from runner.errors import EnvironmentFault, Fault

# Layers whose cache keeps a key and a value per token, so that finished rows can leave it.
CACHED = {"full_attention", "sliding_attention", "chunked_attention"}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. What a model's own generation settings say of it is not asked.

    ``temperature`` 0 takes the likeliest token. ``top_k`` 0 and ``top_p`` 1 leave every token in.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Ask:
    """A completion that is wanted; ``row`` and ``sample`` number its random numbers, ``most`` is its longest."""

    ids: Sequence[int]
    row: int
    sample: int = 0
    most: int | None = None


@dataclass
class Drawn:
    """Token ids up to and with the stop token, the log-probability of each at temperature 1, and why it ended."""

    tokens: list[int]
    log_probs: list[float]
    finish: str  # stop or length

    @property
    def log_probability(self) -> float:
        return math.fsum(self.log_probs)


def draw_batch(
    model: Any,
    asks: Sequence[Ask],
    how: Sampling,
    stop_ids: Sequence[int],
    hear: Callable[[list[int]], None] | None = None,
) -> list[Drawn]:
    """The completion of each ask, generated side by side; where memory does not suffice, half of them at a time.

    ``hear`` is told the tokens of a single ask as they come.
    """
    engine = _draw_by_loop if _has_plain_cache(model) else _draw_by_generate
    try:
        with torch.no_grad():
            return engine(model, asks, how, stop_ids, hear)
    except torch.OutOfMemoryError as error:
        if _is_spread(model):  # the others would wait for a pass that this process does not take
            raise
        if len(asks) == 1:
            longest = f"a prompt of {len(asks[0].ids)} tokens alone does not fit"
            cure = "model.dtype=bfloat16, or shorter completions"
            raise EnvironmentFault(Fault("memory", longest, "more of it", cure)) from error
    # Behind the handler, because the traceback keeps the tensors.
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    log.warning("%d prompts side by side do not fit into memory; half of them will", len(asks))
    half = len(asks) // 2
    return draw_batch(model, asks[:half], how, stop_ids) + draw_batch(model, asks[half:], how, stop_ids)


def _is_spread(model: Any) -> bool:
    """Whether processes hold the weights between them, so that all of them have to take the same passes."""
    return any(isinstance(weight, DTensor) or hasattr(weight, "ds_id") for weight in model.parameters())


def in_batches(asks: Sequence[Ask], size: int) -> list[list[Ask]]:
    """The asks with prompts of like length together, the longest first, so that what does not fit is seen at once."""
    order = sorted(asks, key=lambda ask: (-len(ask.ids), ask.row, ask.sample))
    return [order[start : start + size] for start in range(0, len(order), size)]


def longest_text(model: Any) -> int | None:
    """The most tokens that a model holds, prompt and completion; None where its config does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


# --- One token ----------------------------------------------------------------------------------


def noise_of(how: Sampling, ask: Ask) -> Tensor:
    """Uniform numbers [R] below 1, one for each token that may be drawn; equal for equal seed, row and sample."""
    generator = np.random.default_rng([how.seed, ask.row, ask.sample])
    return torch.from_numpy(generator.random(how.max_new_tokens, dtype=np.float32))


def pick(logits_BV: Tensor, noise_B: Tensor, how: Sampling) -> tuple[Tensor, Tensor]:
    """A token per row, the likeliest or where its noise falls in the cumulated probabilities, and its log-probability.

    The log-probability is that of the whole distribution at temperature 1, however the token was drawn.
    """
    logits_BV = logits_BV.float()
    if how.temperature == 0:
        token_B = logits_BV.argmax(-1)
    else:
        cumulated_BV = truncate(logits_BV / how.temperature, how).softmax(-1).cumsum(-1)
        total_B1 = cumulated_BV[:, -1:]
        found_B1 = torch.searchsorted(cumulated_BV, noise_B[:, None] * total_B1, right=True)
        last_B1 = (cumulated_BV < total_B1).sum(-1, keepdim=True)  # rounding must not lead behind what is possible
        token_B = torch.minimum(found_B1, last_B1).squeeze(1)
    return token_B, logits_BV.log_softmax(-1).gather(1, token_B[:, None]).squeeze(1)


def truncate(logits_BV: Tensor, how: Sampling) -> Tensor:
    """The logits without what top-k and top-p leave out, which becomes minus infinity."""
    if 0 < how.top_k < logits_BV.shape[-1]:
        least_B1 = logits_BV.topk(how.top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -math.inf)
    if how.top_p < 1:
        sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
        probs_BV = sorted_BV.softmax(-1)
        beyond_BV = probs_BV.cumsum(-1) - probs_BV >= how.top_p  # the first that reaches it stays
        beyond_BV[:, 0] = False
        logits_BV = logits_BV.masked_fill(beyond_BV.scatter(1, order_BV, beyond_BV), -math.inf)
    return logits_BV


# --- Own loop -----------------------------------------------------------------------------------


def _draw_by_loop(model: Any, asks: Sequence[Ask], how: Sampling, stop_ids: Sequence[int], hear: Any) -> list[Drawn]:
    """Token by token; rows that are finished leave the cache, so that nobody waits for the longest."""
    model = model.get_base_model() if isinstance(model, PeftModel) else model  # its layers keep their adapters
    device = model.device
    input_ids, mask = _pad_left(asks, device)
    ragged = not bool(mask.all())
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    noise_BR = torch.stack([noise_of(how, ask) for ask in asks]).to(device)
    most_B = torch.tensor([_most(ask, how) for ask in asks], device=device)
    stops = torch.tensor(list(stop_ids), device=device, dtype=torch.long)
    live = torch.arange(len(asks), device=device)  # the rows that are still being written
    drawn = Written(asks)
    cache, takes = DynamicCache(config=model.config), set(inspect.signature(model.forward).parameters)
    for step in range(how.max_new_tokens):
        optional = {"position_ids": positions, "logits_to_keep": 1}
        given = {name: value for name, value in optional.items() if name in takes}
        given |= {"attention_mask": mask if ragged else None, "past_key_values": cache, "use_cache": True}
        logits = model(input_ids=input_ids, **given).logits[:, -1]
        token, log_prob = pick(logits, noise_BR[live, step], how)
        ended = torch.isin(token, stops)
        drawn.add(live, token, log_prob, ended)
        if hear is not None:
            hear(drawn.tokens[0])
        going = (~ended & (step + 1 < most_B[live])).nonzero().squeeze(1)
        if not len(going):
            break
        if len(going) < len(live):
            cache.batch_select_indices(going)
            live, token, positions, mask = live[going], token[going], positions[going], mask[going]
        input_ids, positions = token.unsqueeze(1), positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return drawn.all()


class Written:
    """What was drawn for each row so far."""

    def __init__(self, asks: Sequence[Ask]):
        self.tokens: list[list[int]] = [[] for _ in asks]
        self.log_probs: list[list[float]] = [[] for _ in asks]
        self.stopped = [False] * len(asks)

    def add(self, live: Tensor, token: Tensor, log_prob: Tensor, ended: Tensor) -> None:
        """One more token of each row that is live."""
        columns = (live.tolist(), token.tolist(), log_prob.tolist(), ended.tolist())
        for row, one, value, stop in zip(*columns, strict=True):
            self.tokens[row].append(one)
            self.log_probs[row].append(value)
            self.stopped[row] = stop

    def all(self) -> list[Drawn]:
        rows = zip(self.tokens, self.log_probs, self.stopped, strict=True)
        return [Drawn(tokens, values, "stop" if stopped else "length") for tokens, values, stopped in rows]


def _pad_left(asks: Sequence[Ask], device: Any) -> tuple[Tensor, Tensor]:
    width = max(len(ask.ids) for ask in asks)
    ids = [[*[0] * (width - len(ask.ids)), *ask.ids] for ask in asks]
    mask = [[*[0] * (width - len(ask.ids)), *[1] * len(ask.ids)] for ask in asks]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _most(ask: Ask, how: Sampling) -> int:
    return min(how.max_new_tokens, ask.most or how.max_new_tokens)


def _has_plain_cache(model: Any) -> bool:
    """Whether the cache of a model is one of keys and values, and nothing stands before the prompt."""
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return False
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or CACHED)
    return kinds <= CACHED and hasattr(config, "num_attention_heads")


# --- By transformers ----------------------------------------------------------------------------


def _draw_by_generate(
    model: Any, asks: Sequence[Ask], how: Sampling, stop_ids: Sequence[int], hear: Any
) -> list[Drawn]:
    """By ``model.generate`` with the same choice of tokens, for caches that the loop does not know."""
    input_ids, mask = _pad_left(asks, model.device)
    choice = Choice(asks, how, stop_ids, model.device)
    config = GenerationConfig(max_new_tokens=how.max_new_tokens, do_sample=False, pad_token_id=0)
    with _without_defaults(model):
        model.generate(
            input_ids=input_ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=LogitsProcessorList([choice]),
            stopping_criteria=StoppingCriteriaList([Ended(choice)]),
        )
    if hear is not None:
        hear(choice.written.tokens[0])
    return choice.written.all()


class Choice(LogitsProcessor):
    """Leaves each row no token but the one that :func:`pick` draws, and keeps it until the row is finished."""

    def __init__(self, asks: Sequence[Ask], how: Sampling, stop_ids: Sequence[int], device: Any):
        self.how, self.written = how, Written(asks)
        self.noise_BR = torch.stack([noise_of(how, ask) for ask in asks]).to(device)
        self.most_B = torch.tensor([_most(ask, how) for ask in asks], device=device)
        self.stops = torch.tensor(list(stop_ids), device=device, dtype=torch.long)
        self.going_B = torch.ones(len(asks), dtype=torch.bool, device=device)
        self.step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token, log_prob = pick(scores, self.noise_BR[:, self.step], self.how)
        ended, live = torch.isin(token, self.stops), self.going_B.nonzero().squeeze(1)
        self.written.add(live, token[live], log_prob[live], ended[live])
        self.step += 1
        self.going_B &= ~ended & (self.step < self.most_B)
        return torch.full_like(scores, -math.inf).scatter(1, token[:, None], 0.0)


class Ended(StoppingCriteria):
    """Tells which rows a choice has finished."""

    def __init__(self, choice: Choice):
        self.choice = choice

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return ~self.choice.going_B


@contextmanager
def _without_defaults(model: Any) -> Iterator[None]:
    """Within it the model has no generation settings of its own, which would fill in what is not given."""
    holder = model.get_base_model() if isinstance(model, PeftModel) else model
    own, holder.generation_config = holder.generation_config, GenerationConfig()
    try:
        yield
    finally:
        holder.generation_config = own
