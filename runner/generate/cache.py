"""A cache of keys and values with room for more tokens; the one place that knows how a layer of transformers' does it.

Without it each sampled token copies the keys and values of all tokens before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

ROOM_IN_TOKENS = 64


def build_cache(config: PretrainedConfig) -> DynamicCache:
    """An empty cache for a model; its layers that keep every token have room for more."""
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def can_join(cache: DynamicCache) -> bool:
    """Tell whether the layers keep every token, so that the caches of several batches can become one."""
    return bool(cache.layers) and all(isinstance(layer, PreallocatedLayer) for layer in cache.layers)


def join_caches(whole: DynamicCache, parts: Sequence[DynamicCache]) -> None:
    """Move the rows of ``parts`` into an empty cache, one part after the other, their last tokens side by side."""
    width = max(part.get_seq_length() for part in parts)
    for index in range(len(whole.layers)):
        layers = [part.layers.pop(0) for part in parts]
        keys, values = (
            torch.cat([pad(states, (0, 0, width - states.shape[-2], 0)) for states in each])
            for each in zip(*((layer.keys, layer.values) for layer in layers), strict=True)
        )
        whole.update(keys, values, index)


class PreallocatedLayer(DynamicLayer):
    """Keys and values of a layer as views of tensors with room for more tokens.

    What is there is copied neither for a further token nor for a row that keeps its place when others leave.
    """

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[Tensor] = []  # of keys and of values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of further tokens, and return those of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        given, count = (key_states, value_states), self.get_seq_length()
        end = count + key_states.shape[-2]
        if not self.buffers or end > self.buffers[0].shape[-2]:
            old, size = (self.keys, self.values), end + ROOM_IN_TOKENS
            self.buffers = [states.new_empty(*states.shape[:-2], size, states.shape[-1]) for states in given]
            for buffer, states in zip(self.buffers if count else (), old, strict=False):
                buffer[..., :count, :] = states
        for buffer, states in zip(self.buffers, given, strict=True):
            buffer[..., count:end, :] = states
        self._set_views(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows of these places only, in this order."""
        count = self.get_seq_length()
        moved = (indices != torch.arange(len(indices), device=indices.device)).nonzero().squeeze(1)
        for buffer in self.buffers:
            buffer[moved, :, :count] = buffer[indices[moved], :, :count]
        self.buffers = [buffer[: len(indices)] for buffer in self.buffers]
        self._set_views(count)

    def _set_views(self, count: int) -> None:
        self.keys, self.values = (buffer[..., :count, :] for buffer in self.buffers)
