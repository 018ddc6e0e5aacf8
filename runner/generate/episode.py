"""One completion while it is made, and what its environment is asked: to begin, to respond, to pay.

The environment is that of an experiment (``environment=``), or one that a trainer is given
(``environment_factory``). Whatever fails here is a fault with the row and the turn.
"""

import asyncio
import atexit
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from runner.errors import ConfigError, DataError, Fault, RunnerError
from runner.io.files import JsonObject
from runner.io.turns import Row, TurnDict
from runner.reward.answer import quote_prompt
from runner.schema.text import short_text

Tool: TypeAlias = Callable[..., object]
Environments: TypeAlias = Callable[[], object] | Mapping[str, Callable[[], object]]
Earned: TypeAlias = Mapping[str, float | None]  # by the names of rewards; None does not apply
LOOP = asyncio.Runner()  # the one of all coroutines, to which what they open is bound
atexit.register(LOOP.close)
RESET = "reset"
RESPOND = "respond"
REWARD = "get_reward"
NO_TOOLS = (RESET, RESPOND, REWARD)  # methods of an environment that are not the model's to call
# The column of what episodes have earned, which rewards of an experiment's environment read.
EARNED = "environment_rewards"
# The column of the episodes themselves, as ``Episode.shown``.
PLAYED = "environment_episodes"
ROW = "row"  # the column with the number of a row that an environment has made

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Environment:
    """The environment of an experiment: what makes its episodes, and how they are counted."""

    make: Callable[[], object]
    rewards: Mapping[str, float]  # the weights of its rewards by their names
    skips: bool = False  # an episode that fails ends itself alone, without a reward
    single_turn: bool = False  # one turn of the model is a whole episode
    has_tools: bool = False  # the model may call some
    max_turns: int | None = None  # of the model in an episode
    failures: list[Fault] = field(default_factory=list)  # of episodes that were skipped

    def __call__(self) -> object:
        """An episode's side of the environment, which has not begun."""
        return self.make()


@dataclass(eq=False)
class Episode:
    """One completion while it is made: its turns, and its token ids with their writers."""

    prompt: list[TurnDict]
    prompt_ids: list[int]
    tools: Mapping[str, Tool]
    environment: Any = None
    arguments: Row = field(default_factory=dict)  # of the template, that come with the row
    turns: list[TurnDict] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)  # for each token true where the model wrote it
    logprobs: list[float] = field(default_factory=list)  # of the model's own tokens
    calls: int = 0
    failures: int = 0  # of calls
    row: Row = field(default_factory=dict)
    has_failed: bool = False  # its environment has, and the run goes on without it
    earned: Earned | None = None  # of the environment of an experiment, when it is over

    @property
    def counts(self) -> tuple[int, int, int]:
        """Turns of the model, calls in them, and those of the calls that failed."""
        turns = sum(turn["role"] == "assistant" for turn in self.turns)
        return turns, self.calls, self.failures

    @property
    def shown(self) -> JsonObject:
        """The conversation of it, and the tokens of its prompt."""
        return {"prompt": self.prompt, "completion": self.turns, "prompt_ids": self.prompt_ids}

    @property
    def schemas(self) -> list[Any]:
        """The tools that the environment answers by ``respond``, as JSON schemas."""
        return list(getattr(self.environment, "schemas", None) or ())

    @property
    def offered(self) -> list[Any]:
        """All tools that the model may call, as the template takes them."""
        return [*self.tools.values(), *self.schemas]

    @property
    def responds(self) -> bool:
        """True where the environment has a word after turns that call no method."""
        return hasattr(self.environment, RESPOND) and not self.has_failed

    def calls_schema(self, message: TurnDict) -> bool:
        """True for a turn with calls that are not the methods'."""
        names = {call["function"]["name"] for call in message.get("tool_calls") or ()}
        return bool(self.schemas) and not names <= set(self.tools)

    def extend(self, ids: Sequence[int], *, own: bool) -> None:
        """Add tokens of the model, or of a tool."""
        self.token_ids += ids
        self.own += [own] * len(ids)


def methods_of(kind: type) -> dict[str, Tool]:
    """The public methods of a class of environments, sorted by name; as in TRL no static ones."""
    members = inspect.getmembers_static(kind, inspect.isfunction)
    return {name: method for name, method in members if not name.startswith("_")}


def tools_of(environment: object) -> list[Tool]:
    """The methods of an environment that a model may call."""
    names = [name for name in methods_of(type(environment)) if name not in NO_TOOLS]
    return [getattr(environment, name) for name in names]


