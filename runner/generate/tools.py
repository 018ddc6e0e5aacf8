"""Tools and environments of the user's as a conversation calls them: in time, with text, and beside the training.

What a model asks may be wrong: a call that fails raises, whoever leads the conversation tells the model, and the log is
warned. What ``reset`` and ``get_reward`` are asked is not the model's, and a failure of theirs ends the run. Nothing of
a training is here, and no conversation.
"""

import asyncio
import contextlib
import functools
import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.utils import get_json_schema

from runner.errors import ConfigError, DataError, RunnerError, describe, fault, own_place
from runner.generate.agent import NO_TOOLS
from runner.reward.panel import check_answer, undisturbed, within
from runner.schema.text import short_text

SECONDS = 60.0  # of one call, unless the config says otherwise

log = logging.getLogger(__name__)


@dataclass
class Guard:
    """The calls of one function: ``seconds`` for each, and how many of them have failed."""

    name: str
    seconds: float = SECONDS
    failed: int = 0
    awaited: int = 0  # coroutines that run side by side
    kept: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def late(self) -> TimeoutError:
        return TimeoutError(f"{self.name} took longer than {self.seconds:g} s and was ended")

    @contextlib.contextmanager
    def counted(self, given: Mapping[str, Any]) -> Iterator[None]:
        """Warn of the first call that fails, the tenth, the hundredth; a call to end Python is a failure too."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self.failed += 1
            if str(self.failed).strip("0") == "1":
                call, found = f"{self.name}({short_text(dict(given))})", describe(error)
                log.warning(
                    "failed call %d of %s: %s: %s; and the model learns of it", self.failed, self.name, call, found
                )
            if isinstance(error, SystemExit):
                raise RuntimeError(f"{self.name} would end the training") from error
            raise

    @contextlib.contextmanager
    def ended(self, given: Mapping[str, Any]) -> Iterator[None]:
        """End the run with a failure, and with the method and what it was asked."""
        try:
            yield
        except RunnerError:
            raise
        except Exception as error:
            place, found = own_place(error) or self.name, describe(error)
            asked = short_text(dict(given)) if given else "nothing"
            failed = fault("generate.method_failed", name=self.name, error=found, asked=asked, place=place)
            raise DataError(failed) from error

    def guarded(
        self, function: Callable[..., Any], check: Callable[[str, Any], Any], bound: Mapping[str, Any], *, ends: bool
    ) -> Callable[..., Any]:
        """The function with ``bound`` arguments, which a schema leaves out; what it returns is checked.

        Its random numbers follow from the training's and from what it is asked, so that a run that is resumed has the
        same; of coroutines that run side by side from what the first was asked.
        """
        around = self.ended if ends else self.counted

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            kept = undisturbed(self.name, [given, _random_state()])
            with around(given), within(self.seconds, self.late), kept:
                return check(self.name, function(*args, **given, **bound))

        @functools.wraps(function)
        async def call_later(*args: Any, **given: Any) -> Any:
            if not self.awaited:
                self.kept.enter_context(undisturbed(self.name, [given, _random_state()]))
            self.awaited += 1
            try:
                with around(given):
                    try:
                        answer = await asyncio.wait_for(function(*args, **given, **bound), self.seconds)
                    except TimeoutError as error:
                        raise self.late() from error
                    return check(self.name, answer)
            finally:
                self.awaited -= 1
                if not self.awaited:
                    self.kept.close()

        made: Any = call_later if inspect.iscoroutinefunction(function) else call
        signature = inspect.signature(function)
        free = [each for name, each in signature.parameters.items() if name not in bound]
        made.__signature__, made.__name__ = signature.replace(parameters=free), self.name.rpartition(".")[2]
        made.__annotations__ = {name: kind for name, kind in function.__annotations__.items() if name not in bound}
        return made


def guard_tool(call: object, where: str, bound: Mapping[str, Any], seconds: float = SECONDS) -> Callable[..., Any]:
    """A function that a model may call, with some of its arguments bound; raises ConfigError without a schema."""
    if not callable(call):
        raise ConfigError(fault("generate.no_tool", where=where, text=short_text(call)))
    function: Any = call if inspect.isroutine(call) else call.__call__
    name = getattr(call, "__name__", type(call).__name__)
    made = Guard(name, seconds).guarded(function, check_text, bound, ends=False)
    check_schema(made, where)
    return made


def guard_environment(make: Callable[[], Any], where: str, seconds: float = SECONDS) -> Callable[[], Any]:
    """A maker of the same environments with guarded methods; raises ConfigError at the first that cannot be used."""

    def made() -> Any:
        with undisturbed(where, []):
            environment = make()
        kind = type(environment)
        if kind not in known:
            known[kind] = _guarded_class(kind, where, seconds)
        environment.__class__ = known[kind]
        return environment

    known: dict[type, type] = {}
    return made


def _guarded_class(kind: type, where: str, seconds: float) -> type:
    methods = dict(inspect.getmembers(kind, inspect.isfunction))
    if "reset" not in methods:
        raise ConfigError(fault("generate.no_reset", where=where, name=kind.__name__))
    checks = {name: check_text for name in methods if not name.startswith("_")} | OWN_CHECKS
    own: dict[str, Any] = {"__slots__": (), "__module__": kind.__module__, "__doc__": kind.__doc__}
    for name in methods.keys() & checks.keys():
        guard = Guard(f"{kind.__name__}.{name}", seconds)
        own[name] = guard.guarded(methods[name], checks[name], {}, ends=name in NO_TOOLS)
        if name not in NO_TOOLS:
            check_schema(own[name], where)
    return type(kind.__name__, (kind,), own)


def check_schema(tool: Callable[..., Any], where: str) -> None:
    """Raise ConfigError for a tool of which nothing can be said to a model: its docstring and types are what is."""
    try:
        get_json_schema(tool)
    except Exception as error:  # a type hint is code, and can fail in any way
        raise ConfigError(fault("generate.no_schema", where=where, error=describe(error))) from error


def check_text(name: str, answer: Any) -> Any:
    """What a tool gave, as text; content blocks, of which some may be pictures, as they are.

    Raises TypeError for what is no value of JSON.
    """
    if isinstance(answer, list) and answer and all(isinstance(part, dict) and "type" in part for part in answer):
        return answer
    try:
        text = json.dumps(answer)
    except (TypeError, ValueError):
        text = ""
    if text in ("", "null"):
        raise TypeError(f"{name} returned {short_text(answer)}, a {type(answer).__name__}, and no text")
    return str(answer)


def _check_observation(name: str, answer: Any) -> Any:
    return answer if answer is None or isinstance(answer, list) else check_text(name, answer)


def _check_reward(name: str, answer: Any) -> Any:
    return check_answer(f"trainer.{name}", [answer], [""])[0]


OWN_CHECKS = dict(zip(NO_TOOLS, (_check_observation, _check_reward), strict=True))


def _random_state() -> str:
    states = [torch.random.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]
    return hashlib.sha256(b"".join(state.numpy().tobytes() for state in states)).hexdigest()
