"""Optimizers of the ``optimizer`` group, with settings for weights whose names fit a pattern."""

import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from runner.errors import ConfigError, Fault

# Classes of which the state of optimizers holds objects beside tensors, by the package of both.
CLASSES_OF_STATES = {
    "galore_torch": ["galore_torch.galore_projector.GaLoreProjector"],
    "apollo_torch": [
        "apollo_torch.random_projector.GradientProjector",
        "apollo_torch.svd_projector.GaLoreProjector",
    ],
}


def build_optimizer(
    make: Callable[..., Optimizer],
    weights: Iterable[tuple[str, nn.Parameter]],
    *,
    settings: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
    decayed: Collection[str],
) -> Optimizer:
    """``make`` called with the trainable weights in parameter groups, and with ``settings``.

    A weight belongs to the first pattern of ``groups`` that is found in its name, if any, and takes
    the settings there; ``lr_ratio`` is a share of the common ``lr``. Weights that are not in
    ``decayed``, such as biases and norms, have no weight decay unless their group asks for it. An
    optimizer with an argument ``named_parameters`` gets the weights with their names instead, and
    makes groups itself. Raises ConfigError for a pattern that fits no weight.
    """
    trained = [(name, weight) for name, weight in weights if weight.requires_grad]
    if "named_parameters" in inspect.signature(make).parameters:
        return make(trained, **settings)
    members: dict[GroupKey, list[nn.Parameter]] = {}
    for name, weight in trained:
        key = GroupKey(_first_pattern(groups, name), name in decayed)
        members.setdefault(key, []).append(weight)
    used = {key.pattern for key in members}
    example = trained[0][0] if trained else "none"
    ConfigError.refuse(_unused_pattern(name, example) for name in groups if name not in used)
    parameter_groups: list[dict[str, Any]] = []
    for key in sorted(members, key=lambda key: key.pattern is not None):
        group: dict[str, Any] = {"params": members[key]}
        if not key.is_decayed and "weight_decay" in settings:
            group["weight_decay"] = 0.0
        if key.pattern is not None:
            group |= groups[key.pattern]
        if "lr_ratio" in group:
            group["lr"] = group.pop("lr_ratio") * settings["lr"]
        parameter_groups.append(group)
    return make(parameter_groups, **settings)


class GroupKey(NamedTuple):
    """The marks that all weights of a parameter group share."""

    pattern: str | None
    is_decayed: bool


def _first_pattern(patterns: Iterable[str], name: str) -> str | None:
    for pattern in patterns:
        if re.search(pattern, name):
            return pattern
    return None


def _unused_pattern(pattern: str, example: str) -> Fault:
    return Fault(
        where=f"optimizer.groups.{pattern}",
        found="no weight has such a name, or an earlier pattern takes it",
        expected=f"a pattern that matches names of trained weights, such as {example}",
        fix="another pattern, or optimizer.groups=null",
    )


def trust_state(optimizer: Optimizer) -> Optimizer:
    """The optimizer, after torch was allowed to read what its state holds beside tensors."""
    package = type(optimizer).__module__.partition(".")[0]
    names = CLASSES_OF_STATES.get(package, ())
    torch.serialization.add_safe_globals([pkgutil.resolve_name(name) for name in names])
    return optimizer


class Muon(Optimizer):
    """Muon for the matrices between embeddings and head, and AdamW for all other weights.

    ``adamw`` is a pattern of the names of matrices that AdamW takes, too. Both go by one rate, as
    Muon's steps are made as large as AdamW's; what is no matrix does not decay. Sources: Jordan et
    al. 2024; Liu et al. 2025, section 2.2.
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
        matrices: list[nn.Parameter] = []
        outer: list[nn.Parameter] = []  # embeddings, heads and convolutions
        vectors: list[nn.Parameter] = []  # biases and norms
        for name, weight in named_parameters:
            if weight.ndim < 2:
                vectors.append(weight)
            elif weight.ndim > 2 or re.search(adamw, name):
                outer.append(weight)
            else:
                matrices.append(weight)
        self.parts: list[Optimizer] = []
        if matrices:
            muon = torch.optim.Muon(
                matrices,
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                adjust_lr_fn="match_rms_adamw",
            )
            self.parts.append(muon)
        adamw_groups: list[dict[str, Any]] = []
        if outer:
            adamw_groups.append({"params": outer, "weight_decay": weight_decay})
        if vectors:
            adamw_groups.append({"params": vectors, "weight_decay": 0.0})
        if adamw_groups:
            self.parts.append(AdamW(adamw_groups, lr=lr, betas=tuple(betas)))
        groups: list[dict[str, Any]] = []
        for part in self.parts:
            groups += part.param_groups
        super().__init__(groups, {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure else None
        for part in self.parts:  # which work on what is saved and loaded here
            part.state = self.state
            part.param_groups = [
                group for group in self.param_groups if group.keys() >= part.defaults.keys()
            ]
            part.step()
        return loss
