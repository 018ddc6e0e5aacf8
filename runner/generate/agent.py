"""Completions of several turns: the model writes one, tools answer what it calls in it, until it calls nothing more.

    Agent(tools=[search]).play(model, tokenizer, rows, how, noise_BR)      an episode for each row

The contract is that of TRL's GRPO: tools are functions with type hints and a docstring; an environment is an object
with ``reset(**row)``, whose other public methods are tools of its own completion. What tools answer stands in a
completion between the tokens of the model, and is no token of the model's: see ``own``.
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

from runner.errors import DataError, fault
from runner.generate.batch import lengthen
from runner.generate.sampler import Model, Sampling, sample
from runner.io.turns import TEMPLATE_ARGUMENTS
from runner.model.encoding import Row, encode_prompt, write

Tool: TypeAlias = Callable[..., object]
Environments: TypeAlias = Callable[[], object] | Mapping[str, Callable[[], object]]
LOOP = asyncio.Runner()  # the one of all coroutines, to which what they open is bound
atexit.register(LOOP.close)
NO_TOOLS = ("reset", "get_reward")  # methods of an environment that are not the model's to call


@dataclass(eq=False)
class Episode:
    """One completion while it is made: its turns, its token ids, and which of them the model wrote."""

    prompt: list[dict[str, Any]]
    prompt_ids: list[int]
    tools: Mapping[str, Tool]
    environment: object = None
    arguments: Row = field(default_factory=dict)  # of the template, that come with the row
    turns: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of the model's own tokens
    calls: int = 0
    failures: int = 0  # of calls

    @property
    def counts(self) -> tuple[int, int, int]:
        """Turns of the model, calls in them, and those of the calls that failed."""
        return sum(turn["role"] == "assistant" for turn in self.turns), self.calls, self.failures

    def extend(self, ids: Sequence[int], *, own: bool) -> None:
        """Add tokens of the model, or of a tool."""
        self.token_ids += ids
        self.own += [own] * len(ids)


@dataclass(frozen=True)
class Agent:
    """Tools, and environments by the name that a row gives them, or one for all rows; ``rounds`` of calls at most."""

    tools: Sequence[Tool] = ()
    environments: Environments | None = None
    rounds: int | None = None

    def open(self, row: Row) -> tuple[list[dict[str, Any]], list[Tool], object]:
        """The prompt of a row, the tools that are offered in it, and its environment, which is a new one, and reset."""
        prompt = [dict(turn) for turn in row.get("prompt") or [{"role": "user", "content": ""}]]
        if (environment := self._environment(row)) is None:
            return prompt, list(self.tools), None
        named = isinstance(self.environments, Mapping)
        given = {name: value for name, value in row.items() if not (named and name == "environment")}
        if (seen := environment.reset(**given)) is not None:
            prompt[-1]["content"] = prompt[-1]["content"] + seen
        return prompt, [*self.tools, *tools_of(environment)], environment

    def _environment(self, row: Row) -> Any:
        make = self.environments
        make = make[row["environment"]] if isinstance(make, Mapping) else make
        return make() if make else None

    def with_tools(self, row: Row) -> dict[str, Any]:
        """A row with the tools that are offered in it, in an environment that has not begun."""
        environment = self._environment(row)
        return {**row, "tools": [*self.tools, *(tools_of(environment) if environment else ())]}

    def own_rewards(self) -> list[Callable[..., object]]:
        """The rewards that environments give by ``get_reward``, one for each class, under its name."""
        makers = self.environments.values() if isinstance(self.environments, Mapping) else [self.environments]
        kinds: dict[Any, None] = dict.fromkeys(type(make()) for make in makers if make is not None)
        return [_reward_of(kind) for kind in kinds if hasattr(kind, NO_TOOLS[1])]

    def play(
        self,
        model: Model,
        tokenizer: PreTrainedTokenizerBase,
        rows: Sequence[Row],
        how: Sampling,
        noise_BR: Tensor,
        *,
        agree: Callable[[int], int] = int,
        **engine: Any,
    ) -> list[Episode]:
        """An episode for each row; prompts, answers of tools and the model's turns share ``max_new_tokens``.

        A token takes the noise of its place, so that an episode does not depend on those beside it. ``agree`` gives the
        most episodes that any process has still to go on with, where all of them must take as many passes.
        """
        episodes = list[Episode]()
        for row in rows:
            prompt, tools, environment = self.open(row)
            ids = encode_prompt(tokenizer, prompt, {**row, "tools": tools})
            if how.limit(ids) < 1:
                sizes = {"tokens": len(ids), "most": how.max_length}
                raise DataError(fault("generate.long_prompts", count=1, row=len(episodes), **sizes))
            named, own = {tool.__name__: tool for tool in tools}, {TEMPLATE_ARGUMENTS: row.get(TEMPLATE_ARGUMENTS)}
            episodes.append(Episode(prompt, ids, named, environment, own))
        live, length = list(range(len(rows))), noise_BR.shape[1]
        for rounds in range(length):
            if not agree(len(live)):
                break
            turn = live or [0]  # others go on, and need this process to take part
            used = [len(episodes[index].token_ids) if live else length - 1 for index in turn]
            noises = [pad(noise_BR[index, begin:], (0, begin)) for index, begin in zip(turn, used, strict=True)]
            before = [lengthen(episodes[index].prompt_ids, episodes[index].token_ids) for index in turn]
            left = replace(how, max_new_tokens=length - min(used))
            drawn = sample(model, before, left, torch.stack(noises), **engine)
            calling = []
            for index, prefix, tokens, logprobs in zip(live, before, drawn.tokens, drawn.logprobs, strict=False):
                episode, room = episodes[index], length - len(episodes[index].token_ids)
                ids, offered = tokens[:room].tolist(), list(episode.tools.values())
                message = parse_response(tokenizer, ids, prefix=prefix, tools=offered)
                episode.extend(ids, own=True)
                episode.logprobs += logprobs[:room].tolist()
                episode.turns.append(message)
                if message.get("tool_calls") and ids[-1] in how.stop_ids and rounds != self.rounds:
                    calling.append(index)
            answers, live = _call([episodes[index] for index in calling]), []
            for index, turns in zip(calling, answers, strict=True):
                episode = episodes[index]
                ids = _encode_answers(tokenizer, turns, episode)
                if len(episode.token_ids) + len(ids) < how.limit(episode.prompt_ids):  # else no turn could follow
                    episode.extend(ids, own=False)
                    episode.turns += turns
                    live.append(index)
        return episodes


def build_agent(
    tools: Sequence[Tool] | None = None, environments: Environments | None = None, rounds: int | None = None
) -> Agent | None:
    """The agent of a configuration; None where it has no tools."""
    return Agent(tools or (), environments, rounds) if tools or environments else None


def methods_of(kind: type) -> dict[str, Any]:
    """The public methods of a class of environments, in the order of their names; static ones are none, as in TRL."""
    found = inspect.getmembers_static(kind, inspect.isfunction)
    return {name: each for name, each in found if not name.startswith("_")}


def tools_of(environment: Any) -> list[Tool]:
    """The methods of an environment that a model may call."""
    return [getattr(environment, name) for name in methods_of(type(environment)) if name not in NO_TOOLS]


def _reward_of(kind: Any) -> Callable[..., object]:
    def get_reward(environments: Sequence[Any], **_: object) -> list[object]:
        return settle([each.get_reward() if type(each) is kind else None for each in environments])

    get_reward.__name__ = kind.__name__
    return get_reward


def _call(episodes: Sequence[Episode]) -> list[list[dict[str, Any]]]:
    """Turns of tools, which answer the calls of the last turn of each; an error is an answer too, to learn from."""
    calls = [(episode, call["function"]) for episode in episodes for call in episode.turns[-1]["tool_calls"]]
    answers: dict[Episode, list[dict[str, Any]]] = {episode: [] for episode in episodes}
    results = settle([_try(each.tools, call) for each, call in calls], with_errors=True)
    for (episode, call), result in zip(calls, results, strict=True):
        failed = isinstance(result, Exception)
        episode.calls, episode.failures = episode.calls + 1, episode.failures + failed
        text = str({"error": str(result)} if failed else result)
        answers[episode].append({"role": "tool", "name": call["name"], "content": text})
    return list(answers.values())


def _try(tools: Mapping[str, Tool], call: Mapping[str, Any]) -> Any:
    name = call["name"]  # what else a call holds than this and its arguments a model made up
    try:
        return tools[name](**call["arguments"]) if name in tools else LookupError(f"Tool {name} not found.")
    except Exception as error:  # of any kind: what tools do is up to them
        return error


def settle(found: Sequence[Any], *, with_errors: bool = False) -> list[Any]:
    """The same, with the results of coroutines, which run side by side, or else the errors, in their place."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*filter(inspect.isawaitable, found), return_exceptions=with_errors)

    waited = iter(LOOP.run(gather()) if any(map(inspect.isawaitable, found)) else ())
    return [next(waited) if inspect.isawaitable(each) else each for each in found]


def _encode_answers(tokenizer: PreTrainedTokenizerBase, answers: list[dict[str, Any]], episode: Episode) -> list[int]:
    """The tokens between the end of a turn that calls and the begin of the next one, as the template writes them."""
    call = {"type": "function", "function": {"name": answers[0]["name"], "arguments": {}}}
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    before, end = list(write(tokenizer, turns, episode.arguments)), episode.token_ids[-1]
    whole = list(write(tokenizer, [*turns, *answers], episode.arguments, add_generation_prompt=True))
    if end in before:  # behind which the template may write a line break, which was not sampled
        before = before[: len(before) - before[::-1].index(end)]
    if whole[: len(before)] != before:
        raise DataError(fault("generate.rewritten_turns"))
    return whole[len(before) :]
