"""Token ids of prompts -> completions with their log-probabilities: the one sampler.

    sample(model, prompts, how, noise_BR)     a completion for each prompt
    uniform(length, generator=seeded_generator(seed, row, sample))      the noise of one completion

A token is where its noise falls in the cumulated probabilities. So a completion depends on the model, its prompt and
its noise alone, not on what is beside it in the batch or was sampled before; rounding aside, which only differs where
the batches do. How a prompt becomes tokens is in ``completion``.

Letters at the end of a tensor's name: B rows, P prompt tokens, T further tokens, R response tokens, V vocabulary.
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
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, StaticLayer
from transformers.generation import LogitsProcessor, LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from runner.errors import EnvironmentFault, fault
from runner.generate.batch import Prompts, group_alike, join_pixels, pad, split_by_rows
from runner.io.temporary import temporarily

# Layers whose cache keeps a key and a value per token, so that finished rows can leave it.
CACHED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
# Devices that add from left to right. Elsewhere a scan is put together from parts, and rounding can make it fall.
IN_ORDER = frozenset({"cpu"})
FLOAT64 = {"mps": torch.float32}  # Apple's have none
STEPS_PER_LOOK = 8  # of a graph, after which it is asked if all rows have ended, which waits for the device

Model: TypeAlias = PreTrainedModel | PeftModel
Decoded: TypeAlias = list[tuple[Tensor, Tensor]]  # of each row its tokens and their log-probabilities

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from, and the end of completions; a model's own settings do not count."""

    max_new_tokens: int = 64
    stop_ids: tuple[int, ...] = ()
    temperature: float = 1.0  # 0 takes the likeliest token
    rows: int = 64  # that are sampled side by side
    top_k: int = 0  # leaves every token in, as does
    top_p: float = 1.0
    logprob_temperature: float | None = None  # of log-probabilities, which are of all tokens; None is that of sampling
    max_length: int | None = None  # of prompt and completion together

    def limit(self, prompt: Sequence[int]) -> int:
        """The most tokens that may follow on a prompt."""
        room = self.max_new_tokens if self.max_length is None else self.max_length - len(prompt)
        return min(self.max_new_tokens, room)


@dataclass
class Responses:
    """One completion per prompt, on the CPU: token ids up to and with the stop token, and their log-probabilities."""

    tokens: list[Tensor]
    logprobs: list[Tensor]


@torch.no_grad()
def sample(
    model: Model, prompts: Prompts, how: Sampling, noise_BR: Tensor, *, engine: str = "auto", halves: bool = False
) -> Responses:
    """Sample a completion for each prompt, by ``loop``, ``graph`` or ``generate``; prompts of like length go together.

    Where memory does not suffice, half as many rows are sampled side by side if ``halves``, which changes no
    completion; without it the error is the caller's, which may want to remember it.
    """
    pictured = any(getattr(prompt, "pixels", None) for prompt in prompts)  # where positions are the model's to count
    engine = "generate" if pictured else choose_engine(model) if engine == "auto" else engine
    decode = {"loop": _decode_by_loop, "graph": _decode_by_graph, "generate": _decode_by_generate}[engine]
    with whole(model):
        model = _without_wrapper(model)
        noise_BR = noise_BR.to(model.device, FLOAT64.get(model.device.type, torch.float64))
        found: dict[int, tuple[Tensor, Tensor]] = {}
        waiting = []
        for alike in group_alike(prompts):
            groups = split_by_rows([len(prompts[row]) for row in alike], how.rows)
            waiting += [[alike[index] for index in group] for group in groups]
        while waiting:
            rows = waiting.pop(0)
            try:
                found |= zip(rows, decode(model, [prompts[row] for row in rows], how, noise_BR[rows]), strict=True)
                continue
            except torch.OutOfMemoryError as error:
                if not halves or _is_sharded(model):  # others would wait for a pass that this process does not take
                    raise
                if len(rows) == 1:
                    raise EnvironmentFault(fault("generate.no_memory", tokens=len(prompts[rows[0]]))) from error
            if torch.accelerator.is_available():  # behind the handler, because the traceback keeps the tensors
                torch.accelerator.empty_cache()
            log.warning("%d prompts side by side do not fit into memory; half of them will", len(rows))
            waiting[:0] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    ordered = [found[row] for row in range(len(prompts))]
    return Responses([tokens_R for tokens_R, _ in ordered], [logprobs_R for _, logprobs_R in ordered])


