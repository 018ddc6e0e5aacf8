"""Configuration -> objects: a node calls what its ``_target_`` names, with its other keys as arguments."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from runner.errors import ConfigError, Fault, describe, fault
from runner.schema.read import read_signature
from runner.schema.text import Node

SPECIAL = ("_target_", "_partial_")


def locate(target: str) -> Any:
    """The object behind a dotted name, importing the longest part of it that is a module."""
    parts = target.split(".")
    for cut in range(len(parts), 0, -1):
        name = ".".join(parts[:cut])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")):
                continue
            raise
        return functools.reduce(getattr, parts[cut:], found)
    raise ConfigError(Fault(target, "no such module", "an importable name"))


def build(node: object, **given: object) -> Any:
    """Call what a config node names with its keys as arguments, inner nodes first; ``given`` wins over the keys.

    The only place that turns configuration into objects. ``_partial_: true``, or a function of a ``row``, gives the
    callable with its arguments bound; nodes without ``_target_`` come back as plain values.
    """
    if isinstance(node, list):
        return [build(value) for value in node]
    if not isinstance(node, Mapping):
        return node
    arguments = {key: build(value) for key, value in node.items() if key not in SPECIAL}
    if "_target_" not in node:
        return arguments
    target = locate(node["_target_"])
    takes_row = inspect.isfunction(target) and "row" in inspect.signature(target).parameters
    if node.get("_partial_") or (takes_row and "row" not in arguments):
        return functools.partial(target, **arguments | given)
    try:
        return target(**arguments | given)
    except TypeError as error:
        if error.__traceback__ and error.__traceback__.tb_next:  # it was called, and raised
            raise
        raise ConfigError(fault("config.other_arguments", target=node["_target_"], error=describe(error))) from error


def serve(node: Node, **offered: object) -> Any:
    """Build a node with those of the offered arguments that its signature names."""
    wanted = asked_for(node["_target_"])
    return build(node, **{name: part for name, part in offered.items() if name in wanted})


def arguments_of(call: Callable[..., object]) -> frozenset[str] | None:
    """The arguments by which a part says what it is given; None where ``**kwargs`` asks for all there is."""
    known = inspect.signature(call).parameters
    return None if any(each.kind is each.VAR_KEYWORD for each in known.values()) else frozenset(known)


def asked_for(target: str) -> set[str]:
    """The names of the arguments that a target takes, also by handing on what it does not name."""
    known = inspect.signature(locate(target)).parameters.values()
    names = {each.name for each in known if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    if any(each.kind == each.VAR_KEYWORD for each in known) and (signature := read_signature(target)):
        names |= set(signature.parameters)
    return names
