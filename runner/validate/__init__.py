"""Everything that is wrong with a configuration, at once, before torch is imported.

    find_all_faults(cfg)            the configuration alone, key by key: ``keys`` with ``targets`` and ``values``,
                                    ``dangers``, by ``parts`` and ``objective`` what excludes each other,
                                    ``passed_on`` for mappings that a library reads late, ``effect`` for
                                    typed fields that nothing reads, and
                                    ``refusal`` for what the trainer itself would refuse
    parts.find_mismatches(cfg)      parts that are each right and do not go together, where the keys have no fault
    start.check_ahead(jobs)         the world around the runs of a command: raises before a folder is made

The schema is the signature of what each ``_target_`` names: only what a signature cannot say is written down here.
"""

from collections.abc import Collection, Container, Iterator
from dataclasses import replace
from itertools import islice

from runner.config.menu import read_menu
from runner.errors import Fault
from runner.schema.text import Config, nodes, walk
from runner.validate.context import ValidationContext
from runner.validate.dangers import AT_START, find_risks, find_secrets
from runner.validate.effect import find_idle_faults
from runner.validate.keys import find_infinite, find_node_faults, find_top_faults
from runner.validate.objective import find_objective_faults
from runner.validate.parts import find_mismatches, find_part_faults
from runner.validate.passed_on import find_passed_on_faults
from runner.validate.refusal import find_refused
from runner.validate.targets import find_target_fault

MAX_SHOWN = 200  # faults of the top level, or of a node: of each the keys that look like it are sought


def find_all_faults(
    cfg: Config,
    *,
    menu: dict[str, list[str]] | None = None,
    allow: Collection[str] = (),
    typed: Collection[str] = (),
    trusted: Container[str] | None = None,
) -> list[Fault]:
    """Every fault of a composed, resolved, plain configuration, in its order; see :class:`ValidationContext`.

    ``trusted`` are the keys that may hold what is dangerous, which are those that were ``typed`` where nothing is said.
    """
    context = ValidationContext(cfg, menu or {}, tuple(allow), frozenset(typed))
    node_faults: list[Fault] = []
    for path, node in nodes(cfg):
        target = find_target_fault(path, node["_target_"], context.allow)
        node_faults += [target] if target else islice(find_node_faults(context, path, node), MAX_SHOWN)
    faults = [*islice(find_top_faults(context), MAX_SHOWN), *node_faults, *find_infinite(context)]
    wrong = {fault.where for fault in faults}  # which are not taken, whoever typed them
    risks = find_risks(cfg, context.typed if trusted is None else trusted)
    faults += [risk for risk in risks if risk.where not in wrong]
    faults += find_secrets(cfg)
    faults += [*find_part_faults(context), *find_objective_faults(context)]
    places = [fault.where for fault in faults]
    for fault in (*find_passed_on_faults(context), *find_idle_faults(context)):
        if not any(where.startswith(fault.where) for where in places):
            faults.append(fault)
    faults += [] if faults else find_refused(context)
    # In the configuration's order, a missing key by its neighbours.
    order = {path: index for index, (path, _) in enumerate(walk(cfg))}

    def position(fault: Fault) -> int:
        path = fault.where
        while path and path not in order:
            path = path.rpartition(".")[0]
        return order.get(path, len(order))

    # Each fault once, also of the top level and of what reads it, and none that an inner node only took over.
    known = {(fault.found, fault.expected, fault.where) for fault in faults}

    def is_taken_over(fault: Fault) -> bool:
        *around, key = fault.where.split(".")
        outer = (".".join([*around[:depth], key]) for depth in range(1, len(around)))
        return any((fault.found, fault.expected, where) in known for where in outer)

    once = {(fault.where, fault.found): fault for fault in reversed(faults)}
    return sorted((fault for fault in reversed(once.values()) if not is_taken_over(fault)), key=position)


def find_dangers(cfg: Config, fix: str = "") -> list[Fault]:
    """A fault for each thing that a configuration would run or publish, typed or not; ``fix`` is to trust all of it."""
    dangers = [danger for danger in _find_all_dangers(cfg) if not AT_START.fullmatch(danger.where)]
    return [replace(danger, fix=fix or danger.fix) for danger in dangers]


def _find_all_dangers(cfg: Config) -> Iterator[Fault]:
    for path, node in nodes(cfg):
        if target := find_target_fault(path, node["_target_"]):
            yield target
    yield from find_risks(cfg)


def find_frozen_faults(cfg: Config, place: str) -> Iterator[Fault]:
    """A fault for each thing that is wrong with the frozen configuration in a file, but for what it would run."""
    known = {danger.where for danger in _find_all_dangers(cfg)}
    for fault in find_all_faults(cfg) or find_mismatches(cfg, read_menu()):
        if fault.where not in known:
            yield replace(fault, fix=f"mend {place}, or take another run")
