"""Completions of several turns: tools answer what the model calls, until it calls nothing more.

    Agent(tools=[search]).play(sampler, tokenizer, rows, how, noise_BR)      an episode for each row

The contract is that of TRL's GRPO: tools are functions with type hints and a docstring; an
environment is an object with ``reset(**row)``, whose other public methods are tools of its own
completion. What tools answer stands in a completion between the tokens of the model; ``own`` says
which are the model's.
"""

import asyncio
import atexit
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response

from runner.errors import DataError, Fault
from runner.generate.faults import long_prompts
from runner.generate.padding import lengthen
from runner.generate.sampler import Sampler, Sampling
from runner.io.files import JsonObject
from runner.io.turns import TEMPLATE_ARGUMENTS, Row, TurnDict
from runner.model.encoding import encode_prompt, write

Tool: TypeAlias = Callable[..., object]
Environments: TypeAlias = Callable[[], object] | Mapping[str, Callable[[], object]]
LOOP = asyncio.Runner()  # the one of all coroutines, to which what they open is bound
atexit.register(LOOP.close)
RESET = "reset"
REWARD = "get_reward"
NO_TOOLS = (RESET, REWARD)  # methods of an environment that are not the model's to call


@dataclass(eq=False)
class Episode:
    """One completion while it is made: its turns, and its token ids with their writers."""

    prompt: list[TurnDict]
    prompt_ids: list[int]
    tools: Mapping[str, Tool]
    environment: object = None
    arguments: Row = field(default_factory=dict)  # of the template, that come with the row
    turns: list[TurnDict] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)  # for each token true where the model wrote it
    logprobs: list[float] = field(default_factory=list)  # of the model's own tokens
    calls: int = 0
    failures: int = 0  # of calls

    @property
    def counts(self) -> tuple[int, int, int]:
        """Turns of the model, calls in them, and those of the calls that failed."""
        turns = sum(turn["role"] == "assistant" for turn in self.turns)
        return turns, self.calls, self.failures

    def extend(self, ids: Sequence[int], *, own: bool) -> None:
        """Add tokens of the model, or of a tool."""
        self.token_ids += ids
        self.own += [own] * len(ids)


@dataclass(frozen=True)
class Agent:
    """Tools, and environments by the name that a row gives them, or one for all rows."""

    tools: Sequence[Tool] = ()
    environments: Environments | None = None
    rounds: int | None = None  # the most turns that may call; None: no limit
    # Called with each turn as it is made.
    on_turn: Callable[[TurnDict], object] = lambda turn: None

    def open(self, row: Row) -> tuple[list[TurnDict], list[Tool], object]:
        """The prompt of a row, the tools that are offered in it, and its new environment, reset."""
        turns = row.get("prompt") or [{"role": "user", "content": ""}]
        prompt = [dict(turn) for turn in turns]
        environment = self._environment(row)
        if environment is None:
            return prompt, list(self.tools), None
        columns = dict(row)
        if isinstance(self.environments, Mapping):
            columns.pop("environment", None)  # the name of the environment itself
        observation = environment.reset(**columns)
        if observation is not None:
            prompt[-1]["content"] = prompt[-1]["content"] + observation
        return prompt, [*self.tools, *tools_of(environment)], environment

    def _environment(self, row: Row) -> Any:
        """A new environment for a row, None without any."""
        make = self.environments
        if isinstance(make, Mapping):
            make = make[row["environment"]]
        return make() if make else None

    def with_tools(self, row: Row) -> JsonObject:
        """A row with the tools that are offered in it, in an environment that has not begun."""
        tools = list(self.tools)
        environment = self._environment(row)
        if environment:
            tools += tools_of(environment)
        return {**row, "tools": tools}

    def own_rewards(self) -> list[Callable[..., object]]:
        """The rewards that environments give by ``get_reward``, one for each class, by its name."""
        makers: Sequence[Callable[[], object]] = []
        if isinstance(self.environments, Mapping):
            makers = [make for make in self.environments.values() if make is not None]
        elif self.environments is not None:
            makers = [self.environments]
        kinds = [type(make()) for make in makers]
        return [_reward_of(kind) for kind in dict.fromkeys(kinds) if hasattr(kind, REWARD)]

    def play(
        self,
        sampler: Sampler,
        tokenizer: PreTrainedTokenizerBase,
        rows: Sequence[Row],
        how: Sampling,
        noise_BR: Tensor,
        *,
        agree: Callable[[int], int] = int,
    ) -> list[Episode]:
        """An episode for each row; answers of tools and the model's turns share ``max_new_tokens``.

        A token takes the noise of its place, so that an episode does not depend on those beside it.
        ``agree`` gives the most episodes that any process has still to go on with, where all of
        them must take as many passes.
        """
        episodes = self._begin(tokenizer, rows, how)
        length = noise_BR.shape[1]
        live = list(range(len(rows)))
        for number in range(length):
            if not agree(len(live)):
                break
            if live:
                turn = live
                lengths = [len(episodes[index].token_ids) for index in live]
            else:
                # The others go on, and need this process to take part.
                turn = [0]
                lengths = [length - 1]
            noises = []
            prefixes = []
            for index, begin in zip(turn, lengths, strict=True):
                noises.append(pad(noise_BR[index, begin:], (0, begin)))
                prefixes.append(lengthen(episodes[index].prompt_ids, episodes[index].token_ids))
            limited = replace(how, max_new_tokens=length - min(lengths))
            drawn = sampler(prefixes, limited, torch.stack(noises))

            calling = []
            for index, prefix, tokens, logprobs in zip(
                live, prefixes, drawn.tokens, drawn.logprobs, strict=False
            ):
                episode = episodes[index]
                room = length - len(episode.token_ids)
                ids = tokens[:room].tolist()
                tools = list(episode.tools.values())
                message = parse_response(tokenizer, ids, prefix=prefix, tools=tools)
                episode.extend(ids, own=True)
                episode.logprobs += logprobs[:room].tolist()
                episode.turns.append(message)
                self.on_turn(message)
                is_whole = ids[-1] in how.stop_ids
                if message.get("tool_calls") and is_whole and number != self.rounds:
                    calling.append(index)

            answers = _call([episodes[index] for index in calling])
            live = []
            for index, turns in zip(calling, answers, strict=True):
                episode = episodes[index]
                for answer in turns:
                    self.on_turn(answer)
                ids = _encode_answers(tokenizer, turns, episode)
                # Otherwise no turn could follow.
                if len(episode.token_ids) + len(ids) < how.limit(episode.prompt_ids):
                    episode.extend(ids, own=False)
                    episode.turns += turns
                    live.append(index)
        return episodes

    def _begin(
        self, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], how: Sampling
    ) -> list[Episode]:
        """An episode for each row, before its first turn; DataError for a prompt without room."""
        episodes: list[Episode] = []
        for index, row in enumerate(rows):
            prompt, tools, environment = self.open(row)
            ids = encode_prompt(tokenizer, prompt, {**row, "tools": tools})
            if how.limit(ids) < 1:
                raise DataError(
                    long_prompts(count=1, row=index, tokens=len(ids), most=how.max_length)
                )
            named_tools = {tool.__name__: tool for tool in tools}
            arguments = {TEMPLATE_ARGUMENTS: row.get(TEMPLATE_ARGUMENTS)}
            episodes.append(Episode(prompt, ids, named_tools, environment, arguments))
        return episodes


