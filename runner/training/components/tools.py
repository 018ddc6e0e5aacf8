"""Functions of the user's that a conversation calls: tools, environments and a rollout.

``generate.tool_guard`` guards them.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from runner.config.build import build, locate
from runner.config.experiment import EnvironmentPart, TrainerPart
from runner.errors import ConfigError, DataError, Fault
from runner.generate.agent import Agent, build_agent
from runner.generate.call_log import CallLog
from runner.generate.environment.contract import (
    episode_maker,
    is_source,
    open_environment,
    reward_weights,
)
from runner.generate.episode import REWARD, Environment, tools_of
from runner.generate.tool_guard import ENVIRONMENT, SECONDS, guard_environment, guard_tool
from runner.io.files import CALLS
from runner.run import Run
from runner.schema import upstream
from runner.schema.literal import to_list
from runner.schema.text import Node, named

if TYPE_CHECKING:
    from transformers import TrainingArguments

Function: TypeAlias = Callable[..., object]


def build_functions(
    trainer: TrainerPart,
    environment: EnvironmentPart | None = None,
    calls: CallLog | None = None,
) -> dict[str, Any]:
    """The user's functions that a trainer names, by key, as its constructor takes them.

    The ``environment`` of an experiment is among them. ``calls`` records what they are asked.
    """
    seconds = trainer.tool_timeout or SECONDS
    functions: dict[str, Any] = {}
    for key in upstream.FUNCTIONS:
        node = trainer.node.get(key)
        if not node:
            continue
        if key == "rollout_func":
            is_function = inspect.isfunction(locate(node["_target_"]))
            functions[key] = _bind(node) if is_function else build(node)
        elif key == "environment_factory":
            functions[key] = _build_environments(node, seconds, calls)
        else:
            functions[key] = _build_tools(to_list(node), seconds, calls)
    if environment is not None:
        functions["environment_factory"] = build_environment(environment, calls)
    return functions


def build_call_log(run: Run, args: "TrainingArguments") -> CallLog | None:
    """The record of the calls of a run's tools and environments.

    None without any, and for several processes, whose calls have no order.
    """
    experiment = run.experiment
    calls_any = has_tools(experiment.trainer) or experiment.environment is not None
    if not calls_any or args.world_size > 1:
        return None
    original = run.manifest().get("replays")
    return CallLog(run.folder / CALLS, Path(original, CALLS) if original else None)


def has_tools(trainer: TrainerPart) -> bool:
    """True where a trainer names functions that a model may call."""
    return bool(trainer.node.get("tools") or trainer.node.get("environment_factory"))


def build_environment(part: EnvironmentPart, calls: CallLog | None = None) -> Environment:
    """The environment of an experiment, with guarded methods and the weights of its rewards."""
    rewards: Any = ()
    source = None
    if is_source(part):
        source = open_environment(part)
        rewards = getattr(source, "rewards", None) or [type(source).__name__]
    elif hasattr(locate(part.target), REWARD):
        rewards = [part.target.rpartition(".")[2]]
    target = locate(part.target)
    make = guard_environment(episode_maker(part), ENVIRONMENT, part.timeout, calls, target)
    return Environment(
        make=make,
        rewards=reward_weights(rewards, part.weights),
        skips=part.on_error == "skip",
        single_turn=bool(getattr(source, "single_turn", False)),
        has_tools=bool(tools_of(make())) or bool(getattr(source, "calls_tools", False)),
        max_turns=part.max_turns,
    )


def agent_of(trainer: TrainerPart, functions: Mapping[str, Any]) -> Agent | None:
    """The agent that answers with a trainer's functions in our own conversations.

    None without tools and an environment.
    """
    return build_agent(
        functions.get("tools"),
        functions.get("environment_factory"),
        trainer.args.get("max_tool_calling_iterations"),
    )


def _build_environments(
    node: Node, seconds: float, calls: CallLog | None
) -> Function | dict[str, Function]:
    """The guarded maker of the only environment, or those of several by their names."""
    where = "trainer.environment_factory"
    makers = {}
    for name, environment in named(node, "").items():
        target = locate(environment["_target_"])
        makers[name] = guard_environment(_bind(environment), where, seconds, calls, target)
    return makers.get("", makers)


def _build_tools(nodes: list[Node], seconds: float, calls: CallLog | None) -> list[Function]:
    """The guarded tools; ConfigError where two have one name."""
    where = "trainer.tools"
    tools = [_build_tool(node, where, seconds, calls) for node in nodes]
    names = [tool.__name__ for tool in tools]
    if len(set(names)) < len(names):
        ((name, _),) = Counter(names).most_common(1)
        raise ConfigError(
            Fault(
                where=where,
                found=f"several tools named {name}, but a model could call only one of them",
                expected="a different name for each",
                fix=f"mend {name}, by a function of another name that calls it",
            )
        )
    return tools


def _build_tool(node: Node, where: str, seconds: float, calls: CallLog | None) -> Function:
    """A function with the node's other keys bound, or a tool that a class or a function makes."""
    target = locate(node["_target_"])
    if inspect.isroutine(target):
        result = inspect.signature(target).return_annotation
        if "Callable" not in str(result):
            settings = {key: build(value) for key, value in node.items() if key != "_target_"}
            return guard_tool(target, where, settings, seconds, calls)
    return guard_tool(build(node), where, {}, seconds, calls)


def _bind(node: Node) -> Function:
    """A target with its arguments bound.

    Of a class that only describes environments, such as TRL's specs, it is the maker of them.
    """
    bound: Function
    if hasattr(locate(node["_target_"]), "environment_factory"):
        bound = build(node).environment_factory
    else:
        bound = build({**node, "_partial_": True})
    return bound


def check_environments(trainer: TrainerPart, rows: Any) -> None:
    """Raise DataError where a row names none of several environments; of a stream, a first row."""
    environments = trainer.node.get("environment_factory") or {}
    if not environments or "_target_" in environments:
        return
    # A stream of rows does not know its values.
    if hasattr(rows, "unique") and "environment" in rows.column_names:
        names = rows.unique("environment")
    else:
        names = [row.get("environment") for row in islice(rows, 100)]
    for name in names:
        if name not in environments:
            raise DataError(
                Fault(
                    where="dataset",
                    found=f"a row whose column environment holds {name!r}",
                    expected=f"one of {', '.join(environments)}",
                    fix="mend the rows, or trainer.environment_factory.<name>=<module.Class>",
                )
            )
