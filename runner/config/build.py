"""Configuration -> objects: a node calls what its ``_target_`` names, with its other keys."""

import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from runner.errors import ConfigError, Fault, describe
from runner.schema.read import read_signature
from runner.schema.text import Node

SPECIAL = ("_target_", "_partial_")


def locate(target: str) -> Any:
    """The object behind a dotted name; the longest part of it that is a module is imported."""
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # If a module is missing that this one imports, that is the error.
            if error.name and f"{name}.".startswith(f"{error.name}."):
                continue
            raise
        return functools.reduce(getattr, parts[length:], module)
    raise ConfigError(
        Fault(
            where=target,
            found="no such module",
            expected="an importable name",
        )
    )


def build(node: object, **given: object) -> Any:
    """Call what a config node names with its keys as arguments, inner nodes first.

    ``given`` wins over the keys. This is the only place that turns configuration into objects.
    ``_partial_: true``, or a function of a ``row``, gives the callable with its arguments bound;
    nodes without ``_target_`` come back as plain values.
    """
    if isinstance(node, list):
        return [build(part) for part in node]
    if not isinstance(node, Mapping):
        return node
    arguments = {key: build(value) for key, value in node.items() if key not in SPECIAL}
    if "_target_" not in node:
        return arguments
    name = node["_target_"]
    target = locate(name)
    takes_row = inspect.isfunction(target) and "row" in inspect.signature(target).parameters
    if node.get("_partial_") or (takes_row and "row" not in arguments):
        return functools.partial(target, **arguments | given)
    try:
        return target(**arguments | given)
    except TypeError as error:
        if error.__traceback__ and error.__traceback__.tb_next:  # it was called, and raised
            raise
        raise ConfigError(
            Fault(
                where=name,
                found=describe(error),
                expected="the arguments that it takes",
                fix="the library that the run was made with, or without that key",
            )
        ) from error


def serve(node: Node, **offered: object) -> Any:
    """Build a node with those of the offered arguments that its signature names."""
    names = asked_for(node["_target_"])
    arguments = {name: value for name, value in offered.items() if name in names}
    return build(node, **arguments)


def asked_for(target: str) -> set[str]:
    """The names of the arguments that a target takes, or hands on without naming them."""
    names = set()
    for name, parameter in inspect.signature(locate(target)).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            signature = read_signature(target)
            if signature:
                names |= set(signature.parameters)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            names.add(name)
    return names
