"""Token ids of prompts -> completions with their log-probabilities: the one sampler.

    sample(model, prompts, how, noise_BR)     a completion for each prompt
    uniform(length, generator=seeded_generator(seed, row, sample))      the noise of one completion

The token is the one in whose share of the cumulated probabilities its noise falls. So a completion
depends on the model, its prompt and its noise alone, not on the rows beside it or on what was
sampled before; but for rounding, which differs where the batches do. How a prompt becomes tokens is
in ``completion``.

Letters at the end of a tensor's name are its shape: B rows, P prompt tokens, T all tokens so far, R
response tokens, V vocabulary.
"""

import functools
import hashlib
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, StaticLayer
from transformers.generation import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runner.errors import EnvironmentFault, Fault
from runner.generate.padding import (
    Prompts,
    group_alike,
    join_media_inputs,
    media_inputs_of,
    pad,
    split_by_rows,
)
from runner.generate.roomy_cache import build_cache, fill_places
from runner.io.temporary import temporarily
from runner.model.adapted import Model as Model
from runner.model.adapted import is_adapted

# Layers whose cache keeps a key and a value per token, so that finished rows can leave it.
CACHED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
# Devices that add from left to right. Elsewhere a cumulated sum is put together from parts, and
# rounding can make it fall.
IN_ORDER = frozenset({"cpu"})
FLOAT64 = {"mps": torch.float32}  # Apple's have none
# Steps of a graph between two checks if all rows have ended, which wait for the device.
STEPS_PER_CHECK = 8