@contextmanager
def whole(*models: nn.Module) -> Iterator[None]:
    """Within it each process has the weights whole that FSDP2 has sharded, and may take passes that others do not take.

    All processes enter it together. After it layers are sharded again after each forward pass, also where
    ``reshard_after_forward`` is off, which costs time and changes no number.
    """
    for root in (model for model in models if isinstance(model, FSDPModule)):
        # FSDP2 looks at all of a model in the first pass through its root, and refuses to where a part came before.
        register_fsdp_forward_method(root, "extra_repr")
        root.extra_repr()
        del root.extra_repr
    shards = [module for model in models for module in model.modules() if isinstance(module, FSDPModule)]
    for module in shards:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in shards:
            module.reshard()
            module.set_reshard_after_forward(True, recurse=False)


def choose_engine(model: Model) -> str:
    """The fastest engine for a model where it is: on CUDA ``graph``, else ``loop``; ``generate`` where neither can."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    is_cached, model = kinds <= CACHED_LAYERS and hasattr(config, "num_attention_heads"), _without_wrapper(model)
    if not is_cached or isinstance(model, PeftModel):
        return "generate"
    static = getattr(model, "_can_compile_fullgraph", False) and kinds <= {"full_attention"}
    is_fit = static and not getattr(config, "sliding_window", None) and model.device.type == "cuda"
    return "loop" if not is_fit or _is_sharded(model) else "graph"  # the last looks at every weight


def _is_sharded(model: Model) -> bool:
    return any(isinstance(weight, DTensor) or hasattr(weight, "ds_id") for weight in model.parameters())


def _without_wrapper(model: Model) -> Model:
    """The model whose layers keep their adapters; a learnt prompt needs the wrapper, which puts it before the text."""
    if isinstance(model, PeftModel) and not model.active_peft_config.is_prompt_learning:
        return model.get_base_model()
    return model


def seeded_generator(*parts: Any) -> torch.Generator:
    """Random numbers that depend on these parts alone, so that nothing hidden has to be saved for a resume."""
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7]))


def uniform(*shape: int, generator: torch.Generator) -> Tensor:
    """Uniform numbers of 48 bits, in float64: those of ``torch.rand``, 24, are too few for 150,000 words."""
    coarse, fine = torch.rand(shape, generator=generator), torch.rand(shape, generator=generator)
    return coarse.double() + fine.double() / 2**24


def sample_token(logits_BV: Tensor, noise_B: Tensor, how: Sampling) -> tuple[Tensor, Tensor]:
    """A token per row, where its uniform noise falls in the cumulated probabilities, and its log-probability."""
    logits_BV, temperature = logits_BV.float(), how.temperature or 1.0
    logprob_temperature = how.logprob_temperature or temperature
    logprobs_BV = torch.log_softmax(logits_BV / logprob_temperature, -1)
    if how.temperature == 0:
        token_B1 = logits_BV.argmax(-1, keepdim=True)
    else:
        sampled_BV = logprobs_BV
        if how.top_k or how.top_p < 1 or temperature != logprob_temperature:
            sampled_BV = torch.log_softmax(truncate(logits_BV / temperature, how), -1)
        kind = sampled_BV.device.type
        # Sums of float32 move the shares of 150,000 words, by 1.5e-3 in total variation.
        cumulated_BV = sampled_BV.exp().cumsum(-1, dtype=FLOAT64.get(kind, torch.float64))
        cumulated_BV = cumulated_BV if kind in IN_ORDER else cumulated_BV.cummax(-1).values
        aim_B1 = (noise_B * cumulated_BV[:, -1]).unsqueeze(1)
        token_B1 = torch.searchsorted(cumulated_BV, aim_B1, right=True).clamp_(max=logits_BV.shape[1] - 1)
    return token_B1.squeeze(1), logprobs_BV.gather(1, token_B1).squeeze(1)


def truncate(logits_BV: Tensor, how: Sampling) -> Tensor:
    """The logits, minus infinity where top-k or top-p leave a token out."""
    warpers = [TopKLogitsWarper(how.top_k)] if how.top_k else []
    warpers += [TopPLogitsWarper(how.top_p)] if how.top_p < 1 else []
    return LogitsProcessorList(warpers)(torch.empty(0, dtype=torch.long), logits_BV)


def _decode_by_loop(model: Model, prompts: list[Sequence[int]], how: Sampling, noise_BR: Tensor) -> Decoded:
    """Token by token; rows that are finished leave the cache, so that nobody waits for the longest."""
    device, limits = model.device, list(map(how.limit, prompts))
    tokens_BR = torch.zeros(len(prompts), max(limits), dtype=torch.long, device=device)
    logprobs_BR = torch.zeros(tokens_BR.shape, device=device)
    limits_B = torch.tensor(limits, device=device)
    lengths_B = torch.zeros_like(limits_B)
    stop_ids = torch.tensor(how.stop_ids, device=device, dtype=torch.long)
    live_B = torch.arange(len(prompts), device=device)  # the rows that are still being written
    ids_BP, mask = pad(prompts, device, side="left")  # prefill: the cache of the prompts
    ragged, cache = not bool(mask.all()), DynamicCache(config=model.config)
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    logits_BV = decode_step(model, cache, ids_BP, mask if ragged else None, position_ids)
    position_ids = mask.sum(1, keepdim=True)
    for step in range(max(limits)):
        token_B, logprob_B = sample_token(logits_BV, noise_BR[live_B, step], how)
        tokens_BR[live_B, step], logprobs_BR[live_B, step] = token_B, logprob_B
        ended_B = torch.isin(token_B, stop_ids) | (limits_B[live_B] == step + 1)
        if ended_B.any():
            lengths_B[live_B[ended_B]] = step + 1
            if ended_B.all():
                break
            going = (~ended_B).nonzero().squeeze(1)
            cache.batch_select_indices(going)
            live_B, token_B, position_ids, mask = live_B[going], token_B[going], position_ids[going], mask[going]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1) if ragged else mask
        logits_BV = decode_step(model, cache, token_B.unsqueeze(1), mask if ragged else None, position_ids)
        position_ids = position_ids + 1
    return _cut_rows(tokens_BR, logprobs_BR, lengths_B)


def _cut_rows(tokens_BR: Tensor, logprobs_BR: Tensor, lengths_B: Tensor) -> Decoded:
    rows = zip(tokens_BR.cpu(), logprobs_BR.cpu(), lengths_B.tolist(), strict=True)
    return [(tokens_R[:length].clone(), logprobs_R[:length].clone()) for tokens_R, logprobs_R, length in rows]


def decode_step(model: Model, cache: Cache, ids_BT: Tensor, mask: Tensor | None, position_ids: Tensor) -> Tensor:
    """The logits [B, V] after further tokens, which are added to the cache."""
    taken = _arguments_of(type(model).forward)
    # transformers 5.24 has another name for the cache.
    further = {"position_ids": position_ids, "logits_to_keep": 1, "cache": cache, "past_key_values": cache}
    further = {name: value for name, value in further.items() if name in taken}
    return model(input_ids=ids_BT, attention_mask=mask, use_cache=True, **further).logits[:, -1]


@functools.cache
def _arguments_of(forward: Callable[..., object]) -> frozenset[str]:
    """The arguments of a kind of model: not every architecture counts positions."""
    return frozenset(inspect.signature(forward).parameters)


def _decode_by_graph(model: Model, prompts: list[Sequence[int]], how: Sampling, noise_BR: Tensor) -> Decoded:
    """As the loop, with a cache of one size, so that CUDA can replay a step; finished rows stay, and cost no time."""
    device, limits = model.device, list(map(how.limit, prompts))
    ids_BP, mask_BP = pad(prompts, device, side="left")
    (rows, length), most = ids_BP.shape, max(limits)
    tokens_BR = torch.zeros(rows, most, dtype=torch.long, device=device)
    logprobs_BR = torch.zeros(tokens_BR.shape, device=device)
    layers = model.config.get_text_config().num_hidden_layers
    cache = Cache(layers=[CastLayer(max_cache_len=length + most) for _ in range(layers)])
    logits_BV = decode_step(model, cache, ids_BP, mask_BP, (mask_BP.cumsum(1) - 1).clamp(min=0))
    mask_B11T = torch.nn.functional.pad(mask_BP.bool(), (0, most))[:, None, None]
    position_ids, step_1 = mask_BP.sum(1, keepdim=True), torch.zeros(1, dtype=torch.long, device=device)

    def step() -> None:
        token_B, logprob_B = sample_token(logits_BV, noise_BR.index_select(1, step_1)[:, 0], how)
        tokens_BR.index_copy_(1, step_1, token_B[:, None])
        logprobs_BR.index_copy_(1, step_1, logprob_B[:, None])
        mask_B11T.index_fill_(3, step_1 + length, True)
        logits_BV.copy_(decode_step(model, cache, token_B[:, None], mask_B11T, position_ids))
        position_ids.add_(1)
        step_1.add_(1)

    replay, stop_ids = step, torch.tensor(how.stop_ids, dtype=torch.long, device=device)
    for number in range(1, most + 1):
        replay()
        if number == 1 and most > 2 and device.type == "cuda":  # after a step that has loaded every kernel
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            replay = graph.replay
        if number % STEPS_PER_LOOK == 0 and torch.isin(tokens_BR[:, :number], stop_ids).any(1).all():
            break
    return _cut_at_stops(tokens_BR, logprobs_BR, how, limits)


class CastLayer(StaticLayer):
    """Keys and values of one layer in one type, that of attention under autocast, which casts them in any case.

    Rotated keys come in float32 beside values in bfloat16; to keep them so is to cast all of them for each token.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        kind, dtype = value_states.device.type, value_states.dtype
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else dtype
        return super().update(key_states.to(dtype), value_states.to(dtype), *args, **kwargs)


