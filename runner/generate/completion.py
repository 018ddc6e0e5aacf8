"""Rows with prompts -> completions as text, with the template and the stop tokens of model and tokenizer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedTokenizerBase

from runner.errors import DataError, fault
from runner.generate.agent import Agent, Episode, build_agent
from runner.generate.batch import split_by_rows
from runner.generate.rows import Row
from runner.generate.sampler import Model, Responses, Sampling, evaluating, sample, seeded_generator, uniform
from runner.io.turns import describe_image, dialogue, with_images
from runner.model.encoding import encode_prompt, stop_ids

Draw: TypeAlias = tuple[int, int]  # the row that is answered and the number of the sample, which number the noise


@dataclass(frozen=True)
class Completion:
    """One answer to the prompt of a row; the log-probability is the model's at temperature 1, however it was drawn."""

    row: int
    sample: int
    prompt: Any
    prompt_ids: Sequence[int]
    text: str
    token_ids: list[int]  # up to and with the stop token
    finish: str  # stop or length
    log_probability: float = math.nan
    turns: list[dict[str, Any]] | None = None  # where tools answered
    own: Sequence[bool] | None = None  # for each token true where the model wrote it; None: all
    environment: object = None
    calls: tuple[int, int, int] = (1, 0, 0)  # turns of the model, calls in them, and those that failed

    @property
    def answer(self) -> str | list[dict[str, Any]]:
        """The text, or behind a chat the turns, as rewards take it."""
        if self.turns is not None:
            return self.turns
        return self.text if isinstance(self.prompt, str) else [{"role": "assistant", "content": self.text}]

    def to_row(self) -> dict[str, Any]:
        """The columns that are written to a file."""
        row = {"row": self.row, "sample": self.sample, "prompt": self.prompt}
        row |= {"completion": self.text if self.turns is None else self.turns, "finish": self.finish}
        return row | {"log_probability": round(self.log_probability, 6), "tokens": len(self.token_ids)}


@dataclass
class TextGenerator:
    """A model that answers the prompts of rows, ``n`` times each; noise comes from seed, row and sample alone."""

    model: Model
    tokenizer: PreTrainedTokenizerBase
    how: Sampling
    seed: int = 0
    n: int = 1
    on_progress: Callable[[int], object] = lambda count: None  # is called with the number of those made
    agent: Agent | None = None  # whose tools it may call

    def __post_init__(self) -> None:
        self.how = replace(self.how, stop_ids=tuple(stop_ids(self.model)), logprob_temperature=1.0)
        self.is_greedy = self.how.temperature == 0

    def plan(self, rows: Sequence[Row]) -> list[list[Draw]]:
        """Every completion that is wanted, in the batches that are generated; raises DataError with all bad prompts."""
        rows = [self.agent.with_tools(row) for row in rows] if self.agent else rows
        prompts = [encode_prompt(self.tokenizer, row["prompt"], row) for row in rows]
        faults = []
        if empty := [row for row, ids in enumerate(prompts) if not ids]:
            faults.append(fault("generate.empty_prompts", count=len(empty), row=empty[0]))
        if long := [row for row, ids in enumerate(prompts) if self.how.limit(ids) < 1]:
            size, most = len(prompts[long[0]]), self.how.max_length
            faults.append(fault("generate.long_prompts", count=len(long), row=long[0], tokens=size, most=most))
        DataError.refuse(faults)
        draws = [(row, number) for row in range(len(rows)) for number in range(1 if self.is_greedy else self.n)]
        groups = split_by_rows([len(prompts[row]) for row, _ in draws], self.how.rows)
        return [[draws[index] for index in group] for group in groups]

    def complete(self, batch: Sequence[Draw], rows: Sequence[Row]) -> list[Completion]:
        """The completions of one batch of a plan, each as often as it is wanted."""
        length, generators = self.how.max_new_tokens, [seeded_generator(self.seed, *draw) for draw in batch]
        noise_BR = torch.stack([uniform(length, generator=each) for each in generators])
        picked, stop_ids = [rows[row] for row, _ in batch], self.how.stop_ids
        if self.agent:
            episodes = self.agent.play(self.model, self.tokenizer, picked, self.how, noise_BR, halves=True)
            drawn = [of_episode(each, stop_ids) for each in episodes]
        else:
            prompts = [encode_prompt(self.tokenizer, row["prompt"], row) for row in picked]
            samples = sample(self.model, prompts, self.how, noise_BR, halves=True)
            drawn = to_completions(self.tokenizer, picked, prompts, samples, stop_ids)
        drawn = [replace(each, row=row, sample=number) for (row, number), each in zip(batch, drawn, strict=True)]
        made = [replace(each, sample=copy) for each in drawn for copy in range(self.n)] if self.is_greedy else drawn
        self.on_progress(len(made))
        return made

    def complete_all(self, rows: Sequence[Row]) -> list[Completion]:
        """Every completion of rows, in their order."""
        made = [each for batch in self.plan(rows) for each in self.complete(batch, rows)]
        return sorted(made, key=lambda each: (each.row, each.sample))


def to_completions(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    prompts: Sequence[list[int]],
    made: Responses,
    stop_ids: Sequence[int],
    *,
    whole: bool = False,
) -> list[Completion]:
    """One completion of one turn for each row, cut off where no stop token ends it, unless all are ``whole``."""
    tokens, sums = [ids.tolist() for ids in made.tokens], [math.fsum(each.tolist()) for each in made.logprobs]
    found, texts = [], tokenizer.batch_decode(tokens, skip_special_tokens=True)
    for index, (row, prompt_ids, ids, text) in enumerate(zip(rows, prompts, tokens, texts, strict=True)):
        finish, prompt = "stop" if whole or ids[-1] in stop_ids else "length", row["prompt"]
        if row.get("images"):
            prompt = with_images(prompt, map(describe_image, row["images"]))
        found.append(Completion(index, 0, prompt, prompt_ids, text, ids, finish, sums[index]))
    return found


def of_episode(episode: Episode, stop_ids: Sequence[int]) -> Completion:
    """The completion of an episode, whose text is that of its last turn; one that still calls is cut off."""
    last, ids = episode.turns[-1], episode.token_ids
    finish = "stop" if ids[-1] in stop_ids and not last.get("tool_calls") else "length"
    more = (math.fsum(episode.logprobs), episode.turns, episode.own, episode.environment, episode.counts)
    return Completion(0, 0, episode.prompt, episode.prompt_ids, last["content"], ids, finish, *more)


def generate(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Any],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    batch_size: int = 64,
    seed: int = 0,
    agent: Agent | None = None,
) -> list[str]:
    """One completion per prompt, as text; prompts are strings or chats. Temperature 0 is greedy. Tools may be called.

    It does not depend on the size of the batches, which are halved where memory lacks. Random state and mode stay.
    """
    how = Sampling(max_new_tokens, temperature=temperature, rows=batch_size)
    with evaluating(model):
        # Of a row nothing is known but its prompt, so that no environment can begin.
        agent = agent and build_agent(agent.tools, rounds=agent.rounds)
        generator = TextGenerator(model, tokenizer, how, seed, agent=agent)
        made = generator.complete_all([{"prompt": prompt} for prompt in prompts])
    return [dialogue(each.turns or each.text) for each in made]


def context_length(model: Model) -> int | None:
    """The most tokens that a model holds, prompt and completion; None where its config does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)
