"""Optimizers and schedules of the ``optimizer`` group: weights by pattern, each with settings of its own.

Which weights there are is for the trainer to say, after adapters were put on; when, for ``training.extension``.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from runner.errors import ConfigError, Fault


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
    have no weight decay unless their group asks for it. Raises ConfigError for a pattern that fits no weight.
    """
    parts: dict[tuple[str | None, bool], list[nn.Parameter]] = {}
    for name, weight in weights:
        if weight.requires_grad:
            pattern = next((pattern for pattern in groups if re.search(pattern, name)), None)
            parts.setdefault((pattern, name in decayed), []).append(weight)
    used = {pattern for pattern, _ in parts}
    idle, expected = [one for one in groups if one not in used], "a pattern in the names of the weights that train"
    ConfigError.refuse(Fault(f"optimizer.groups.{one}", "no weight is called so", expected) for one in idle)
    made = []
    # Weights without a pattern go first: the rate that the Trainer logs is that of the first group.
    for (pattern, is_decayed), members in sorted(parts.items(), key=lambda part: part[0][0] is not None):
        own = dict(groups[pattern]) if pattern is not None else {}
        if "lr_ratio" in own:
            own["lr"] = own.pop("lr_ratio") * settings["lr"]
        undecayed = {} if is_decayed or "weight_decay" not in settings else {"weight_decay": 0.0}
        made.append({"params": members} | undecayed | own)
    return make(made, **settings)
