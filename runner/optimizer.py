"""Optimizers and schedules of the ``optimizer`` group: weights by pattern, each with settings of its own."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from runner.config.build import locate
from runner.errors import ConfigError, Fault
from runner.schema.text import read_tables


def build_optimizer(
    make: Callable[..., Optimizer],
    weights: Iterable[tuple[str, nn.Parameter]],
    *,
    settings: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
    decayed: Collection[str],
) -> Optimizer:
    """``make`` called with the trainable weights in parameter groups, and with ``settings``.

    A weight belongs to the first pattern of ``groups`` that is found in its name, if any, and takes the settings
    there; ``lr_ratio`` is a share of the common ``lr``. Weights that are not in ``decayed``, such as biases and norms,
    have no weight decay unless their group asks for it. What names an argument ``named_parameters`` gets the weights
    with their names instead, and makes groups itself. Raises ConfigError for a pattern that fits no weight.
    """
    if "named_parameters" in inspect.signature(make).parameters:
        return make([(name, weight) for name, weight in weights if weight.requires_grad], **settings)
    parts: dict[tuple[str | None, bool], list[nn.Parameter]] = {}
    trained = [(name, weight) for name, weight in weights if weight.requires_grad]
    for name, weight in trained:
        pattern = next((pattern for pattern in groups if re.search(pattern, name)), None)
        parts.setdefault((pattern, name in decayed), []).append(weight)
    used = {pattern for pattern, _ in parts}
    faults = []
    for pattern in groups:
        if pattern not in used:
            where, example = f"optimizer.groups.{pattern}", next((name for name, _ in trained), "none")
            expected = f"a pattern in the names of the weights that train, such as {example}"
            found = "no weight is called so, or an earlier pattern takes it"
            faults.append(Fault(where, found, expected, "another pattern, or optimizer.groups=null"))
    ConfigError.refuse(faults)
    made = []
    # Weights without a pattern go first: the rate that the Trainer logs is that of the first group.
    for (pattern, is_decayed), members in sorted(parts.items(), key=lambda part: part[0][0] is not None):
        own = dict(groups[pattern]) if pattern is not None else {}
        own |= {"lr": own.pop("lr_ratio") * settings["lr"]} if "lr_ratio" in own else {}
        undecayed = {} if is_decayed or "weight_decay" not in settings else {"weight_decay": 0.0}
        made.append({"params": members} | undecayed | own)
    return make(made, **settings)


def trust_state(optimizer: Optimizer) -> Optimizer:
    """The optimizer, of whose state torch from now on reads again from a checkpoint what is no tensor."""
    names = read_tables(__file__)["state"].get(type(optimizer).__module__.partition(".")[0], ())
    torch.serialization.add_safe_globals(list(map(locate, names)))
    return optimizer


class Muon(Optimizer):
    """Muon for the matrices between embeddings and head, whose names ``adamw`` is not found in, and AdamW for all else.

    Both go by one rate, as Muon's steps are made as large as AdamW's; what is no matrix does not decay. Sources:
    Jordan et al. 2024; Liu et al. 2025, section 2.2.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: Sequence[float] = (0.9, 0.999),
        adamw: str = "embed|head|score|wte|wpe",
    ):
        inner, outer, rest = list[nn.Parameter](), list[nn.Parameter](), list[nn.Parameter]()
        for name, weight in named_parameters:
            (rest if weight.ndim < 2 else outer if weight.ndim > 2 or re.search(adamw, name) else inner).append(weight)
        how = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "adjust_lr_fn": "match_rms_adamw"}
        self.parts: list[Optimizer] = [torch.optim.Muon(inner, **how)] if inner else []
        groups = [{"params": outer, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
        if groups := [group for group in groups if group["params"]]:
            self.parts.append(AdamW(groups, lr=lr, betas=tuple(betas)))
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure else None
        for part in self.parts:  # which work on what is saved and loaded here
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if group.keys() >= part.defaults.keys()]
            part.step()
        return loss
