"""Queries and feed-forward part of a trunk's last layer, for the states alone that are read.

PPO reads the last states of response tokens. Those of prompt tokens have no reader, and in the last
layer nothing else depends on them but keys and values: what attention and feed-forward part would
add to them is computed for nothing, and its gradient is zero. So hooks hand the feed-forward part
only the states that are read, and put zeros in the places of the others; and on a CPU the queries
of each row begin with the first that is read.

Letters at the end of a tensor's name are its shape: B rows, T tokens, N tokens that are read, H
hidden.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from runner.generate.sampler import evaluating
from runner.model.padding_free import PROBE_LENGTHS, equal_to_rounding, to_line_arguments

# The argument of a trunk's forward pass, which it hands on to its layers: flat indices [N].
READ_POSITIONS = "read_positions_N"
PROBE_POSITIONS = [1, 4]  # of the tokens on which a trunk is tried, those that are read


@dataclass(frozen=True)
class LayerParts:
    """Two parts of a layer: one receives the positions that are read, one only states."""

    attention: nn.Module
    feed_forward: nn.Module


class ReadStates:
    """Hooks of the parts of a last layer.

    Its attention receives in each pass the positions that are read, also where a layer is computed
    again in the backward pass. Without such positions they change nothing.
    """

    def __init__(self) -> None:
        self.positions_N: Tensor | None = None
        self.shape = torch.Size()

    def listen(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Remember what is read of this pass, and on a CPU let queries begin there.

        Keys and values stay those of all tokens.
        """
        self.positions_N = kwargs.get(READ_POSITIONS)
        if self.positions_N is None or self.positions_N.device.type != "cpu":
            return args, kwargs
        firsts = _first_of_rows(self.positions_N.tolist(), kwargs["row_lengths"])
        return args, kwargs | {"first_queries": firsts}

    def select(self, feed_forward: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        """The states that are read [1, N, H], in place of all."""
        if self.positions_N is None:
            return None
        (states_BTH,) = args
        self.shape = states_BTH.shape
        states_NH = states_BTH.flatten(0, 1).index_select(0, self.positions_N)
        return (states_NH.unsqueeze(0),)

    def fill(self, feed_forward: nn.Module, args: object, output_1NH: Tensor) -> Tensor | None:
        """The output of the part in its places [B, T, H]; zeros in the others."""
        if self.positions_N is None:
            return None
        zeros_TH = output_1NH.new_zeros(self.shape).flatten(0, 1)
        return zeros_TH.index_copy(0, self.positions_N, output_1NH[0]).view(self.shape)


def _first_of_rows(positions: Sequence[int], row_lengths: Sequence[int]) -> list[int]:
    """The index in each row of the first token that is read; of the last one where none is."""
    firsts = []
    start = 0
    for length in row_lengths:
        index = bisect_left(positions, start)
        first = positions[index] - start if index < len(positions) else length
        firsts.append(min(first, length - 1))
        start += length
    return firsts


@torch.no_grad()
def leave_out_unread(trunk: PreTrainedModel) -> bool:
    """Have the last layer compute what is read, if that changes no such state.

    The trunk attends row by row. One in which that part is not found stays as it is.
    """
    layer = _find_last_layer(trunk)
    if layer is None:
        return False
    is_same = False
    hooks = []
    with evaluating(trunk):
        parts, whole_NH = _find_parts(trunk, layer)
        if parts is None:
            return False
        states = ReadStates()
        hooks = [
            parts.attention.register_forward_pre_hook(states.listen, with_kwargs=True),
            parts.feed_forward.register_forward_pre_hook(states.select),
            parts.feed_forward.register_forward_hook(states.fill),
        ]
        try:
            is_same = equal_to_rounding(_read_probe(trunk), whole_NH)
        finally:
            if not is_same:
                for hook in hooks:
                    hook.remove()
    return is_same


def _find_last_layer(trunk: PreTrainedModel) -> nn.Module | None:
    """The last of a trunk's layers; None where no list of modules has as many as its config."""
    count = trunk.config.get_text_config().num_hidden_layers
    for module in trunk.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module[-1]
    return None


def _find_parts(trunk: PreTrainedModel, layer: nn.Module) -> tuple[LayerParts | None, Tensor]:
    """The parts of a layer, None where they are not one each; and the states of the probe.

    The order counts: the positions must be known before states are handed over.
    """
    attentions: list[nn.Module] = []
    feed_forwards: list[nn.Module] = []

    def note(
        part: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        if READ_POSITIONS in kwargs:
            attentions.append(part)
        elif attentions and _is_feed_forward(part, args, kwargs, output):
            feed_forwards.append(part)

    hooks = [part.register_forward_hook(note, with_kwargs=True) for part in layer.children()]
    try:
        states_NH = _read_probe(trunk)
    finally:
        for hook in hooks:
            hook.remove()
    if len(attentions) == len(feed_forwards) == 1:
        return LayerParts(attentions[0], feed_forwards[0]), states_NH
    return None, states_NH


def _is_feed_forward(
    part: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
) -> bool:
    """True for a part with matrices, which norms have not, that makes states of states alone."""
    if kwargs or len(args) != 1:
        return False
    (states,) = args
    if not isinstance(states, Tensor) or not isinstance(output, Tensor):
        return False
    return output.shape == states.shape and any(weight.dim() > 1 for weight in part.parameters())


def _read_probe(trunk: PreTrainedModel) -> Tensor:
    """The states [N, H] that are read of a few tokens."""
    ids_1T = torch.arange(sum(PROBE_LENGTHS), device=trunk.device).unsqueeze(0)
    positions_N = torch.tensor(PROBE_POSITIONS, device=trunk.device)
    arguments = to_line_arguments(PROBE_LENGTHS, trunk.device)
    arguments[READ_POSITIONS] = positions_N
    states_1TH = trunk(input_ids=ids_1T, use_cache=False, **arguments).last_hidden_state
    states_NH: Tensor = states_1TH[0, positions_N]
    return states_NH