Decoded: TypeAlias = list[tuple[Tensor, Tensor]]  # of each row its tokens and log-probabilities
# Called after each step with the tokens of the rows that are still being written.
OnStep: TypeAlias = Callable[[Tensor], object]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from, and the end of completions.

    The settings of a model's own generation config are ignored.
    """

    max_new_tokens: int = 64
    stop_ids: tuple[int, ...] = ()
    temperature: float = 1.0  # 0 takes the likeliest token
    rows: int = 64  # sampled side by side
    top_k: int = 0  # 0 leaves every token in
    top_p: float = 1.0  # 1 leaves every token in
    # The temperature of log-probabilities, which are those of all tokens. None: that of sampling.
    logprob_temperature: float | None = None
    max_length: int | None = None  # of prompt and completion together
    min_p: float = 0.0  # times the likeliest token's probability; 0 leaves every token in
    shares_prefill: bool = False  # a prompt that several rows have is read once

    def limit(self, prompt: Sequence[int]) -> int:
        """The most tokens that may follow a prompt."""
        if self.max_length is None:
            return self.max_new_tokens
        return min(self.max_new_tokens, self.max_length - len(prompt))


@dataclass
class Responses:
    """One completion per prompt, on the CPU."""

    tokens: list[Tensor]  # ids up to and with the stop token
    logprobs: list[Tensor]


# From prompts, the distribution and the noise [B, R] to a completion for each prompt: ``sample`` of
# a model, or an engine beside it.
Sampler: TypeAlias = Callable[[Prompts, Sampling, Tensor], Responses]


@torch.no_grad()
def sample(
    model: Model,
    prompts: Prompts,
    how: Sampling,
    noise_BR: Tensor,
    *,
    engine: str = "auto",
    halves: bool = False,
    on_step: OnStep | None = None,
) -> Responses:
    """Sample a completion for each prompt; prompts of like length go together.

    The ``engine`` is loop, graph or generate; auto chooses. Where memory does not suffice, half as
    many rows are sampled side by side if ``halves``, which changes no completion; without it the
    error is the caller's, which may want to remember it. ``on_step`` gets the tokens as they
    come, which no graph does; what it raises ends the sampling.
    """
    decode = _find_decoder(model, prompts, engine, on_step)
    decoded: dict[int, tuple[Tensor, Tensor]] = {}
    with whole(model):
        model = _without_wrapper(model)
        noise_BR = noise_BR.to(model.device, FLOAT64.get(model.device.type, torch.float64))
        waiting = _split_prompts(prompts, how.rows)
        while waiting:
            rows = waiting.pop(0)
            try:
                chosen_prompts = [prompts[row] for row in rows]
                results = decode(model, chosen_prompts, how, noise_BR[rows])
                decoded.update(zip(rows, results, strict=True))
                continue
            except torch.OutOfMemoryError as error:
                # The other processes would wait for a pass that this one does not take.
                if not halves or _is_sharded(model):
                    raise
                if len(rows) == 1:
                    raise EnvironmentFault(
                        Fault(
                            where="memory",
                            found=f"a prompt of {len(prompts[rows[0]])} tokens alone does not fit",
                            expected="more of it",
                            fix="model.dtype=bfloat16, or shorter completions",
                        )
                    ) from error
            # Behind the handler, because the traceback keeps the tensors.
            if torch.accelerator.is_available():
                torch.accelerator.empty_cache()
            log.warning(
                "%d prompts side by side do not fit into memory; half of them will", len(rows)
            )
            half = len(rows) // 2
            waiting[:0] = [rows[:half], rows[half:]]
    responses = Responses([], [])
    for row in range(len(prompts)):
        tokens_R, logprobs_R = decoded[row]
        responses.tokens.append(tokens_R)
        responses.logprobs.append(logprobs_R)
    return responses


def _find_decoder(
    model: Model, prompts: Prompts, engine: str, on_step: OnStep | None
) -> Callable[..., Decoded]:
    decoders: dict[str, Callable[..., Decoded]] = {
        "loop": _decode_by_loop,
        "graph": _decode_by_graph,
        "generate": _decode_by_generate,
    }
    # With media the model itself must count the positions.
    if any(media_inputs_of(prompt) for prompt in prompts):
        engine = "generate"
    elif engine == "auto":
        engine = choose_engine(model)
    if on_step is None:
        return decoders[engine]
    if engine == "graph":
        engine = "loop"
    return functools.partial(decoders[engine], on_step=on_step)


def _split_prompts(prompts: Prompts, size: int) -> list[list[int]]:
    """The numbers of the prompts that are sampled side by side."""
    groups = []
    for alike in group_alike(prompts):
        lengths = [len(prompts[row]) for row in alike]
        for group in split_by_rows(lengths, size):
            groups.append([alike[index] for index in group])
    return groups


# --- The model ----------------------------------------------------------------------------------


@contextmanager
def whole(*models: nn.Module) -> Iterator[None]:
    """Gather inside the weights that FSDP2 has sharded, so that each process may take passes alone.

    All processes enter it together. After it layers are sharded again after each forward pass, also
    where ``reshard_after_forward`` is off, which costs time and changes no number.
    """
    for root in models:
        if isinstance(root, FSDPModule):
            # FSDP2 looks at all of a model in the first pass through its root, and refuses to where
            # a pass through a part came before. So any pass through the root comes first.
            register_fsdp_forward_method(root, "extra_repr")
            root.extra_repr()
            del root.extra_repr
    shards: list[FSDPModule] = []
    for model in models:
        shards += [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in shards:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in shards:
            module.reshard()
            module.set_reshard_after_forward(True, recurse=False)


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Leave dropout out of the model inside; then each of its parts has the mode of before."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def choose_engine(model: Model) -> str:
    """The fastest engine for a model on its device: graph on CUDA, else loop.

    It is generate where neither can.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    has_cache = kinds <= CACHED_LAYERS and hasattr(config, "num_attention_heads")
    model = _without_wrapper(model)
    # Without its cache a model would see nothing but the token before.
    takes_cache = cache_argument(type(model).forward) is not None
    if not has_cache or not takes_cache or is_adapted(model):
        return "generate"
    has_windows = not kinds <= {"full_attention"} or bool(getattr(config, "sliding_window", None))
    has_graph = getattr(model, "_can_compile_fullgraph", False) and not has_windows
    # The last question looks at every weight.
    if has_graph and model.device.type == "cuda" and not _is_sharded(model):
        return "graph"
    return "loop"


def _is_sharded(model: Model) -> bool:
    for weight in model.parameters():
        if isinstance(weight, DTensor) or hasattr(weight, "ds_id"):
            return True
    return False


def _without_wrapper(model: Model) -> Model:
    """The model inside of peft's wrapper, whose layers keep their adapters.

    A learnt prompt needs the wrapper, which puts it before the text.
    """
    if is_adapted(model) and not model.active_peft_config.is_prompt_learning:
        return model.get_base_model()
    return model


# --- The choice of a token ----------------------------------------------------------------------


