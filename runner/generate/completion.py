"""Rows with prompts -> completions as text, with the template and stop tokens of the model.

Letters at the end of a tensor's name are its shape: B rows, R response tokens.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from runner.errors import DataError, Fault
from runner.generate.agent import Agent, build_agent
from runner.generate.episode import Earned, Episode
from runner.generate.faults import long_prompts
from runner.generate.padding import split_by_rows
from runner.generate.sampler import (
    Model,
    Responses,
    Sampler,
    Sampling,
    evaluating,
    sample,
    seeded_generator,
    uniform,
)
from runner.io.files import JsonObject
from runner.io.turns import Row, TurnDict, dialogue
from runner.model.encoding import encode_prompt, stop_ids
from runner.schema.modality import fill_parts, list_media

# The row that is answered and the number of the sample, which together seed the noise.
Draw: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Completion:
    """One answer to the prompt of a row."""

    row: int
    sample: int
    prompt: Any
    prompt_ids: Sequence[int]
    text: str
    token_ids: list[int]  # up to and with the stop token
    finish: str  # stop or length
    log_probability: float = math.nan  # the model's at temperature 1, however it was sampled
    turns: list[TurnDict] | None = None  # where tools answered
    own: Sequence[bool] | None = None  # for each token true where the model wrote it; None: all
    environment: object = None
    calls: tuple[int, int, int] = (1, 0, 0)  # turns of the model, calls in them, those that failed
    # What the environment of an experiment gives, by the names of its rewards.
    earned: Earned | None = None
    has_failed: bool = False  # the environment has, so that nothing is earned

    @property
    def answer(self) -> str | list[TurnDict]:
        """The text, or behind a chat the turns, as rewards take it."""
        if self.turns is not None:
            return self.turns
        if isinstance(self.prompt, str):
            return self.text
        return [{"role": "assistant", "content": self.text}]

    def to_row(self) -> JsonObject:
        """The columns that are written to a file."""
        return {
            "row": self.row,
            "sample": self.sample,
            "prompt": self.prompt,
            "completion": self.text if self.turns is None else self.turns,
            "finish": self.finish,
            "log_probability": round(self.log_probability, 6),
            "tokens": len(self.token_ids),
        }


@dataclass
class TextGenerator:
    """A model that answers the prompts of rows, ``n`` times each.

    The noise of a completion follows from the seed, the row and the number of the sample alone.
    """

    model: Model
    tokenizer: PreTrainedTokenizerBase
    how: Sampling
    seed: int = 0
    n: int = 1
    # Called with the number of completions that were made.
    on_progress: Callable[[int], object] = lambda count: None
    agent: Agent | None = None  # whose tools the model may call
    sampler: Sampler | None = None  # None: that of the model, with the fastest of its engines

    def __post_init__(self) -> None:
        ends = tuple(stop_ids(self.model))
        self.how = replace(self.how, stop_ids=ends, logprob_temperature=1.0)
        self.is_greedy = self.how.temperature == 0
        own_sampler: Sampler = functools.partial(sample, self.model, halves=True)
        self.sample_batch = self.sampler or own_sampler

    def plan(self, rows: Sequence[Row]) -> list[list[Draw]]:
        """The batches in which completions are generated; DataError with all bad prompts.

        A greedy answer is drawn once, however often it is wanted.
        """
        if self.agent:
            rows = [self.agent.with_tools(row) for row in rows]
        lengths = self._prompt_lengths(rows)
        samples = 1 if self.is_greedy else self.n
        draws: list[Draw] = []
        for row in range(len(rows)):
            draws += [(row, number) for number in range(samples)]
        lengths_of_draws = [lengths[row] for row, _ in draws]
        groups = split_by_rows(lengths_of_draws, self.how.rows)
        batches = []
        for group in groups:
            batches.append([draws[index] for index in group])
        return batches

    def _prompt_lengths(self, rows: Sequence[Row]) -> list[int]:
        """The number of tokens of each prompt; DataError where any is empty or too long."""
        prompts = [encode_prompt(self.tokenizer, row["prompt"], row) for row in rows]
        empty = [row for row, ids in enumerate(prompts) if not ids]
        too_long = [row for row, ids in enumerate(prompts) if self.how.limit(ids) < 1]
        faults = []
        if empty:
            faults.append(
                Fault(
                    where="dataset",
                    found=f"{len(empty)} prompts without a token, the first in row {empty[0]}",
                    expected="prompts",
                )
            )
        if too_long:
            first = too_long[0]
            faults.append(
                long_prompts(
                    count=len(too_long),
                    row=first,
                    tokens=len(prompts[first]),
                    most=self.how.max_length,
                )
            )
        DataError.refuse(faults)
        return [len(ids) for ids in prompts]

    def complete(self, batch: Sequence[Draw], rows: Sequence[Row]) -> list[Completion]:
        """The completions of one batch of a plan, each as often as it is wanted."""
        noises = []
        for draw in batch:
            generator = seeded_generator(self.seed, *draw)
            noises.append(uniform(self.how.max_new_tokens, generator=generator))
        batch_rows = [rows[row] for row, _ in batch]
        sampled = self._sample(batch_rows, torch.stack(noises))
        completions = []
        for (row, number), completion in zip(batch, sampled, strict=True):
            numbers = range(self.n) if self.is_greedy else [number]
            for sample_number in numbers:
                completions.append(replace(completion, row=row, sample=sample_number))
        self.on_progress(len(completions))
        return completions

    def _sample(self, rows: Sequence[Row], noise_BR: Tensor) -> list[Completion]:
        if self.agent:
            episodes = self.agent.play(self.sample_batch, self.tokenizer, rows, self.how, noise_BR)
            return [of_episode(episode, self.how.stop_ids) for episode in episodes]
        prompts = [encode_prompt(self.tokenizer, row["prompt"], row) for row in rows]
        responses = self.sample_batch(prompts, self.how, noise_BR)
        return to_completions(self.tokenizer, rows, prompts, responses, self.how.stop_ids)

    def complete_all(self, rows: Sequence[Row]) -> list[Completion]:
        """Every completion of rows, in their order."""
        completions = []
        for batch in self.plan(rows):
            completions += self.complete(batch, rows)
        return sorted(completions, key=lambda completion: (completion.row, completion.sample))


def to_completions(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    prompts: Sequence[list[int]],
    responses: Responses,
    stop_ids: Sequence[int],
    *,
    whole: bool = False,
) -> list[Completion]:
    """One completion of one turn for each row, cut off where no stop token ends it.

    ``whole`` says that none is cut off.
    """
    tokens = [tokens_R.tolist() for tokens_R in responses.tokens]
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    completions = []
    answers = zip(rows, prompts, tokens, texts, strict=True)
    for index, (row, prompt_ids, token_ids, text) in enumerate(answers):
        prompt = row["prompt"]
        media = list_media(row)
        if media:
            names = [(modality, modality.describe(medium)) for modality, medium in media]
            prompt = fill_parts(prompt, names)
        is_whole = whole or token_ids[-1] in stop_ids
        completions.append(
            Completion(
                row=index,
                sample=0,
                prompt=prompt,
                prompt_ids=prompt_ids,
                text=text,
                token_ids=token_ids,
                finish="stop" if is_whole else "length",
                log_probability=math.fsum(responses.logprobs[index].tolist()),
            )
        )
    return completions


def of_episode(episode: Episode, stop_ids: Sequence[int]) -> Completion:
    """The completion of an episode; its text is that of the last turn.

    It is cut off where no stop token ends it, or where its last turn still calls tools.
    """
    last_turn = episode.turns[-1]
    is_whole = episode.token_ids[-1] in stop_ids and not last_turn.get("tool_calls")
    return Completion(
        row=0,
        sample=0,
        prompt=episode.prompt,
        prompt_ids=episode.prompt_ids,
        text=last_turn["content"],
        token_ids=episode.token_ids,
        finish="stop" if is_whole else "length",
        log_probability=math.fsum(episode.logprobs),
        turns=episode.turns,
        own=episode.own,
        environment=episode.environment,
        calls=episode.counts,
        earned=episode.earned,
        has_failed=episode.has_failed,
    )


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
    """One completion per prompt, as text. Temperature 0 is greedy.

    Prompts are strings or chats, or all of them are rows, whose episodes an agent plays. It does
    not depend on the size of the batches, which are halved where memory lacks. Tools of an agent
    may be called. Random state and mode stay.
    """
    how = Sampling(max_new_tokens, temperature=temperature, rows=batch_size)
    are_rows = all(isinstance(prompt, Mapping) for prompt in prompts)
    rows = prompts if are_rows else [{"prompt": prompt} for prompt in prompts]
    if agent and not are_rows:
        # Nothing is known of a row but its prompt, so that no environment can begin.
        agent = build_agent(agent.tools, rounds=agent.rounds)
    with evaluating(model):
        generator = TextGenerator(model, tokenizer, how, seed, agent=agent)
        completions = generator.complete_all(rows)
    return [dialogue(completion.turns or completion.text) for completion in completions]


def context_length(model: Model) -> int | None:
    """The most tokens that a model holds, prompt and completion; None where it does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)
