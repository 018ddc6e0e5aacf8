"""Tools and environments of the user's as a conversation calls them: timed and checked.

They answer with text and do not disturb the random numbers of the training. A call of a model's
that fails raises, which the model is to see, with a warning in the log; where ``reset`` or
``get_reward`` fails, the run ends. Nothing of a training is here, and no conversation.
"""

import asyncio
import contextlib
import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from transformers.utils import get_json_schema

from runner.config.experiment import TrainerPart
from runner.errors import ConfigError, DataError, Fault, RunnerError, describe
from runner.generate.call_log import CallLog
from runner.generate.episode import NO_TOOLS, RESET, RESPOND, REWARD, Tool, methods_of
from runner.io.turns import TurnDict, text_of
from runner.reward.answer import check_answer
from runner.reward.isolation import undisturbed
from runner.reward.time_limit import within
from runner.schema.modality import PART_TYPES
from runner.schema.text import short_text

SECONDS = TrainerPart.tool_timeout  # of one call, unless the config says otherwise
# Of one answer. To encode more would take a second, and no completion could hold it.
MAX_CHARACTERS = 1_000_000

ENVIRONMENT = "environment"  # the key of an experiment's own; another is the trainer's

log = logging.getLogger(__name__)


@dataclass
class Guard:
    """The calls of one function: the time for each, and the number of those that have failed."""

    name: str
    seconds: float
    ends: bool = False  # a failure ends the run, or its episode
    failed: int = 0
    awaited: int = 0  # coroutines that run side by side
    # Entered by the first of these coroutines, closed by the last.
    undisturbed: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def guard(
        self,
        function: Tool,
        check: Callable[[str, object], object],
        bound: Mapping[str, object],
        where: str,
    ) -> Tool:
        """The guarded function; raises ConfigError for one without a schema.

        Its ``bound`` arguments are not in the schema. Its random numbers follow from the training's
        and from its other arguments, so that a resumed run has the same.
        """

        @functools.wraps(function)
        def call(*args: object, **arguments: object) -> object:
            with (
                self._explained(arguments, where),
                within(self.seconds, TimeoutError),
                self._undisturbed(arguments, args[1:]),
            ):
                return check(self.name, function(*args, **arguments, **bound))

        @functools.wraps(function)
        async def call_later(*args: object, **arguments: object) -> object:
            self.awaited += 1
            if self.awaited == 1:
                # A coroutine that lets no other one run is interrupted, and has failed then.
                self.undisturbed.enter_context(contextlib.suppress(TimeoutError))
                self.undisturbed.enter_context(within(2 * self.seconds, TimeoutError))
                self.undisturbed.enter_context(self._undisturbed(arguments, args[1:]))
            try:
                with self._explained(arguments, where):
                    coroutine: Any = function(*args, **arguments, **bound)
                    return check(self.name, await asyncio.wait_for(coroutine, self.seconds))
            finally:
                self.awaited -= 1
                if not self.awaited:
                    self.undisturbed.close()

        guarded: Any = call_later if inspect.iscoroutinefunction(function) else call
        try:
            self._sign(guarded, function, bound)
        except Exception as error:  # a type hint is code, and can fail in any way
            raise ConfigError(
                Fault(
                    where=where,
                    found=describe(error),
                    expected="a type for each argument, and a docstring that describes the tool "
                    "and, under Args, each argument",
                    fix="write it there",
                )
            ) from error
        return guarded  # type: ignore[no-any-return]

    def _sign(self, guarded: Any, function: Tool, bound: Mapping[str, object]) -> None:
        """Give the guarded function the name and signature by which its schema is made."""
        signature = inspect.signature(function)
        free = [parameter for name, parameter in signature.parameters.items() if name not in bound]
        annotations = function.__annotations__.items()
        guarded.__signature__ = signature.replace(parameters=free)
        guarded.__name__ = self.name.rpartition(".")[2]
        guarded.__annotations__ = {name: kind for name, kind in annotations if name not in bound}
        if not self.ends:
            get_json_schema(guarded)

    def _undisturbed(
        self, arguments: Mapping[str, object], positional: tuple[object, ...]
    ) -> AbstractContextManager[None]:
        """Random numbers of the call's own inside, and after it those of the training."""
        states = [torch.random.get_rng_state()]
        if torch.cuda.is_initialized():
            states.append(torch.cuda.get_rng_state())
        state = torch.cat(states).numpy().tobytes()
        digest = hashlib.sha256(state).hexdigest()
        sources: list[object] = [arguments, digest]
        if positional:  # of an environment, which hears a message
            sources.append(positional)
        return undisturbed(self.name, sources)

    @contextlib.contextmanager
    def _explained(self, arguments: Mapping[str, object], where: str) -> Iterator[None]:
        """Say which call failed; one that would end Python has failed too.

        The error goes on to the model, with a warning of the first, the tenth, the hundredth; or a
        DataError ends the run.
        """
        try:
            yield
        except RunnerError:
            raise
        except (Exception, SystemExit) as error:
            explained = self._explain(error)
            message = describe(explained)
            asked = f", asked {short_text(dict(arguments))}" if arguments else ""
            if self.ends:
                fix = f"mend {self.name}, or leave the row out"
                if where == ENVIRONMENT:
                    fix = f"mend {self.name}"
                    if isinstance(error, TimeoutError) and not str(error):
                        fix = f"environment.timeout={2 * self.seconds:g}"
                raise DataError(
                    Fault(
                        where=where,
                        found=f"{self.name} failed{asked}: {message}",
                        expected="a method that takes the columns of any row, and returns in time",
                        fix=fix,
                    )
                ) from error
            self.failed += 1
            if str(self.failed).strip("0") == "1":
                log.warning("failed call %d of %s%s: %s", self.failed, self.name, asked, message)
            raise explained from error

    def _explain(self, error: BaseException) -> Exception:
        """The error itself, or one with words where it has none or would end Python."""
        if isinstance(error, Exception) and str(error):
            return error
        if isinstance(error, TimeoutError):
            return RuntimeError(f"{self.name} took longer than {self.seconds:g} s and was ended")
        return RuntimeError(f"{self.name} raised {error!r}")