def seeded_generator(*parts: object) -> torch.Generator:
    """Random numbers that follow from these parts alone, so that a resume needs no saved state."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def uniform(*shape: int, generator: torch.Generator) -> Tensor:
    """Uniform numbers of 48 bits, in float64.

    The 24 bits of ``torch.rand`` are too few for 150,000 words.
    """
    coarse = torch.rand(shape, generator=generator)
    fine = torch.rand(shape, generator=generator)
    return coarse.double() + fine.double() / 2**24


def sample_token(logits_BV: Tensor, noise_B: Tensor, how: Sampling) -> tuple[Tensor, Tensor]:
    """A token per row, and its log-probability.

    It is the one in whose share of the cumulated probabilities the uniform noise falls; at
    temperature 0 the likeliest.
    """
    logits_BV = logits_BV.float()
    temperature = how.temperature or 1.0
    logprob_temperature = how.logprob_temperature or temperature
    logprobs_BV = torch.log_softmax(logits_BV / logprob_temperature, -1)
    if how.temperature == 0:
        token_B1 = logits_BV.argmax(-1, keepdim=True)
    else:
        sampled_BV = logprobs_BV
        if how.top_k or how.top_p < 1 or how.min_p or temperature != logprob_temperature:
            sampled_BV = torch.log_softmax(truncate(logits_BV / temperature, how), -1)
        kind = sampled_BV.device.type
        # Sums in float32 would move the shares of 150,000 words, by 1.5e-3 in total variation.
        cumulated_BV = sampled_BV.exp().cumsum(-1, dtype=FLOAT64.get(kind, torch.float64))
        if kind not in IN_ORDER:
            cumulated_BV = cumulated_BV.cummax(-1).values
        aim_B1 = (noise_B * cumulated_BV[:, -1]).unsqueeze(1)
        token_B1 = torch.searchsorted(cumulated_BV, aim_B1, right=True)
        token_B1 = token_B1.clamp_(max=logits_BV.shape[1] - 1)
    return token_B1.squeeze(1), logprobs_BV.gather(1, token_B1).squeeze(1)


def truncate(logits_BV: Tensor, how: Sampling) -> Tensor:
    """The logits, minus infinity where top-k, top-p or min-p leave a token out."""
    warpers = LogitsProcessorList()
    if how.top_k:
        warpers.append(TopKLogitsWarper(how.top_k))
    if how.top_p < 1:
        warpers.append(TopPLogitsWarper(how.top_p))
    if how.min_p:
        warpers.append(MinPLogitsWarper(how.min_p))
    return warpers(torch.empty(0, dtype=torch.long), logits_BV)


# --- Engines ------------------------------------------------------------------------------------


def _decode_by_loop(
    model: Model,
    prompts: list[Sequence[int]],
    how: Sampling,
    noise_BR: Tensor,
    on_step: OnStep | None = None,
) -> Decoded:
    """Token by token; finished rows leave the cache, so that none waits for the longest."""
    device = model.device
    limits = [how.limit(prompt) for prompt in prompts]
    longest = max(limits)
    tokens_BR = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    logprobs_BR = torch.zeros(tokens_BR.shape, device=device)
    limits_B = torch.tensor(limits, device=device)
    lengths_B = torch.zeros_like(limits_B)
    stop_ids = torch.tensor(how.stop_ids, device=device, dtype=torch.long)

    # Prefill: the cache of the prompts.
    read_prompts = prompts
    if how.shares_prefill:
        read_prompts, numbers = _distinct_prompts(prompts)
    ids_BP, mask = pad(read_prompts, device, side="left")
    is_ragged = not bool(mask.all())  # else no mask is needed
    cache = build_cache(model.config)
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    logits_BV = decode_step(model, cache, ids_BP, mask if is_ragged else None, position_ids)
    if how.shares_prefill:
        rows_B = torch.tensor(numbers, device=device)
        cache.batch_select_indices(rows_B)
        logits_BV = logits_BV[rows_B]
        mask = mask[rows_B]

    live_B = torch.arange(len(prompts), device=device)  # the rows that are still being written
    position_ids = mask.sum(1, keepdim=True)
    for step in range(longest):
        token_B, logprob_B = sample_token(logits_BV, noise_BR[live_B, step], how)
        tokens_BR[live_B, step] = token_B
        logprobs_BR[live_B, step] = logprob_B
        if on_step is not None:
            on_step(token_B)
        ended_B = torch.isin(token_B, stop_ids) | (limits_B[live_B] == step + 1)
        if ended_B.any():
            lengths_B[live_B[ended_B]] = step + 1
            if ended_B.all():
                break
            going = fill_places(ended_B)
            cache.batch_select_indices(going)
            live_B = live_B[going]
            token_B = token_B[going]
            position_ids = position_ids[going]
            mask = mask[going]
        if is_ragged:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        logits_BV = decode_step(
            model, cache, token_B.unsqueeze(1), mask if is_ragged else None, position_ids
        )
        position_ids = position_ids + 1
    return _cut_rows(tokens_BR, logprobs_BR, lengths_B)


def _distinct_prompts(
    prompts: list[Sequence[int]],
) -> tuple[list[Sequence[int]], list[int]]:
    """Each prompt once, and for each row the number of its prompt among them."""
    numbers: dict[tuple[int, ...], int] = {}
    for prompt in prompts:
        numbers.setdefault(tuple(prompt), len(numbers))
    distinct: list[Sequence[int]] = list(numbers)
    return distinct, [numbers[tuple(prompt)] for prompt in prompts]


def _cut_rows(tokens_BR: Tensor, logprobs_BR: Tensor, lengths_B: Tensor) -> Decoded:
    tokens_BR = tokens_BR.cpu()
    logprobs_BR = logprobs_BR.cpu()
    rows = []
    for row, length in enumerate(lengths_B.tolist()):
        tokens_R = tokens_BR[row, :length].clone()
        logprobs_R = logprobs_BR[row, :length].clone()
        rows.append((tokens_R, logprobs_R))
    return rows


def decode_step(
    model: Model, cache: Cache, ids_BT: Tensor, mask: Tensor | None, position_ids: Tensor
) -> Tensor:
    """The logits [B, V] after further tokens, which are added to the cache."""
    # Not every architecture counts positions.
    arguments = {"position_ids": position_ids, "logits_to_keep": 1}
    names = _arguments_of(type(model).forward)
    taken: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in names:
            taken[name] = value
    cache_name = cache_argument(type(model).forward)
    if cache_name is not None:
        taken[cache_name] = cache
    outputs = model(input_ids=ids_BT, attention_mask=mask, use_cache=True, **taken)
    logits_BV: Tensor = outputs.logits[:, -1]
    return logits_BV


def cache_argument(forward: Callable[..., object]) -> str | None:
    """The name that a forward pass has for its cache; None where it takes none.

    transformers 5.24 renamed ``past_key_values`` to ``cache``.
    """
    for name in ("cache", "past_key_values"):
        if name in _arguments_of(forward):
            return name
    return None


@functools.cache
def _arguments_of(forward: Callable[..., object]) -> frozenset[str]:
    """The names of the arguments of a forward pass."""
    return frozenset(inspect.signature(forward).parameters)


def _decode_by_graph(
    model: Model, prompts: list[Sequence[int]], how: Sampling, noise_BR: Tensor
) -> Decoded:
    """As the loop, with a cache of one size, so that CUDA can replay a step.

    Finished rows stay, which costs no time.
    """
    device = model.device
    limits = [how.limit(prompt) for prompt in prompts]
    longest = max(limits)
    ids_BP, mask_BP = pad(prompts, device, side="left")
    rows, length = ids_BP.shape
    tokens_BR = torch.zeros(rows, longest, dtype=torch.long, device=device)
    logprobs_BR = torch.zeros(tokens_BR.shape, device=device)
    layers = model.config.get_text_config().num_hidden_layers
    room = length + longest
    cache_layers = [CastLayer(max_cache_len=room) for _ in range(layers)]
    cache = Cache(layers=cache_layers)
    prompt_positions_BP = (mask_BP.cumsum(1) - 1).clamp(min=0)
    logits_BV = decode_step(model, cache, ids_BP, mask_BP, prompt_positions_BP)
    mask_B11T = torch.nn.functional.pad(mask_BP.bool(), (0, longest))[:, None, None]
    position_ids = mask_BP.sum(1, keepdim=True)
    step_1 = torch.zeros(1, dtype=torch.long, device=device)

    def step() -> None:
        """Sample a token of each row and read it; every tensor changes in its place."""
        noise_B = noise_BR.index_select(1, step_1)[:, 0]
        token_B, logprob_B = sample_token(logits_BV, noise_B, how)
        tokens_BR.index_copy_(1, step_1, token_B[:, None])
        logprobs_BR.index_copy_(1, step_1, logprob_B[:, None])
        mask_B11T.index_fill_(3, step_1 + length, True)
        logits_BV.copy_(decode_step(model, cache, token_B[:, None], mask_B11T, position_ids))
        position_ids.add_(1)
        step_1.add_(1)

    replay: Callable[[], object] = step
    stop_ids = torch.tensor(how.stop_ids, dtype=torch.long, device=device)
    for number in range(1, longest + 1):
        replay()
        # Recorded after a step, which has loaded every kernel.
        if number == 1 and longest > 2 and device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            replay = graph.replay
        if number % STEPS_PER_CHECK == 0:
            has_ended_B = torch.isin(tokens_BR[:, :number], stop_ids).any(1)
            if has_ended_B.all():
                break
    return _cut_at_stops(tokens_BR, logprobs_BR, how, limits)


class CastLayer(StaticLayer):
    """Keys and values of one layer in one type: that of attention, which casts them in any case.

    Under autocast rotated keys come in float32 beside values in bfloat16; to keep them so would be
    to cast all of them for each token.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values of further tokens; gives those of all tokens."""
        kind = value_states.device.type
        dtype = value_states.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        key_states = key_states.to(dtype)
        value_states = value_states.to(dtype)
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        return keys, values


def _decode_by_generate(
    model: Model,
    prompts: list[Sequence[int]],
    how: Sampling,
    noise_BR: Tensor,
    on_step: OnStep | None = None,
) -> Decoded:
    """By ``model.generate``, for models whose cache or positions are a matter of their own."""
    ids_BP, mask_BP = pad(prompts, model.device, side="left")
    limits = [how.limit(prompt) for prompt in prompts]
    choice = TokenChoice(how, noise_BR, on_step)
    config = GenerationConfig(
        max_new_tokens=max(limits),
        do_sample=False,
        eos_token_id=list(how.stop_ids) or None,
        pad_token_id=0,
    )
    inner = model.get_base_model() if is_adapted(model) else model
    # The model's own settings would fill in what ours leave open.
    with temporarily(inner, generation_config=GenerationConfig()):
        model.generate(
            input_ids=ids_BP,
            attention_mask=mask_BP,
            **join_media_inputs(prompts, model.device, "left"),
            generation_config=config,
            logits_processor=LogitsProcessorList([choice]),
        )
    tokens_BR = torch.stack(choice.tokens, 1)
    return _cut_at_stops(tokens_BR, torch.stack(choice.logprobs, 1), how, limits)


class TokenChoice(LogitsProcessor):
    """The choice of :func:`sample_token` in ``model.generate``: no other token is left to a row."""

    def __init__(self, how: Sampling, noise_BR: Tensor, on_step: OnStep | None = None):
        self.how = how
        self.noise_BR = noise_BR
        self.on_step = on_step
        self.tokens: list[Tensor] = []
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores that leave each row its chosen token."""
        noise_B = self.noise_BR[:, len(self.tokens)]
        token_B, logprob_B = sample_token(scores, noise_B, self.how)
        self.tokens.append(token_B)
        self.logprobs.append(logprob_B)
        if self.on_step is not None:
            self.on_step(token_B)
        return torch.full_like(scores, -math.inf).scatter(1, token_B[:, None], 0.0)


def _cut_at_stops(
    tokens_BR: Tensor, logprobs_BR: Tensor, how: Sampling, limits: list[int]
) -> Decoded:
    tokens_BR = tokens_BR.cpu()
    lengths = []
    for tokens_R, limit in zip(tokens_BR, limits, strict=True):
        length = len(cut(tokens_R, how.stop_ids))
        lengths.append(min(length, limit))
    return _cut_rows(tokens_BR, logprobs_BR, torch.tensor(lengths))


def cut(tokens_R: Tensor, stop_ids: Sequence[int]) -> Tensor:
    """The tokens up to and with the first stop token."""
    stop_ids_N = torch.tensor(stop_ids, dtype=torch.long, device=tokens_R.device)
    stops = torch.isin(tokens_R, stop_ids_N).nonzero()
    if not len(stops):
        return tokens_R
    return tokens_R[: int(stops[0]) + 1]
