"""Functions of the user's that a conversation calls: tools, environments, a rollout; guarded by ``generate.tools``."""

import inspect
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from datasets import Dataset

from runner.config.build import build, locate
from runner.errors import ConfigError, DataError, fault
from runner.generate.agent import Agent, build_agent
from runner.generate.tools import SECONDS, guard_environment, guard_tool
from runner.schema import upstream
from runner.schema.text import Node


def build_functions(trainer: Node) -> dict[str, Any]:
    """The functions of the user's that a trainer's node names, each once, as its constructor takes them, by key."""
    seconds = trainer.get("tool_timeout") or SECONDS
    return {key: _build_key(key, trainer[key], seconds) for key in upstream.FUNCTIONS if trainer.get(key)}


def agent_of(trainer: Node, functions: Mapping[str, Any]) -> Agent | None:
    """The agent that answers with these functions of a trainer in conversations of our own; None without tools."""
    tools, makers, _ = map(functions.get, upstream.FUNCTIONS)
    return build_agent(tools, makers, trainer["args"].get(upstream.MAX_TOOL_CALLING_ITERATIONS))


def _build_key(key: str, value: Any, seconds: float) -> Any:
    where = f"trainer.{key}"
    if key == upstream.ROLLOUT_FUNC:
        return _bind(value) if inspect.isfunction(locate(value["_target_"])) else build(value)
    if key == upstream.ENVIRONMENT_FACTORY:
        if "_target_" in value:
            return guard_environment(_bind(value), where, seconds)
        return {name: guard_environment(_bind(node), where, seconds) for name, node in value.items()}
    made = [_build_tool(node, where, seconds) for node in (value if isinstance(value, list) else [value])]
    names = [each.__name__ for each in made]
    if len(set(names)) < len(names):
        raise ConfigError(fault("generate.same_names", where=where, name=max(names, key=names.count)))
    return made


def _build_tool(node: Node, where: str, seconds: float) -> Callable[..., Any]:
    """A function with the node's other keys bound; what a class makes, or a function that says it makes one."""
    target = locate(node["_target_"])
    if inspect.isroutine(target) and "Callable" not in str(inspect.signature(target).return_annotation):
        return guard_tool(target, where, {key: build(each) for key, each in node.items() if key != "_target_"}, seconds)
    return guard_tool(build(node), where, {}, seconds)


def _bind(node: Node) -> Callable[..., Any]:
    """A target with its arguments; of a class that only describes environments, such as TRL's specs, their maker."""
    if hasattr(locate(node["_target_"]), upstream.ENVIRONMENT_FACTORY):
        return getattr(build(node), upstream.ENVIRONMENT_FACTORY)
    return build(dict(node) | {"_partial_": True})


def check_environments(trainer: Node, rows: Any) -> None:
    """Raise DataError where there are several environments, and a row (of a stream a first one) names none of them."""
    known = trainer.get(upstream.ENVIRONMENT_FACTORY) or {}
    if known and "_target_" not in known:
        is_whole = isinstance(rows, Dataset) and "environment" in rows.column_names
        named = rows.unique("environment") if is_whole else [row.get("environment") for row in islice(rows, 100)]
        if unknown := [name for name in named if name not in known]:
            raise DataError(fault("training.no_environment", name=unknown[0], known=", ".join(known)))
