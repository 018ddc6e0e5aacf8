"""Tools and environments of the user's as a conversation calls them: in time, with text, and beside the training.

A call of a model's that fails raises, which the model is to see, with a warning in the log; where ``reset`` or
``get_reward`` fails, the run ends. Nothing of a training is here, and no conversation.
"""

import asyncio
import contextlib
import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.utils import get_json_schema

from runner.errors import ConfigError, DataError, RunnerError, describe, fault
from runner.generate.agent import NO_TOOLS, methods_of
from runner.io.turns import text_of
from runner.reward.panel import check_answer, undisturbed, within
from runner.schema.text import short_text

SECONDS = 60.0  # of one call, unless the config says otherwise
MAX_CHARACTERS = 1_000_000  # of one answer, which would take a second to encode, and fits no completion

log = logging.getLogger(__name__)


@dataclass
class Guard:
    """The calls of one function: ``seconds`` for each, and how many have failed; a failure may end the run."""

    name: str
    seconds: float
    ends: bool = False
    failed: int = 0
    awaited: int = 0  # coroutines that run side by side
    kept: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def guard(
        self, function: Callable[..., Any], check: Callable[[str, Any], Any], bound: Mapping[str, Any], where: str
    ) -> Callable[..., Any]:
        """The function with ``bound`` arguments, which its schema leaves out; raises ConfigError for one without.

        Its random numbers follow from the training's and from what it is asked, so that a resumed run has the same.
        """

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            with self._explained(given), within(self.seconds, TimeoutError), self._undisturbed(given):
                return check(self.name, function(*args, **given, **bound))

        @functools.wraps(function)
        async def call_later(*args: Any, **given: Any) -> Any:
            self.awaited += 1
            if self.awaited == 1:
                self.kept.enter_context(self._undisturbed(given))
            try:
                with self._explained(given):
                    return check(self.name, await asyncio.wait_for(function(*args, **given, **bound), self.seconds))
            finally:
                self.awaited -= 1
                if not self.awaited:
                    self.kept.close()

        made: Any = call_later if inspect.iscoroutinefunction(function) else call
        try:
            signature = inspect.signature(function)
            free = [each for name, each in signature.parameters.items() if name not in bound]
            made.__signature__, made.__name__ = signature.replace(parameters=free), self.name.rpartition(".")[2]
            made.__annotations__ = {name: kind for name, kind in function.__annotations__.items() if name not in bound}
            None if self.ends else get_json_schema(made)
        except Exception as error:  # a type hint is code, and can fail in any way
            raise ConfigError(fault("generate.no_schema", where=where, error=describe(error))) from error
        return made

    def _undisturbed(self, given: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        states = [torch.random.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]
        return undisturbed(self.name, [given, hashlib.sha256(torch.cat(states).numpy().tobytes()).hexdigest()])

    @contextlib.contextmanager
    def _explained(self, given: Mapping[str, Any]) -> Iterator[None]:
        """Warn of the first call that fails, the tenth, the hundredth; a call to end Python is a failure too."""
        try:
            yield
        except RunnerError:
            raise
        except (Exception, SystemExit) as error:
            late = isinstance(error, TimeoutError) and not str(error)
            what = f"took longer than {self.seconds:g} s and was ended" if late else f"raised {error!r}"
            known = error if isinstance(error, Exception) and str(error) else RuntimeError(f"{self.name} {what}")
            asked, found = short_text(dict(given)), describe(known)
            if self.ends:
                raise DataError(fault("generate.method_failed", name=self.name, error=found, asked=asked)) from error
            self.failed += 1
            if str(self.failed).strip("0") == "1":
                log.warning("failed call %d of %s, asked %s: %s", self.failed, self.name, asked, found)
            raise known from error


def guard_tool(call: object, where: str, bound: Mapping[str, Any], seconds: float = SECONDS) -> Callable[..., Any]:
    """A function that a model may call, with some of its arguments bound; raises ConfigError without a schema."""
    if not callable(call):
        raise ConfigError(fault("generate.no_tool", where=where, text=short_text(call)))
    function: Any = call if inspect.isroutine(call) else call.__call__
    return Guard(getattr(call, "__name__", type(call).__name__), seconds).guard(function, check_text, bound, where)


def guard_environment(make: Callable[[], Any], where: str, seconds: float = SECONDS) -> Callable[[], Any]:
    """A maker of the same environments with guarded methods; raises ConfigError at the first that cannot be used."""

    def made() -> Any:
        with undisturbed(where, []):
            environment = make()
        kind: Any = type(environment)
        object.__setattr__(environment, "__class__", _guarded(kind, where, seconds))  # frozen ones too
        return environment

    return made


@functools.cache  # since a trainer takes each class for one reward
def _guarded(kind: Any, where: str, seconds: float) -> type:
    methods = methods_of(kind)
    if "reset" not in methods or inspect.iscoroutinefunction(methods["reset"]):
        raise ConfigError(fault("generate.no_reset", where=where, name=kind.__name__))
    for name, method in methods.items():
        guard = Guard(f"{kind.__name__}.{name}", seconds, ends=name in NO_TOOLS)
        methods[name] = guard.guard(method, OWN_CHECKS.get(name, check_text), {}, where)
    return type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__} | methods)


def check_text(name: str, answer: Any) -> Any:
    """The answer of a tool as text; content blocks with a picture as they are; TypeError, ValueError for no text."""
    blocks = isinstance(answer, list) and answer and all(isinstance(part, dict) for part in answer)
    if blocks and any(part.get("type") == "image" for part in answer):
        return answer
    if blocks and all(part.keys() == {"type", "text"} for part in answer):
        answer = text_of([{"content": answer}])
    if not isinstance(answer, str | int | float | list | tuple | dict):
        raise TypeError(f"{name} returned {short_text(answer)}, a {type(answer).__name__}, and no text")
    if len(text := str(answer)) > MAX_CHARACTERS:
        raise ValueError(f"{name} returned {len(text):,} characters, of which {MAX_CHARACTERS:,} would be too many")
    text.encode()  # halves of surrogates are in no alphabet of a tokenizer
    return text


OWN_CHECKS = {  # of methods that no model calls
    "reset": lambda name, answer: None if answer is None else check_text(name, answer),
    "get_reward": lambda name, answer: check_answer(f"trainer.{name}", [answer], [""])[0],
}