def build_agent(
    tools: Sequence[Tool] | None = None,
    environments: Environments | None = None,
    rounds: int | None = None,
) -> Agent | None:
    """The agent of a configuration; None where it has no tools."""
    if tools or environments:
        return Agent(tools or (), environments, rounds)
    return None


def methods_of(kind: type) -> dict[str, Tool]:
    """The public methods of a class of environments, sorted by name; as in TRL no static ones."""
    members = inspect.getmembers_static(kind, inspect.isfunction)
    return {name: method for name, method in members if not name.startswith("_")}


def tools_of(environment: object) -> list[Tool]:
    """The methods of an environment that a model may call."""
    names = [name for name in methods_of(type(environment)) if name not in NO_TOOLS]
    return [getattr(environment, name) for name in names]


def _reward_of(kind: Any) -> Callable[..., object]:
    def get_reward(environments: Sequence[Any], **_: object) -> list[object]:
        results = []
        for environment in environments:
            # The classes of others have rewards of their own.
            reward = None
            if type(environment) is kind:
                reward = environment.get_reward()
            results.append(reward)
        return settle(results)

    get_reward.__name__ = kind.__name__
    return get_reward


def _call(episodes: Sequence[Episode]) -> list[list[TurnDict]]:
    """Turns of tools that answer the calls of the last turn of each episode.

    All calls run side by side. An error is an answer too, from which the model can learn.
    """
    results = []
    for episode in episodes:
        for call in episode.turns[-1]["tool_calls"]:
            results.append(_try(episode.tools, call["function"]))
    settled = iter(settle(results, with_errors=True))
    answers = []
    for episode in episodes:
        turns = []
        for call in episode.turns[-1]["tool_calls"]:
            result = next(settled)
            episode.calls += 1
            if isinstance(result, Exception):
                episode.failures += 1
                result = {"error": str(result)}
            name = call["function"]["name"]
            turns.append({"role": "tool", "name": name, "content": str(result)})
        answers.append(turns)
    return answers


def _try(tools: Mapping[str, Tool], call: Row) -> object:
    """The result of a call, or its error; anything else in a call the model has made up."""
    name = call["name"]
    try:
        if name not in tools:
            return LookupError(f"Tool {name} not found.")
        return tools[name](**call["arguments"])
    except Exception as error:  # of any kind: what tools do is up to them
        return error


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


def _encode_answers(
    tokenizer: PreTrainedTokenizerBase, answers: list[TurnDict], episode: Episode
) -> list[int]:
    """The tokens between the end of a turn that calls and the beginning of the next one.

    They are those that the template writes, found by writing a conversation with and without the
    answers.
    """
    call = {"type": "function", "function": {"name": answers[0]["name"], "arguments": {}}}
    turns: list[TurnDict] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    before = list(write(tokenizer, turns, episode.arguments))
    with_answers = list(
        write(tokenizer, [*turns, *answers], episode.arguments, add_generation_prompt=True)
    )
    # Behind the end of the turn the template may write a line break, which was not sampled.
    end = episode.token_ids[-1]
    if end in before:
        behind = before[::-1].index(end)
        before = before[: len(before) - behind]
    if with_answers[: len(before)] != before:
        raise DataError(
            Fault(
                where="model.tokenizer.chat_template",
                found="writes a turn differently when the answer of a tool follows it",
                expected="a template that leaves earlier turns as they were written",
                fix="=hermes",
            )
        )
    return with_answers[len(before) :]
