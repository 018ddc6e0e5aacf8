"""Completions of several turns: tools answer what the model calls, until it calls nothing more.

    Agent(tools=[search]).play(sampler, tokenizer, rows, how, noise_BR)      an episode for each row

The contract is that of TRL's GRPO: tools are functions with type hints and a docstring; an
environment is an object with ``reset(**row)``, whose other public methods are tools of its own
completion. What tools answer stands in a completion between the tokens of the model; ``own`` says
which are the model's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from runner.errors import DataError, Fault
from runner.generate.episode import (
    REWARD,
    Earned,
    Environment,
    Environments,
    Episode,
    Tool,
    begin,
    earn,
    respond,
    settle,
    tools_of,
)
from runner.generate.faults import long_prompts
from runner.generate.padding import lengthen
from runner.generate.sampler import Sampler, Sampling
from runner.io.files import JsonObject
from runner.io.turns import TEMPLATE_ARGUMENTS, Row, TurnDict
from runner.model.encoding import encode_prompt, write


@dataclass(frozen=True)
class Agent:
    """Tools, and environments by the name that a row gives them, or one for all rows."""

    tools: Sequence[Tool] = ()
    environments: Environments | None = None
    rounds: int | None = None  # the most turns that may call; None: no limit
    # Called with each turn as it is made.
    on_turn: Callable[[TurnDict], object] = lambda turn: None

    @property
    def calls_tools(self) -> bool:
        """True where the model may call tools; otherwise an environment only responds."""
        environment = self.environments
        if self.tools or not isinstance(environment, Environment):
            return True
        return environment.has_tools

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
        """The rewards that environments give by ``get_reward``, one for each class, by its name.

        Those of an experiment's environment are among its other rewards.
        """
        if isinstance(self.environments, Environment):
            return []
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
            for index, start in zip(turn, lengths, strict=True):
                noises.append(pad(noise_BR[index, start:], (0, start)))
                prefixes.append(lengthen(episodes[index].prompt_ids, episodes[index].token_ids))
            limited = replace(how, max_new_tokens=length - min(lengths))
            drawn = sampler(prefixes, limited, torch.stack(noises))

            for index, prefix, tokens, logprobs in zip(
                live, prefixes, drawn.tokens, drawn.logprobs, strict=False
            ):
                episode = episodes[index]
                room = length - len(episode.token_ids)
                ids = tokens[:room].tolist()
                message = _read_turn(tokenizer, ids, prefix, episode.offered)
                episode.extend(ids, own=True)
                episode.logprobs += logprobs[:room].tolist()
                episode.turns.append(message)
                self.on_turn(message)

            is_last = number == self.rounds
            asked = [episodes[index] for index in live]
            answers = self._answer(asked, how, calls=not is_last)
            answered = zip(live, asked, answers, strict=True)
            live = []
            for index, episode, turns in answered:
                if turns and not is_last and self._goes_on(tokenizer, episode, turns, how):
                    live.append(index)
        if isinstance(self.environments, Environment):
            earn(episodes, self.environments)
        return episodes

    def _goes_on(
        self,
        tokenizer: PreTrainedTokenizerBase,
        episode: Episode,
        turns: list[TurnDict],
        how: Sampling,
    ) -> bool:
        """Put answers behind the last turn of an episode, if there is room for another turn."""
        for answer in turns:
            self.on_turn(answer)
        ids = _encode_answers(tokenizer, turns, episode)
        if len(episode.token_ids) + len(ids) >= how.limit(episode.prompt_ids):
            return False
        episode.extend(ids, own=False)
        episode.turns += turns
        return True

    def _answer(
        self, episodes: Sequence[Episode], how: Sampling, *, calls: bool
    ) -> list[list[TurnDict]]:
        """The turns behind the last one of each episode, none where it is over or was cut off.

        Methods and tools that it ``calls`` answer it, and else the environment does, which hears
        of each other turn.
        """
        calling = []
        responding = []
        messages = []
        for episode in episodes:
            message = episode.turns[-1]
            is_whole = episode.token_ids[-1] in how.stop_ids
            if is_whole and message.get("tool_calls") and not episode.calls_schema(message):
                calling.append(episode)
            elif episode.responds:
                responding.append(episode)
                messages.append(_as_heard(message, is_whole=is_whole))
                episode.calls += len(messages[-1].get("tool_calls") or ())
        answers: dict[int, list[TurnDict]] = {}
        if calls:
            answers = dict(zip(map(id, calling), _call(calling), strict=True))
        replies = respond(responding, self.environments, messages)
        for episode, turns in zip(responding, replies, strict=True):
            if episode.token_ids[-1] in how.stop_ids:
                answers[id(episode)] = turns
        return [answers.get(id(episode), []) for episode in episodes]

    def judge(self, rows: Sequence[Row], messages: Sequence[TurnDict]) -> list[Earned | None]:
        """The rewards of episodes of one turn, whose messages were sampled elsewhere.

        None for one whose environment has failed.
        """
        environment = self.environments
        if not isinstance(environment, Environment):
            raise TypeError("only the environment of an experiment judges")
        episodes = self._open(rows)
        for episode, message in zip(episodes, messages, strict=True):
            episode.turns.append(message)
        healthy = [episode for episode in episodes if episode.responds]
        respond(healthy, environment, [episode.turns[-1] for episode in healthy])
        earn(episodes, environment)
        return [episode.earned for episode in episodes]

    def _open(self, rows: Sequence[Row]) -> list[Episode]:
        """An episode for each row with its environment, which has begun; without tokens."""
        episodes: list[Episode] = []
        for row in rows:
            environment = self._environment(row)
            columns = dict(row)
            if isinstance(self.environments, Mapping):
                columns.pop("environment", None)  # the name of the environment itself
            turns = row.get("prompt") or [{"role": "user", "content": ""}]
            tools = [*self.tools]
            if environment is not None:
                tools += tools_of(environment)
            episodes.append(
                Episode(
                    prompt=[dict(turn) for turn in turns],
                    prompt_ids=[],
                    tools={tool.__name__: tool for tool in tools},
                    environment=environment,
                    arguments={TEMPLATE_ARGUMENTS: row.get(TEMPLATE_ARGUMENTS)},
                    row=columns,
                )
            )
        begin(episodes, self.environments)
        return episodes

    def _begin(
        self, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], how: Sampling
    ) -> list[Episode]:
        """An episode for each row, before its first turn; DataError for a prompt without room."""
        episodes = self._open(rows)
        for index, episode in enumerate(episodes):
            row = {**rows[index], "tools": episode.offered}
            episode.prompt_ids = encode_prompt(tokenizer, episode.prompt, row)
            if how.limit(episode.prompt_ids) < 1:
                tokens = len(episode.prompt_ids)
                raise DataError(
                    long_prompts(count=1, row=index, tokens=tokens, most=how.max_length)
                )
        return episodes


def build_agent(
    tools: Sequence[Tool] | None = None,
    environments: Environments | None = None,
    rounds: int | None = None,
) -> Agent | None:
    """The agent of a configuration; None where it has no tools."""
    if isinstance(environments, Environment) and environments.max_turns is not None:
        rounds = environments.max_turns - 1
    if tools or environments:
        return Agent(tools or (), environments, rounds)
    return None


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


def _read_turn(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], prefix: list[int], tools: list[Any]
) -> TurnDict:
    """The turn of a model that some tokens are; without tools a template need not say how."""
    knows = getattr(tokenizer, "response_template", getattr(tokenizer, "response_schema", None))
    if tools or knows is not None:
        from trl.chat_template_utils import parse_response

        message: TurnDict = parse_response(tokenizer, ids, prefix=prefix, tools=tools)
        return message
    return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}


def _as_heard(message: TurnDict, *, is_whole: bool) -> TurnDict:
    """A turn as its environment is given it: one that was cut off has not called anything."""
    if is_whole:
        return message
    return {key: value for key, value in message.items() if key != "tool_calls"}


def _encode_answers(
    tokenizer: PreTrainedTokenizerBase, answers: list[TurnDict], episode: Episode
) -> list[int]:
    """The tokens between the end of a turn of the model and the beginning of its next one.

    They are those that the template writes, found by writing a conversation with and without the
    answers.
    """
    last_turn: TurnDict = {"role": "assistant", "content": "!"}
    is_of_tool = answers[0]["role"] == "tool"
    if is_of_tool:
        name = answers[0].get("name") or "tool"
        call = {"type": "function", "function": {"name": name, "arguments": {}}}
        last_turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    turns: list[TurnDict] = [{"role": "user", "content": "?"}, last_turn]
    before = list(write(tokenizer, turns, episode.arguments))
    with_answers = list(
        write(tokenizer, [*turns, *answers], episode.arguments, add_generation_prompt=True)
    )
    # Behind the end of the turn the template may write a line break, which was not sampled.
    end = episode.token_ids[-1]
    if end in before:
        behind = before[::-1].index(end)
        before = before[: len(before) - behind]
    if with_answers[: len(before)] == before:
        return with_answers[len(before) :]
    # In front of a new turn of the user some templates leave out the thoughts of earlier turns,
    # which stay as they were sampled. As many turns have ended.
    ends = [index for index, token in enumerate(with_answers) if token == end]
    if not is_of_tool and before.count(end) <= len(ends) and end in before:
        return with_answers[ends[before.count(end) - 1] + 1 :]
    raise DataError(
        Fault(
            where="model.tokenizer.chat_template",
            found="writes a turn differently when the answer of a tool follows it",
            expected="a template that leaves earlier turns as they were written",
            fix="=hermes",
        )
    )
