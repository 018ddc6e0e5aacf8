"""Prompts -> sampled completions: the engines behind one signature.

What a completion earns is in ``score``; what is learned from it in ``ppo``. Letters at the end of a tensor's name: B
rows, P prompt tokens, R response tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from runner.errors import EnvironmentFault, Fault
from runner.trainer.batch import TOKENS_PER_PASS, pad_left, split_by_tokens

# Layers whose cache keeps a key and a value per token, so that finished rows can leave it.
CACHED = {"full_attention", "sliding_attention", "chunked_attention"}


@dataclass(frozen=True)
class Sampling:
    """How completions end and how they are drawn. There is no top-k or top-p: the log-probabilities would be others."""

    length: int
    stop_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    rows: int = 64  # that are generated side by side


@dataclass
class Samples:
    """One completion per prompt, on the CPU: token ids up to and with the stop token, and their log-probabilities."""

    tokens: list[Tensor]
    logprobs: list[Tensor] | None = None


Engine = Callable[[PreTrainedModel | PeftModel, Sequence[Sequence[int]], Sampling, Tensor], Samples]


def build_engine(name: str, policy: PreTrainedModel | PeftModel, vllm_server_base_url: str) -> Engine:
    """What turns prompts into completions: ``engine(policy, prompts, sampling, noise_BR)``.

    ``noise_BR`` are uniform random numbers, one for each token that may be drawn. With them the ``loop`` draws the
    same completion for a row whatever rows are beside it, on however many processes; the other engines take a seed
    from them. ``auto`` is the loop where the cache of the model is one of keys and values, else ``generate``.
    """
    if name == "auto":
        config = policy.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or CACHED)
        name = "loop" if kinds <= CACHED and hasattr(config, "num_attention_heads") else "generate"
    return Server(connect(vllm_server_base_url)) if name == "vllm" else ENGINES[name]


# --- Own loop -----------------------------------------------------------------------------------


@torch.no_grad()
def sample_by_loop(
    policy: PreTrainedModel | PeftModel, prompts: Sequence[Sequence[int]], how: Sampling, noise_BR: Tensor
) -> Samples:
    """Sample token by token; rows that are finished leave the cache, so that nobody waits for the longest.

    Prompts of like length go together. The log-probabilities are those of the distribution that was sampled from.
    """
    tokens: list[Any] = [None] * len(prompts)
    logprobs: list[Any] = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
    for start in range(0, len(order), how.rows):
        rows = order[start : start + how.rows]
        batch = _sample_batch(_without_wrapper(policy), [prompts[row] for row in rows], how, noise_BR[rows])
        for row, ids, values in zip(rows, *batch, strict=True):
            tokens[row], logprobs[row] = ids, values
    return Samples(tokens, logprobs)


def _sample_batch(
    model: PreTrainedModel, prompts: list[Sequence[int]], how: Sampling, noise_BR: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    device, count = model.device, len(prompts)
    tokens_BR = torch.zeros(count, how.length, dtype=torch.long, device=device)
    logprobs_BR = torch.zeros(count, how.length, device=device)
    lengths_B = torch.full((count,), how.length, device=device)
    stop_ids = torch.tensor(how.stop_ids, device=device, dtype=torch.long)
    live = torch.arange(count, device=device)  # the rows that are still being written
    noise_BR = noise_BR.to(device)
    logits_BV, cache, mask = _read(model, prompts)
    position_ids = mask.sum(1, keepdim=True)
    ragged = not bool(mask.all())
    for step in range(how.length):
        token, logprob = draw(logits_BV, noise_BR[live, step], how.temperature)
        tokens_BR[live, step], logprobs_BR[live, step] = token, logprob
        ended = torch.isin(token, stop_ids)
        if ended.any():
            lengths_B[live[ended]] = step + 1
            if ended.all():
                break
            going = _close_ranks(ended)
            cache.batch_select_indices(going)
            live, token, position_ids, mask = live[going], token[going], position_ids[going], mask[going]
        if step + 1 < how.length:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1) if ragged else mask
            logits_BV = _ahead(model, cache, token.unsqueeze(1), mask if ragged else None, position_ids)
            position_ids = position_ids + 1
    tokens_BR, logprobs_BR, lengths = tokens_BR.cpu(), logprobs_BR.cpu(), lengths_B.tolist()
    return (
        [row[:length].clone() for row, length in zip(tokens_BR, lengths, strict=True)],
        [row[:length].clone() for row, length in zip(logprobs_BR, lengths, strict=True)],
    )


def _read(model: PreTrainedModel, prompts: list[Sequence[int]]) -> tuple[Tensor, DynamicCache, Tensor]:
    """The logits [B, V] after prompts, the longest of which come first, their cache, and the mask of their tokens.

    On a CPU, prompts of like length are read together, a number of tokens at a time, if their caches can be joined.
    """
    input_ids, mask = pad_left(prompts, model.device)
    lengths, width = list(map(len, prompts)), mask.shape[1]
    whole = _roomy(DynamicCache(config=model.config))
    plain = bool(whole.layers) and all(isinstance(layer, RoomyLayer) for layer in whole.layers)
    groups = [range(len(prompts))]
    if plain and model.device.type == "cpu":
        groups = split_by_tokens(groups[0], lengths, TOKENS_PER_PASS)
    logits, caches = [], []
    for rows in groups:
        cache = whole if len(groups) == 1 else DynamicCache(config=model.config)
        group = slice(rows[0], rows[-1] + 1), slice(width - lengths[rows[0]], width)
        ids_BP, mask_BP = input_ids[group], mask[group]
        position_ids = (mask_BP.cumsum(1) - 1).clamp(min=0)
        logits.append(_ahead(model, cache, ids_BP, None if mask_BP.all() else mask_BP, position_ids))
        caches.append(cache)
    if len(groups) > 1:
        for layer in whole.layers:
            layer.join([cache.layers.pop(0) for cache in caches])
    return torch.cat(logits), whole, mask


def _ahead(
    model: PreTrainedModel, cache: DynamicCache, ids_BT: Tensor, mask: Tensor | None, position_ids: Tensor
) -> Tensor:
    """The logits [B, V] after further tokens, which are added to the cache."""
    taken, further = _arguments_of(type(model)), {"position_ids": position_ids, "logits_to_keep": 1}
    further = {name: value for name, value in further.items() if name in taken}
    return model(input_ids=ids_BT, attention_mask=mask, past_key_values=cache, use_cache=True, **further).logits[:, -1]


def _close_ranks(ended_B: Tensor) -> Tensor:
    """The rows that go on, the last of them in the places of those that have ended, so that few change theirs."""
    going = (~ended_B).nonzero().squeeze(1)
    ranks = torch.arange(len(going), device=going.device)
    holes = ended_B[: len(going)].nonzero().squeeze(1)
    ranks[holes] = going[len(going) - len(holes) :]
    return ranks


def _roomy(cache: DynamicCache) -> DynamicCache:
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class RoomyLayer(DynamicLayer):
    """Keys and values of a layer in tensors with room for more tokens: what is there is not copied for each of them.

    Nor is a row that keeps its place when others leave.
    """

    ROOM = 64  # tokens

    def __init__(self) -> None:
        super().__init__()
        self.rooms: list[Tensor] = []  # of keys and of values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Take in the states of further tokens, and give those of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        given, count = (key_states, value_states), self.get_seq_length()
        end = count + key_states.shape[-2]
        if not self.rooms or end > self.rooms[0].shape[-2]:
            self._move(given, count, end + self.ROOM)
        for room, states in zip(self.rooms, given, strict=True):
            room[..., count:end, :] = states
        self._show(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows of these places only, in this order."""
        count = self.get_seq_length()
        moved = (indices != torch.arange(len(indices), device=indices.device)).nonzero().squeeze(1)
        for room in self.rooms:
            room[moved, :, :count] = room[indices[moved], :, :count]
        self.rooms = [room[: len(indices)] for room in self.rooms]
        self._show(count)

    def join(self, parts: Sequence[DynamicLayer]) -> None:
        """Take in the states of other rows, one part after the other, their last tokens side by side."""
        self.lazy_initialization(parts[0].keys, parts[0].values)
        rows, width = sum(len(part.keys) for part in parts), max(part.get_seq_length() for part in parts)
        given = [part.keys for part in parts], [part.values for part in parts]
        self.rooms = [one.new_zeros(rows, one.shape[1], width + self.ROOM, one.shape[3]) for one, *_ in given]
        for room, states in zip(self.rooms, given, strict=True):
            for place, one in zip(room.split(list(map(len, states))), states, strict=True):
                place[:, :, width - one.shape[2] : width] = one
        self._show(width)

    def _move(self, given: Sequence[Tensor], count: int, size: int) -> None:
        old, self.rooms = self.rooms, [states.new_empty(*states.shape[:-2], size, states.shape[-1]) for states in given]
        for room, before in zip(self.rooms, old, strict=False):
            room[..., :count, :] = before[..., :count, :]

    def _show(self, count: int) -> None:
        self.keys, self.values = (room[..., :count, :] for room in self.rooms)


