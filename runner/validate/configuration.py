"""A configuration -> all of its faults, or only what it would do that nobody typed."""

from collections.abc import Collection, Container, Iterator
from dataclasses import replace
from itertools import islice

from runner.config.menu import read_menu
from runner.errors import Fault
from runner.io.temporary import uncollected
from runner.schema.text import Config, nodes, walk
from runner.validate.checks import find_combination_faults, find_useless_faults
from runner.validate.constructor_errors import find_constructor_errors
from runner.validate.context import ValidationContext
from runner.validate.dangers import AT_START, find_risks
from runner.validate.mismatches import find_mismatches
from runner.validate.node import find_node_faults
from runner.validate.plain_secrets import find_secrets
from runner.validate.targets import find_target_fault
from runner.validate.top import find_infinite, find_top_faults

# Faults that are shown of the top level, or of one node: for each, similar keys are looked for.
MAX_SHOWN = 200


@uncollected()  # the trees of the sources that are read all stay
def find_all_faults(
    cfg: Config,
    *,
    menu: dict[str, list[str]] | None = None,
    allow: Collection[str] = (),
    typed: Collection[str] = (),
    trusted: Container[str] | None = None,
) -> list[Fault]:
    """Every fault of a composed, resolved, plain configuration, in the order of its keys.

    ``menu``, ``allow`` and ``typed`` are those of :class:`ValidationContext`. ``trusted`` are the
    keys that may hold what is dangerous; None stands for those that were typed.
    """
    context = ValidationContext(cfg, menu or {}, tuple(allow), frozenset(typed))
    faults = list(islice(find_top_faults(context), MAX_SHOWN))
    for path, node in nodes(cfg):
        target_fault = find_target_fault(path, node["_target_"], context.allow)
        if target_fault:
            faults.append(target_fault)
        else:
            faults += islice(find_node_faults(context, path, node), MAX_SHOWN)
    faults += find_infinite(context)
    # A key that is wrong anyway needs no word on its danger.
    wrong_keys = {fault.where for fault in faults}
    for risk in find_risks(cfg, context.typed if trusted is None else trusted):
        if risk.where not in wrong_keys:
            faults.append(risk)
    faults += find_secrets(cfg)
    faults += find_combination_faults(context)
    places = [fault.where for fault in faults]
    for fault in find_useless_faults(context):
        if not any(place.startswith(fault.where) for place in places):
            faults.append(fault)
    if not faults:
        faults += find_constructor_errors(context)
    return _in_order(_each_once(faults), cfg)


def find_forbidden(part: Config, allow: Collection[str]) -> Iterator[Fault]:
    """A fault for each target in a part of a configuration that does not exist or may not run."""
    for path, node in nodes(part):
        fault = find_target_fault(path, node["_target_"], allow)
        if fault:
            yield fault


def _each_once(faults: list[Fault]) -> list[Fault]:
    """Each fault once, without those that an inner node has only taken over from an outer one."""
    all_beats = {(fault.found, fault.expected, fault.where) for fault in faults}
    unique: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        *owners, key = fault.where.split(".")
        for depth in range(1, len(owners)):
            outer = ".".join([*owners[:depth], key])
            if (fault.found, fault.expected, outer) in all_beats:
                break
        else:
            unique.setdefault((fault.where, fault.found), fault)
    return list(unique.values())


def _in_order(faults: list[Fault], cfg: Config) -> list[Fault]:
    """Faults in the order of the keys; that of a missing key beside its neighbours."""
    paths = [path for path, _ in walk(cfg)]
    order = {path: index for index, path in enumerate(paths)}

    def position(fault: Fault) -> int:
        path = fault.where
        while path and path not in order:
            path = path.rpartition(".")[0]
        return order.get(path, len(order))

    return sorted(faults, key=position)


def find_dangers(cfg: Config, fix: str = "") -> list[Fault]:
    """A fault for each thing that a configuration would run or publish, typed or not.

    ``fix`` is what to type to trust all of it.
    """
    dangers = []
    for danger in _find_all_dangers(cfg):
        if not AT_START.fullmatch(danger.where):
            dangers.append(replace(danger, fix=fix or danger.fix))
    return dangers


def _find_all_dangers(cfg: Config) -> Iterator[Fault]:
    for path, node in nodes(cfg):
        target_fault = find_target_fault(path, node["_target_"])
        if target_fault:
            yield target_fault
    yield from find_risks(cfg)


def find_frozen_faults(cfg: Config, place: str) -> Iterator[Fault]:
    """A fault for each thing that is wrong with a frozen configuration, apart from its dangers.

    ``place`` is the file that holds it.
    """
    dangerous_keys = {danger.where for danger in _find_all_dangers(cfg)}
    allow = cfg.get("allow")
    allowed = allow if isinstance(allow, list) else ()
    for fault in find_all_faults(cfg, allow=allowed) or find_mismatches(cfg, read_menu()):
        if fault.where not in dangerous_keys:
            yield replace(fault, fix=f"mend {place}, or take another run")
