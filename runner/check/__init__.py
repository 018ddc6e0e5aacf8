"""Everything that is wrong with a composed configuration, at once, before torch is imported.

    check(cfg)    [Fault("trainer.args.lerning_rate", "DPOConfig has no such field", ...), ...]

The schema is the signature of what each ``_target_`` names, so a new field or trainer needs no line
here. Written down is only what a signature cannot say, one thing a file:

    known    the keys that the runner reads itself, and which keys there are altogether
    top      the top level and its groups
    node     one node with a ``_target_``: its keys against the signature
    place    where a key that is not known belongs
    value    types, ranges and choices
    part     which parts a trainer asks for, and parts that do not go together
    objective  losses and token weights: which trainers take them, and what they exclude
    allow    what may run, and what must be typed
    secret   that there is no secret
    sharding  models spread over processes, where that cannot be had
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from runner.check.allow import find_risks, find_uploads
from runner.check.known import Asked, Menu, nodes, scalars
from runner.check.node import find_node_faults
from runner.check.part import find_part_faults
from runner.check.secret import find_secrets
from runner.check.top import find_top_faults
from runner.check.value import find_empty
from runner.errors import Fault
from runner.signature import walk

__all__ = ["check"]


def check(
    cfg: Mapping[str, Any],
    *,
    menu: Menu | None = None,
    allow: Collection[str] = (),
    typed: Collection[str] | None = (),
    trainers: Mapping[str, str] | None = None,
) -> list[Fault]:
    """Every fault of a composed, resolved, plain configuration, in its order; none if it is good.

    ``menu`` names the options of each group, ``typed`` the dotted keys of the command line, and
    ``allow`` the packages that it opened. ``trainers`` maps short names to config classes, for
    "exists for DPO, not for SFT"; without it they are all those of TRL.
    """
    asked = Asked(cfg, menu or {}, tuple(allow), frozenset(typed or ()), trainers)
    values = list(scalars(cfg))
    faults = [
        *find_top_faults(asked),
        *(fault for path, node in nodes(cfg) for fault in find_node_faults(asked, path, node)),
        *find_empty(asked, values),
        *find_risks(values, asked.typed),
        *find_uploads(cfg, asked.typed),
        *find_secrets(values),
        *find_part_faults(asked),
    ]
    return _in_order(faults, cfg)


def _in_order(faults: list[Fault], cfg: Mapping[str, Any]) -> list[Fault]:
    """The faults in the configuration's order, each once; a missing key by its neighbours."""
    order = {path: index for index, (path, _) in enumerate(walk(cfg))}

    def place(fault: Fault) -> int:
        path = fault.where
        while path and path not in order:
            path = path.rpartition(".")[0]
        return order.get(path, len(order))

    return sorted(_once(faults), key=place)


def _once(faults: list[Fault]) -> Iterator[Fault]:
    """The faults without repeats, and without those that an inner node only took over."""
    said = {(fault.found, fault.expected, fault.where) for fault in faults}
    for fault in dict.fromkeys(faults):
        *nodes_, key = fault.where.split(".")
        outer = (".".join([*nodes_[:depth], key]) for depth in range(1, len(nodes_)))
        if not any((fault.found, fault.expected, where) in said for where in outer):
            yield fault