def _decode_by_generate(model: Model, prompts: list[Sequence[int]], how: Sampling, noise_BR: Tensor) -> Decoded:
    input_ids, mask = pad(prompts, model.device, side="left")
    limits = list(map(how.limit, prompts))
    choice = TokenChoice(how, noise_BR)
    ends = list(how.stop_ids) or None
    config = GenerationConfig(max_new_tokens=max(limits), do_sample=False, eos_token_id=ends, pad_token_id=0)
    choices, pixels = LogitsProcessorList([choice]), join_pixels(prompts, model.device, "left")
    own = model.get_base_model() if isinstance(model, PeftModel) else model
    with temporarily(own, generation_config=GenerationConfig()):  # whose settings would fill in what is not given
        given = {"input_ids": input_ids, "attention_mask": mask, **pixels}
        model.generate(**given, generation_config=config, logits_processor=choices)
    return _cut_at_stops(torch.stack(choice.tokens, 1), torch.stack(choice.logprobs, 1), how, limits)


def _cut_at_stops(tokens_BR: Tensor, logprobs_BR: Tensor, how: Sampling, limits: list[int]) -> Decoded:
    tokens_BR = tokens_BR.cpu()
    lengths = [min(len(cut(tokens_R, how.stop_ids)), limit) for tokens_R, limit in zip(tokens_BR, limits, strict=True)]
    return _cut_rows(tokens_BR, logprobs_BR, torch.tensor(lengths))


class TokenChoice(LogitsProcessor):
    """The choice of :func:`sample_token` made in ``model.generate``: no other token is left to a row."""

    def __init__(self, how: Sampling, noise_BR: Tensor):
        self.how, self.noise_BR = how, noise_BR
        self.tokens, self.logprobs = list[Tensor](), list[Tensor]()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token_B, logprob_B = sample_token(scores, self.noise_BR[:, len(self.tokens)], self.how)
        self.tokens.append(token_B)
        self.logprobs.append(logprob_B)
        return torch.full_like(scores, -math.inf).scatter(1, token_B[:, None], 0.0)


def cut(tokens_R: Tensor, stop_ids: Sequence[int]) -> Tensor:
    """The tokens up to and with the first stop token."""
    stops = torch.isin(tokens_R, torch.tensor(stop_ids, dtype=torch.long, device=tokens_R.device)).nonzero()
    return tokens_R[: int(stops[0]) + 1] if len(stops) else tokens_R


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Leave dropout out of the model, and each of its parts as it was behind."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