def draw(logits_BV: Tensor, noise_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A token per row, where its uniform noise falls in the cumulated probabilities, and its log-probability."""
    logprobs_BV = torch.log_softmax(logits_BV.float() / temperature, -1)
    cumulated_BV = logprobs_BV.exp().cumsum(-1)
    aim_B1 = (noise_B * cumulated_BV[:, -1]).unsqueeze(1)
    token_B1 = torch.searchsorted(cumulated_BV, aim_B1, right=True).clamp_(max=logits_BV.shape[1] - 1)
    return token_B1.squeeze(1), logprobs_BV.gather(1, token_B1).squeeze(1)


@functools.cache
def _arguments_of(kind: type[PreTrainedModel]) -> frozenset[str]:
    """What the forward of a kind of model takes: not every architecture counts positions."""
    return frozenset(inspect.signature(kind.forward).parameters)


# --- Engines of transformers --------------------------------------------------------------------


@torch.no_grad()
def sample_by_generate(
    policy: PreTrainedModel | PeftModel, prompts: Sequence[Sequence[int]], how: Sampling, noise_BR: Tensor
) -> Samples:
    """Completions by ``model.generate``, for architectures whose cache the loop does not know."""
    model, tokens = _without_wrapper(policy), []
    with _alone(model, noise_BR):
        for start in range(0, len(prompts), how.rows):
            input_ids, mask = pad_left(prompts[start : start + how.rows], model.device)
            sequences = model.generate(
                input_ids=input_ids, attention_mask=mask, generation_config=_generation_config(how)
            )
            tokens += [cut(row[input_ids.shape[1] :].cpu(), how) for row in sequences]
    return Samples(tokens)


@torch.no_grad()
def sample_by_continuous_batching(
    policy: PreTrainedModel | PeftModel, prompts: Sequence[Sequence[int]], how: Sampling, noise_BR: Tensor
) -> Samples:
    """Completions by ``model.generate_batch``, where a finished row makes place for the next; made for GPUs."""
    model = _without_wrapper(policy)
    with _alone(model, noise_BR):
        answers = model.generate_batch(
            inputs=[list(prompt) for prompt in prompts],
            generation_config=_generation_config(how),
            progress_bar=False,
        )
    # Requests are numbered in the order of the prompts; answers come back in any.
    ordered = sorted(answers.values(), key=lambda answer: int(answer.request_id.rpartition("_")[2]))
    return Samples([cut(torch.tensor(answer.generated_tokens), how) for answer in ordered])


def _without_wrapper(policy: PreTrainedModel | PeftModel) -> PreTrainedModel:
    return policy.get_base_model() if isinstance(policy, PeftModel) else policy


def _generation_config(how: Sampling) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=how.length,
        do_sample=True,
        temperature=how.temperature,
        top_k=0,
        top_p=1.0,
        eos_token_id=list(how.stop_ids) or None,
        pad_token_id=0,
    )


@contextlib.contextmanager
def _alone(model: PreTrainedModel, noise_BR: Tensor) -> Any:
    """Within it the model has no generation defaults, which would fill in what is None, and its own random state."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(_seed(noise_BR))
            yield
    finally:
        model.generation_config = own


def _seed(noise_BR: Tensor) -> int:
    return int(noise_BR.flatten()[0].double() * 2**31)


def cut(tokens_R: Tensor, how: Sampling) -> Tensor:
    """The tokens up to and with the first stop token."""
    tokens_R = tokens_R[: how.length]
    stops = torch.isin(tokens_R, torch.tensor(how.stop_ids, dtype=torch.long)).nonzero()
    return tokens_R[: int(stops[0]) + 1] if len(stops) else tokens_R


ENGINES: dict[str, Engine] = {
    "loop": sample_by_loop,
    "generate": sample_by_generate,
    "continuous": sample_by_continuous_batching,
}


# --- vLLM ---------------------------------------------------------------------------------------


def connect(base_url: str) -> Any:
    """TRL's client of a running vLLM server, joined with it for sending weights; needs a GPU."""
    if importlib.util.find_spec("vllm") is None:
        raise EnvironmentFault(
            Fault("trainer.args.rollout_engine", "vllm is not installed", "", "pip install 'runner[vllm]'")
        )
    from trl.generation.vllm_client import VLLMClient

    client = VLLMClient(base_url=base_url, connection_timeout=60)
    if _is_first_process():
        client.init_communicator(device=torch.cuda.current_device())
    return client


class Server:
    """Completions by a vLLM server, which is sent the policy before each rollout.

    Its log-probabilities come of other kernels and are left there: PPO computes its own.
    """

    def __init__(self, client: Any):
        self.client = client

    @torch.no_grad()
    def __call__(
        self, policy: PreTrainedModel | PeftModel, prompts: Sequence[Sequence[int]], how: Sampling, noise_BR: Tensor
    ) -> Samples:
        if _is_first_process():
            with self.client.weight_update():
                for name, weight in merged_weights(policy):
                    self.client.update_named_param(name, weight)
            self.client.reset_prefix_cache()
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        answer = self.client.generate(
            prompts=[list(prompt) for prompt in prompts],
            temperature=how.temperature,
            max_tokens=how.length,
            logprobs=None,
            generation_kwargs={"stop_token_ids": list(how.stop_ids), "ignore_eos": True, "seed": _seed(noise_BR)},
        )
        return Samples([cut(torch.tensor(tokens), how) for tokens in answer["completion_ids"]])


def merged_weights(policy: PreTrainedModel | PeftModel) -> Iterator[tuple[str, Tensor]]:
    """The weights of the policy under the names of its base model, the active adapter added in, one at a time.

    Nothing is changed: to merge an adapter and take it out again would leave rounding in the base.
    """
    own = policy.active_adapter if isinstance(policy, PeftModel) else None
    layers = {id(layer.weight): layer for layer in policy.modules() if own in getattr(layer, "lora_A", ())}
    for name, weight in _without_wrapper(policy).named_parameters():
        if own and (policy.base_model.prefix in name or "original_module" in name):
            continue
        name = name.replace(".base_layer.", ".").replace(f".modules_to_save.{own}", "")
        layer = layers.get(id(weight))
        yield name, weight if layer is None else weight + layer.get_delta_weight(own).to(weight.dtype)


def _is_first_process() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
