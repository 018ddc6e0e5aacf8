"""A cache of keys and values that grows and shrinks in place, for rows that end one by one.

The library's own copies all of it for each token, and again whenever rows leave. Only layers that
keep every token are replaced; those with a window are the library's.

Letters at the end of a tensor's name are its shape: B rows, H heads, T tokens, D features.
"""

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

ROOM = 64  # tokens that there is at least room for when a layer grows


def build_cache(config: PretrainedConfig) -> Cache:
    """An empty cache for a model."""
    layers = []
    for layer in DynamicCache(config=config).layers:
        if type(layer) is DynamicLayer:
            layer = RoomyLayer()
        layers.append(layer)
    return Cache(layers=layers)


class RoomyLayer(DynamicLayer):
    """The keys and values of one layer; both are views of tensors with room for further tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.key_room = Room()
        self.value_room = Room()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values of further tokens; gives those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self.key_room.add(key_states)
        self.values = self.value_room.add(value_states)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows with these numbers, in this order; a row may be kept several times."""
        self.keys = self.key_room.select(indices)
        self.values = self.value_room.select(indices)


class Room:
    """A tensor with room for further tokens."""

    def __init__(self) -> None:
        self.held_BHTD: Tensor | None = None
        self.rows = 0
        self.tokens = 0

    def add(self, states_BHTD: Tensor) -> Tensor:
        """All states, these behind those of before."""
        rows, heads, further, features = states_BHTD.shape
        tokens = self.tokens + further
        held_BHTD = self.held_BHTD
        if held_BHTD is None or tokens > held_BHTD.shape[2]:
            room = tokens + max(ROOM, tokens // 2)
            held_BHTD = states_BHTD.new_empty(rows, heads, room, features)
            if self.held_BHTD is not None:
                held_BHTD[:, :, : self.tokens] = self.held_BHTD[:rows, :, : self.tokens]
            self.held_BHTD = held_BHTD
        held_BHTD[:rows, :, self.tokens : tokens] = states_BHTD
        self.rows = rows
        self.tokens = tokens
        return held_BHTD[:rows, :, :tokens]

    def select(self, indices: Tensor) -> Tensor:
        """The states of the rows with these numbers; only rows that change places are moved."""
        assert self.held_BHTD is not None
        if len(indices) > self.rows:
            self.held_BHTD = self.held_BHTD[indices]
        else:
            places = torch.arange(len(indices), device=indices.device)
            moved = (indices != places).nonzero().squeeze(1)
            tokens = self.tokens
            self.held_BHTD[moved, :, :tokens] = self.held_BHTD[indices[moved], :, :tokens]
        self.rows = len(indices)
        return self.held_BHTD[: self.rows, :, : self.tokens]


def fill_places(ended_B: Tensor) -> Tensor:
    """The rows that go on, in an order in which the last ones take the places of the ended."""
    going = (~ended_B).nonzero().squeeze(1)
    places = torch.arange(len(going), device=going.device)
    is_free = ended_B[: len(going)]
    places[is_free] = going[going >= len(going)]
    return places