def guard_tool(
    call: object,
    where: str,
    bound: Mapping[str, object],
    seconds: float = SECONDS,
    calls: CallLog | None = None,
) -> Tool:
    """A function that a model may call, with some of its arguments bound.

    Raises ConfigError for what cannot be called or has no schema.
    """
    if not callable(call):
        raise ConfigError(
            Fault(
                where=where,
                found=f"{short_text(call)}, which cannot be called",
                expected="a function, or a class whose instances are called",
                fix="=<module.function>",
            )
        )
    function: Any = call if inspect.isroutine(call) else call.__call__
    name = getattr(call, "__name__", type(call).__name__)
    guard = Guard(name, seconds)
    guarded = guard.guard(function, check_text, bound, where)
    return calls.recorded(guarded, name) if calls else guarded


def guard_environment(
    make: Callable[[], object],
    where: str,
    seconds: float = SECONDS,
    calls: CallLog | None = None,
    target: object = None,
) -> Callable[[], object]:
    """A maker of the same environments with guarded methods.

    The first that cannot be used raises ConfigError. Where calls are played back, an environment is
    an empty object of its class: its ``target`` makes none.
    """

    def make_guarded() -> object:
        kind: Any = calls.played_class(target) if calls else None
        if kind is not None:
            environment = kind.__new__(kind)
        else:
            with undisturbed(where, []):
                environment = make()
            kind = type(environment)
        guarded_class = _guarded_class(kind, where, seconds, calls)
        # Environments may be frozen.
        object.__setattr__(environment, "__class__", guarded_class)
        return environment

    return make_guarded


