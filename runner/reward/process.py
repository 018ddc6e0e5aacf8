"""Rewards for each step of a completion. Whole answers are in ``rule`` and ``outcome``.

A step is what stands between two separators; blank ones do not count. PPO credits each where the
step ends, if the separator is that of ``trainer.args.step_separator``; every trainer takes one
number made of them.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from runner.io.files import shipped
from runner.io.turns import Completion, text_of, turns_for
from runner.reward.outcome import AutoClass, Gives, ScoringModel, translate_errors
from runner.schema.ranges import Count

Aggregate = Literal["last", "min", "mean", "product"]


def sorted_steps(completions: Sequence[Completion], digits: Sequence[str]) -> list[list[float]]:
    """The share of the reward that each digit of an answer earns if it is in the right place.

    What is missing or too much costs a half, at the last digit, so that the sum is that of
    ``rule.sorted_digits``.
    """
    rewards = []
    for completion, line in zip(completions, digits, strict=True):
        answer = to_steps(text_of(completion), " ")
        right = sorted(line.split())
        places = right + [""] * len(answer)
        steps = []
        for digit, other in zip(answer, places, strict=False):
            steps.append((digit == other) / len(right))
        steps = steps or [0.0]
        if len(answer) != len(right):
            steps[-1] -= 0.5
        rewards.append(steps)
    return rewards


def to_steps(text: str, separator: str) -> list[str]:
    """The steps of a text, without the space around them."""
    return [step.strip() for step in text.split(separator) if step.strip()]


def aggregate(scores: Sequence[float], by: Aggregate) -> float:
    """One number of the scores of steps.

    Lightman et al. 2023 compare the product and the smallest.
    """
    match by:
        case "last":
            return scores[-1]
        case "min":
            return min(scores)
        case "mean":
            return sum(scores) / len(scores)
        case "product":
            return math.prod(scores)
        case _:
            raise ValueError(f"{by!r} is not one of last, min, mean and product")


@dataclass(frozen=True)
class StepReading:
    """A text that the model reads in one pass for scores of steps."""

    ids: list[int]
    ends: list[int]  # the indices of the tokens at which a score is read
    completion: int  # the index of the completion that the scores belong to


@dataclass(eq=False)
class ProcessModel(ScoringModel):
    """The score of each step of a completion by a model, or one number of them.

    A token classification model, as TRL's PRMTrainer makes it, is read at the token that ends a
    step, all steps in one pass; a sequence classification model is shown the answer up to each
    step. ``label`` is the class that means right, the last one unless another is named.
    ``aggregate`` null gives the score of every step, which only PPO takes.
    """

    _: KW_ONLY
    separator: str = "\n"
    aggregate: Aggregate | None = "min"
    gives: Gives = "probability"
    batch_size: Count = 16

    def __post_init__(self) -> None:
        key = "reward.process_model"
        with translate_errors(self.path, f"{key}.path"):
            config = AutoConfig.from_pretrained(
                shipped(self.path),
                revision=self.revision,
                trust_remote_code=self.trust_remote_code,
            )
        self.reads_tokens = "TokenClassification" in (config.architectures or [""])[0]
        if self.label is None:
            self.label = config.num_labels - 1
        kind: AutoClass = AutoModelForSequenceClassification
        if self.reads_tokens:
            kind = AutoModelForTokenClassification
        self.load(key, kind)

    def __call__(
        self, prompts: Sequence[Completion], completions: Sequence[Completion]
    ) -> list[float] | list[list[float]]:
        """One number per completion, or without ``aggregate`` one for each of its steps.

        A blank completion is one step.
        """
        separator = self.tokenizer(self.separator, add_special_tokens=False)["input_ids"]
        readings: list[StepReading] = []
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            steps = to_steps(text_of(completion), self.separator) or [""]
            readings += self._to_readings(index, prompt, steps, separator)
        scores: list[list[float]] = [[] for _ in completions]
        for start in range(0, len(readings), self.batch_size):
            batch = readings[start : start + self.batch_size]
            for reading, step_scores in zip(batch, self._read(batch), strict=True):
                scores[reading.completion] += step_scores
        if self.aggregate is None:
            return scores
        return [aggregate(step_scores, self.aggregate) for step_scores in scores]

    def _to_readings(
        self, index: int, prompt: Completion, steps: Sequence[str], separator: Sequence[int]
    ) -> list[StepReading]:
        """The texts to read for the steps of a completion: one for all, or one for each.

        Each step ends with the tokens of the separator.
        """
        ids = self._prompt_ids(prompt)
        ends = []
        for step in steps:
            ids += self.tokenizer(step, add_special_tokens=False)["input_ids"]
            ids += separator
            ends.append(len(ids) - 1)
        if self.reads_tokens:
            return [StepReading(ids, ends, index)]
        return [StepReading(ids[: end + 1], [end], index) for end in ends]

    def _prompt_ids(self, prompt: Completion) -> list[int]:
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        if self.tokenizer.chat_template:
            turns = turns_for(self.tokenizer, prompt)
            ids = self.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, return_dict=False
            )
            return list(ids)
        text = "\n".join(turn["content"] for turn in prompt)
        return list(self.tokenizer(text)["input_ids"])

    @torch.no_grad()
    def _read(self, readings: Sequence[StepReading]) -> list[list[float]]:
        """The scores at the ends of steps.

        A text that is too long loses its beginning, so that every end stays in sight.
        """
        cuts = []
        ids = []
        for reading in readings:
            size = len(reading.ids)
            cut = max(0, size - (self.longest or size))
            cuts.append(cut)
            ids.append(reading.ids[cut:])
        padded = self.tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt")
        scores = self.scores_of(padded.to(self.model.device))
        if not self.reads_tokens:
            return [[score] for score in scores]
        step_scores = []
        for reading, cut, token_scores in zip(readings, cuts, scores, strict=True):
            ends = [max(0, end - cut) for end in reading.ends]
            step_scores.append([token_scores[end] for end in ends])
        return step_scores