# --- What an environment is asked -----------------------------------------------------------------
def begin(episodes: Sequence[Episode], maker: object) -> None:
    """Begin the environments of episodes, made by ``maker``; what they show joins the prompts.

    A text goes behind the last turn, and turns take the place of the prompt.
    """
    played = [episode for episode in episodes if episode.environment is not None]
    calls = [partial(episode.environment.reset, **episode.row) for episode in played]
    for episode, observation in zip(played, _ask(played, calls, maker), strict=True):
        if isinstance(observation, list):
            episode.prompt = [dict(turn) for turn in observation]
        elif observation is not None:
            last_turn = episode.prompt[-1]
            last_turn["content"] = last_turn["content"] + observation


def respond(
    episodes: Sequence[Episode], maker: object, messages: Sequence[TurnDict]
) -> list[list[TurnDict]]:
    """The turns that environments give after messages of the model; none where it is over."""
    calls = []
    for episode, message in zip(episodes, messages, strict=True):
        calls.append(partial(episode.environment.respond, message))
    turns = []
    for reply in _ask(episodes, calls, maker):
        turns.append([dict(turn) for turn in reply or ()])
    return turns


def earn(episodes: Sequence[Episode], environment: Environment) -> None:
    """Have the environment pay for episodes that are over; one that has failed earns nothing.

    Raises DataError where all have failed.
    """
    played = []
    if environment.rewards:
        played = [episode for episode in episodes if not episode.has_failed]
    calls = [episode.environment.get_reward for episode in played]
    for episode, paid in zip(played, _ask(played, calls, environment), strict=True):
        if not episode.has_failed:
            episode.earned = _by_name(paid, environment, type(episode.environment).__name__)
    if episodes and all(episode.has_failed for episode in episodes):
        last = environment.failures[-1]
        raise DataError(replace(last, found=f"every episode of a batch failed; {last.found}"))


def _by_name(paid: Any, environment: Environment, class_name: str) -> Earned:
    """The rewards of an episode, by their names."""
    names = list(environment.rewards)
    if not isinstance(paid, Mapping) and len(names) == 1:
        return {names[0]: paid}
    if isinstance(paid, Mapping) and set(paid) <= set(names):
        return paid
    raise DataError(
        Fault(
            where="environment",
            found=f"{class_name}.get_reward gave {short_text(paid)}",
            expected=f"numbers by the names of its rewards: {', '.join(names)}",
            fix="mend the attribute rewards of the source, which lists the names",
        )
    )


def _ask(
    episodes: Sequence[Episode], calls: Sequence[Callable[[], object]], maker: object
) -> list[Any]:
    """The results of a call for each episode; None where its environment fails, if that may be."""
    results: list[object] = []
    for call in calls:
        try:
            results.append(call())
        except RunnerError as error:
            results.append(error)
    answers = []
    for episode, result in zip(episodes, settle(results, with_errors=True), strict=True):
        if isinstance(result, BaseException):
            _note_failure(episode, result, maker)
            result = None
        answers.append(result)
    return answers


def _note_failure(episode: Episode, error: BaseException, maker: object) -> None:
    """Raise the error of an environment with its row and turn, unless the run skips the episode."""
    if not isinstance(error, RunnerError):
        raise error
    number = episode.row.get(ROW)
    row = f"row {number}" if number is not None else quote_prompt([episode.prompt], 0)
    place = f"turn {episode.counts[0]} of {row}"
    environment = maker if isinstance(maker, Environment) else None
    skips = environment is not None and environment.skips
    placed = []
    for fault in error.faults:
        fix = fault.fix
        if environment is not None and not skips and not isinstance(error, ConfigError):
            fix = f"{fix}, or environment.on_error=skip"
        placed.append(replace(fault, found=f"{place}: {fault.found}", fix=fix))
    error.faults = placed
    if environment is None or not environment.skips:
        raise error
    episode.has_failed = True
    environment.failures.append(error.faults[0])
    count = len(environment.failures)
    if str(count).strip("0") == "1":
        log.warning(
            "failed episode %d of the environment, skipped: %s", count, error.faults[0].found
        )


def settle(values: Sequence[Any], *, with_errors: bool = False) -> list[Any]:
    """The values, with the results of coroutines in their place, which run side by side.

    An error of a coroutine is raised, or stands in its place if ``with_errors``.
    """
    awaitable = [value for value in values if inspect.isawaitable(value)]
    if not awaitable:
        return list(values)

    async def gather() -> list[Any]:
        return await asyncio.gather(*awaitable, return_exceptions=with_errors)

    results = iter(LOOP.run(gather()))
    settled = []
    for value in values:
        if inspect.isawaitable(value):
            value = next(results)
        settled.append(value)
    return settled