@functools.cache  # since a trainer takes each class for one reward
def _guarded_class(kind: type, where: str, seconds: float, calls: CallLog | None) -> type:
    """The class with its public methods guarded."""
    methods = methods_of(kind)
    # TRL calls this method, and awaits nothing; in the environment of an experiment we do.
    is_late = inspect.iscoroutinefunction(methods.get(RESET)) and where != ENVIRONMENT
    if RESET not in methods or is_late:
        raise ConfigError(
            Fault(
                where=where,
                found=f"{kind.__name__} has no method reset, or an async one",
                expected="reset(self, **row), which starts anew and returns a text to add to the "
                "prompt, or nothing",
                fix="write it there",
            )
        )
    attributes: dict[str, object] = {"__slots__": (), "__module__": kind.__module__}
    for name, method in methods.items():
        guard = Guard(f"{kind.__name__}.{name}", seconds, ends=name in NO_TOOLS)
        check = CHECKS.get(name, check_text)
        guarded = guard.guard(method, check, {}, where)
        if calls is not None:
            guarded = calls.recorded(guarded, guard.name, of_environment=True)
        attributes[name] = guarded
    return type(kind.__name__, (kind,), attributes)


def check_text(name: str, answer: object) -> object:
    """The answer of a tool as text; content blocks with an image, say, as they are.

    Raises TypeError or ValueError for what is no text, or too long a text.
    """
    if isinstance(answer, list) and answer and all(isinstance(part, dict) for part in answer):
        if any(part.get("type") in PART_TYPES for part in answer):
            return answer
        if all(part.keys() == {"type", "text"} for part in answer):
            answer = text_of([{"content": answer}])
    if not isinstance(answer, str | int | float | list | tuple | dict):
        raise TypeError(
            f"{name} returned {short_text(answer)}, a {type(answer).__name__}, not a text"
        )
    text = str(answer)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"{name} returned {len(text):,} characters, "
            f"of which {MAX_CHARACTERS:,} would be too many"
        )
    text.encode()  # raises for half a surrogate, which no tokenizer knows
    return text


def check_observation(name: str, answer: object) -> object:
    """The answer of ``reset``: a text, turns that take the place of the prompt, or None."""
    if answer is None:
        return None
    if _are_turns(answer):
        return _check_turns(name, answer)
    return check_text(name, answer)


def check_response(name: str, answer: object) -> object:
    """The answer of ``respond``: the turns that come next, or None."""
    if answer is None or answer == []:
        return answer
    if _are_turns(answer):
        return _check_turns(name, answer)
    raise TypeError(
        f"{name} returned {short_text(answer)}, not turns with a role and a content, or None"
    )


def _are_turns(answer: object) -> TypeGuard[Sequence[TurnDict]]:
    if not isinstance(answer, list | tuple) or not answer:
        return False
    return all(isinstance(turn, dict) and {"role", "content"} <= set(turn) for turn in answer)


def _check_turns(name: str, turns: Sequence[TurnDict]) -> Sequence[TurnDict]:
    """The turns, each with a content that a tokenizer takes."""
    for turn in turns:
        content = turn["content"]
        if not isinstance(content, str | list):
            raise TypeError(f"{name} returned a turn whose content is {content}, not a text")
        check_text(name, content)
    return turns


def check_reward(name: str, answer: object) -> object:
    """The answer of ``get_reward``: a number, None, or one of these for each name."""
    if isinstance(answer, Mapping):
        return {key: check_reward(f"{name}.{key}", value) for key, value in answer.items()}
    try:
        (reward,) = check_answer(name, [answer], [""])
    except RunnerError as error:
        fault = Fault(
            where=name,
            found=f"{type(answer).__name__} {short_text(answer)}",
            expected="a finite number, or None where the reward does not apply",
            fix=f"mend {name}",
        )
        error.faults = [fault]
        raise
    return reward


# Of methods that no model calls.
CHECKS = {RESET: check_observation, RESPOND: check_response, REWARD: check_reward}
